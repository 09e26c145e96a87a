"""What nodes that begin at once get of each other: a log that one of them lacks is not trimmed, or all of it
is taken before anybody is served.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cluster.test_keeping import Nodes, client
from waiting import until

from tidemq.cluster.snapshots import FAMILIES, Giver, Taker
from tidemq.store.rocksdb import RocksDBStore


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


def take(giver: Giver, taker: Taker, now: float) -> int:
    """Asks until it has all; gives how many rows that were."""
    while (question := taker.question(now)) is not None:
        piece = giver.answer(question, now)
        assert piece is not None
        taker.take(piece)
    assert taker.is_done
    return taker.rows


def test_one_is_given_after_the_other_without_a_pause(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path)
    store.open()
    store.write([("retained", b"t/%d" % number, b"x" * 100_000) for number in range(20)], sync=True)
    numbers = itertools.count(1)
    giver = Giver(store, tmp_path)
    first, second = (Taker(1, lambda: next(numbers)) for _ in range(2))
    question = first.question(0.0)
    assert question is not None
    piece = giver.answer(question, 0.0)
    assert piece is not None
    waiting = second.question(0.0)
    assert waiting is not None
    assert giver.answer(waiting, 0.0) is None, "the first has not got all"
    first.take(piece)
    assert take(giver, first, 1.0) == 20
    second = Taker(1, lambda: next(numbers))
    assert take(giver, second, 1.0) == 20
    giver.end()
    store.close()


def test_the_end_can_be_asked_for_again(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path)
    store.open()
    store.write([("retained", b"t", b"x")], sync=True)
    numbers = itertools.count(1)
    giver, taker = Giver(store, tmp_path), Taker(1, lambda: next(numbers))
    rows = 0  # given, each once, however often they are asked for
    for index in range(len(FAMILIES)):
        question = taker.question(float(index))
        assert question is not None
        assert giver.rows_given == (rows if index else None)
        first, again = (giver.answer(question, float(index)) for _ in range(2))
        rows += FAMILIES[index] == "retained"
        assert first is not None
        assert first == again
        taker.take(first)
    assert taker.is_done
    assert (taker.rows, giver.rows_given) == (1, None)
    giver.end()
    store.close()


async def test_a_node_that_serves_takes_no_snapshot(nodes: Nodes) -> None:
    """Clients of its would have their sessions overwritten. It ends, and takes one when it starts again."""
    await nodes.meet("one", "two")
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    await until(lambda: nodes.keepers["one"].node.stability.first > 1, "its first records are gone")
    nodes.links.cut |= {each.node.incarnation for each in nodes.keepers.values()}
    three = await nodes.start("three")
    nodes.links.cut.clear()
    assert "served clients before it met" in await three.wait_failed()
    await nodes.stop("three")
    await nodes.start("three")
    await until(lambda: nodes.agree("one", "two", "three"))
    assert nodes.count("three", "subscription") == 1


async def test_a_node_that_began_by_itself_holds_up_nobody(nodes: Nodes) -> None:
    """It met nobody, and kept no log of what it did. A node that waited for that did not start."""
    await nodes.meet("one", "two")
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    await until(lambda: nodes.agree("one", "two"))
    nodes.links.cut |= {each.node.incarnation for each in nodes.keepers.values()}
    three = await nodes.start("three")
    async with client(three, "bob") as bob:
        await bob.subscribe("b/#", qos=1)
    await until(lambda: nodes.keepers["three"].node.stability.first > 1, "its first records are gone")
    await nodes.stop("one")
    nodes.links.cut.clear()
    await until(lambda: nodes.keepers["two"].exchange.counts["cluster_messages_refused"] > 0)
    texts = [trouble.text for trouble in nodes.keepers["two"].exchange.troubles.all()]
    assert any("three" in each and "it can join with an empty data directory" in each for each in texts)
    async with asyncio.timeout(30):
        await nodes.start("one")
    await until(lambda: nodes.agree("one", "two"))
    assert len(nodes.keepers["two"].node.members.incarnations) == 2
    assert len(nodes.keepers["one"].node.members.incarnations) == 2
