"""What nodes that begin at once get of each other: a log that one of them lacks is not trimmed, or all of it
is taken before anybody is served.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from cluster.test_keeping import Nodes, client
from waiting import until

from tidemq.cluster import snapshots
from tidemq.cluster.keeping import ClusterKeeper
from tidemq.cluster.snapshots import AGAIN_S, ANEW_S, FAMILIES, IDLE_S, UNFINISHED, Giver, Taker
from tidemq.cluster.stored_tables import FAMILY
from tidemq.store.memory import MemoryStore
from tidemq.store.rocksdb import RocksDBStore


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


def is_trimmed(keeper: ClusterKeeper) -> bool:
    return keeper.node.stability.first > 1


def take(giver: Giver, taker: Taker, now: float) -> int:
    """Asks until it has all; gives how many rows that were."""
    while (question := taker.question(now)) is not None:
        piece = giver.answer(question, now)
        assert piece is not None
        taker.take(piece)
        taker.took()
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
    first.took()
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
        taker.took()
    assert taker.is_done
    assert (taker.rows, giver.rows_given) == (1, None)
    giver.end()
    store.close()


def test_a_piece_that_could_not_be_stored_is_asked_for_again(tmp_path: Path) -> None:
    giving = RocksDBStore(tmp_path / "giver")
    giving.open()
    giving.write([("payload", b"%016d" % number, b"x" * 1000) for number in range(1000)], sync=True)
    giver, taker = Giver(giving, tmp_path), Taker(1, itertools.count(1).__next__)
    now, taken = 0.0, MemoryStore()
    for turn in itertools.count():
        question = taker.question(now)
        if question is None:
            break
        piece = giver.answer(question, now)
        assert piece is not None
        writes = taker.take(piece)
        if turn % 3 == 1:  # it could not be written
            now += AGAIN_S
            continue
        taken.write(writes, sync=False)
        taker.took()
        taker.took()  # once
    assert taker.is_done
    assert taker.rows == len(list(taken.scan("payload"))) == 1000
    giver.end()
    giving.close()


@pytest.mark.parametrize("why", ["the giver is started again", "nobody asks for long"])
def test_what_is_asked_for_of_a_copy_that_is_gone_does_not_come(tmp_path: Path, why: str) -> None:
    """The rest of a later moment would not go with it. The taker gives up, and begins with nothing."""
    giving, taken = RocksDBStore(tmp_path / "giver"), MemoryStore()
    giving.open()
    giving.write([(each, b"k" * 16, b"v" * 16) for each in ("payload", "retained")], sync=True)
    taken.write([(FAMILY, UNFINISHED, b""), (FAMILY, b"b", b"boot")], sync=True)
    numbers = itertools.count(1)
    giver, taker = Giver(giving, tmp_path), Taker(1, lambda: next(numbers))
    question = taker.question(0.0)
    assert question is not None
    piece = giver.answer(question, 0.0)
    assert piece is not None
    taken.write(taker.take(piece), sync=False)
    taker.took()
    assert list(taken.scan("payload"))
    now = 1.0
    if why == "nobody asks for long":
        now += IDLE_S
        giver.tend(now)
    else:
        giver = Giver(giving, tmp_path)
    for _ in range(3):
        question = taker.question(now)
        assert question is not None
        assert giver.answer(question, now) is None
        assert not taker.is_lost(now)
        now += AGAIN_S
    now += ANEW_S
    assert taker.is_lost(now)
    taker.give_up(taken)
    assert taker.giver == 0
    assert not taker.is_lost(now)
    assert not list(taken.scan("payload"))
    assert {key for key, _ in taken.scan(FAMILY)} == {UNFINISHED, b"b"}, "of this node alone"
    assert take(giver, Taker(1, lambda: next(numbers)), now) == 2
    giver.end()
    giving.close()


async def test_a_node_takes_a_snapshot_anew_from_another_one_where_its_giver_is_gone(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not begin before that with what it has."""
    monkeypatch.setattr(snapshots, "ANEW_S", 1.0)
    monkeypatch.setattr(snapshots, "AGAIN_S", 0.2)
    await nodes.meet("one", "two")
    for name, who in (("one", "ann"), ("two", "bob")):
        async with client(nodes.brokers[name], who) as made:
            await made.subscribe("a/#", qos=1)
    for keeper in nodes.keepers.values():
        await until(partial(is_trimmed, keeper), "its first records are gone")
    await until(lambda: nodes.agree("one", "two"))
    givers: list[int] = []
    answer = Giver.answer

    def half(self: Giver, body: bytes, now: float) -> bytes | None:
        """The first one that is asked is gone in the middle."""
        name = next(each for each, keeper in nodes.keepers.items() if keeper._giver is self)
        incarnation = nodes.keepers[name].node.incarnation
        givers.append(incarnation)
        if incarnation == givers[0] and len(givers) > 3:
            nodes.links.cut.add(incarnation)
            return None
        return answer(self, body, now)

    monkeypatch.setattr(Giver, "answer", half)
    await nodes.start("three", suspect_s=1.5)
    assert len(set(givers)) == 2
    (other,) = (name for name in ("one", "two") if nodes.keepers[name].node.incarnation == givers[-1])
    await until(lambda: nodes.agree(other, "three"))
    assert nodes.count("three", "subscription") == 2


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
