"""Rows of all nodes compared: what differs is found and named, and nothing else is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from cluster.test_keeping import Nodes, client
from waiting import WAIT_S, until

from tidemq.broker.clustering import VerifyFigures
from tidemq.cluster.digests import QUESTION
from tidemq.errors import ClusterError
from tidemq.store import Write
from tidemq.store.rows import IDLE


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


async def verify(nodes: Nodes, name: str, wait_s: float = WAIT_S) -> VerifyFigures:
    """Has one node compare all, and waits for what comes out."""
    verifying = nodes.keepers[name].verifying
    await asyncio.wrap_future(verifying.begin(wait_s))

    def is_done() -> bool:
        figures = verifying.figures()
        return figures is not None and figures.outcome != "running"

    await until(is_done, "the nodes are compared")
    found = verifying.figures()
    assert found is not None
    return found


async def fill(nodes: Nodes, *names: str) -> None:
    """Sessions with subscriptions, messages that wait, and what is retained, the same on all nodes."""
    await nodes.meet(*names)
    one = nodes.brokers["one"]
    for name in ("ann", "bea"):
        async with client(one, name) as subscriber:
            await subscriber.subscribe("a/#", qos=2)
            await subscriber.subscribe("b", qos=1)
    async with client(one, "bob") as bob:
        for number in range(20):
            await bob.publish("a/1", b"%d" % number, qos=1 + number % 2)
        await bob.publish("kept/1", b"first", qos=1, retain=True)
        await bob.publish("kept/2", b"second", qos=1, retain=True)
    await until(lambda: nodes.agree(*names))


async def test_nodes_that_agree_are_equal(nodes: Nodes) -> None:
    await fill(nodes, "one", "two", "three")
    found = await verify(nodes, "two")
    assert (found.outcome, found.looks, found.left_out) == ("equal", 1, [])
    assert [each.name for each in found.nodes] == [
        nodes.keepers[name].node.own.name
        for name in sorted(nodes.keepers, key=lambda name: nodes.keepers[name].node.incarnation)
    ]
    # of each node at least: 2 sessions, 4 subscriptions, 40 entries, 2 retained messages and 20 others
    assert found.rows >= 3 * (2 + 4 + 40 + 2 + 20)


Plan = Callable[[Nodes], list[Write]]


def rows(nodes: Nodes, family: str, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
    return list(nodes.ask("two", lambda _: list(nodes.stores["two"].scan(family, prefix))))


def flipped(family: str, prefix: bytes, at: int) -> Plan:
    """A bit of the value of the first row."""

    def plan(nodes: Nodes) -> list[Write]:
        key, value = rows(nodes, family, prefix)[0]
        changed = bytearray(value)
        changed[at] ^= 1
        return [(family, key, bytes(changed))]

    return plan


def removed(family: str, prefix: bytes = b"", at: int = 0) -> Plan:
    def plan(nodes: Nodes) -> list[Write]:
        return [(family, rows(nodes, family, prefix)[at][0], None)]

    return plan


def added_entry(nodes: Nodes) -> list[Write]:
    """To the engine alone, as a row that was never removed from the queue."""
    key, value = rows(nodes, "queue")[-1]
    return [("queue", key[:-16] + b"\xff" * 16, value)]


def removed_entry(nodes: Nodes) -> list[Write]:
    """With all that belongs to it."""
    key, value = rows(nodes, "cluster", b"q")[5]
    return [("cluster", key, None), ("queue", value[:8] + bytes([IDLE]) + key[-16:], None)]


ANN, BEA = (b"\0\0\0\x03" + each for each in (b"ann", b"bea"))

PLANTED: dict[str, tuple[Plan, str, str]] = {
    "a session's next place": (flipped("cluster", b"s" + ANN, 32), "session", "client ann"),
    "a session's expiry": (flipped("session", b"bea", 11), "session", "client bea"),
    "a session without its row": (removed("session", b"ann"), "session", "client ann"),
    "no session": (removed("cluster", b"s" + BEA), "session", "client bea"),
    "options": (flipped("subscription", b"\0\x03ann", 0), "subscription", "client ann, filter a/#"),
    "no subscription": (removed("subscription", b"\0\x03bea", 1), "subscription", "client bea, filter b"),
    "a subscription's time": (flipped("cluster", b"u" + ANN, 7), "subscription", "client ann, filter b"),
    "the QoS of an entry": (flipped("queue", b"", 1), "queue entry", "client "),
    "the record of an entry": (flipped("cluster", b"q\x01" + BEA, 40), "queue entry", "client bea, message "),
    "an entry's row": (removed("queue", b"", 25), "queue entry", "client "),
    "an entry that no record has brought": (added_entry, "queue entry", "client "),
    "no entry": (removed_entry, "queue entry", "client ann, message "),
    "a retained message": (flipped("retained", b"kept/1", 20), "retained message", "topic kept/1"),
    "no retained message": (removed("retained", b"kept/2"), "retained message", "topic kept/2"),
    "one more": (lambda _: [("retained", b"aaa", bytes(40))], "retained message", "topic aaa"),
    "a message": (flipped("payload", b"", -1), "message", "message "),
    "no message": (removed("payload", b"", 3), "message", "message "),
    "a node that was forgotten": (
        lambda _: [("cluster", b"k" + b"\7" * 8, b"\0\0\0\4four" + bytes(8))],
        "forgotten node",
        "node 0707070707070707",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
async def test_what_differs_is_named(nodes: Nodes, what: str) -> None:
    plan, kind, name = PLANTED[what]
    await fill(nodes, "one", "two")
    writes = plan(nodes)
    nodes.ask("two", lambda _: nodes.stores["two"].write(writes, sync=True))
    for asked in ("one", "two"):
        found = await verify(nodes, asked)
        assert (found.outcome, found.kind) == ("different", kind), found
        assert found.what.startswith(name)
        has = {each.name: each.has for each in found.nodes}
        assert has["one"] != has["two"]
        assert ("nothing" in (has["one"], has["two"])) == (
            what.startswith("no ")
            or what in ("one more", "a node that was forgotten", "an entry that no record has brought")
        )


async def test_the_queue_of_a_message_that_is_missed_is_named(nodes: Nodes) -> None:
    await fill(nodes, "one", "two")
    [(key, _), *_] = rows(nodes, "payload")
    nodes.ask("two", lambda _: nodes.stores["two"].write([("payload", key, None)], sync=True))
    found = await verify(nodes, "one")
    assert found.what == f"message {key.hex()}, in the queue of client ann"
    assert {each.has for each in found.nodes if each.name == "two"} == {"nothing"}


async def test_what_nobody_needs_any_more_is_no_difference(nodes: Nodes) -> None:
    """A message without a queue, as it stays for a while when a session has ended."""
    await fill(nodes, "one", "two")
    nodes.ask("two", lambda _: nodes.stores["two"].write([("payload", b"\1" * 16, b"left")], sync=True))
    found = await verify(nodes, "one")
    assert found.outcome == "equal"


async def test_what_comes_behind_much_that_is_no_difference_is_compared(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under load, where rows are looked at again, as many at once."""
    monkeypatch.setattr("tidemq.cluster.comparison.SUSPECTS_MAX", 3)
    await fill(nodes, "one", "two")
    left: list[Write] = [("payload", b"%016d" % number, b"left") for number in range(10)]
    nodes.ask("two", lambda _: nodes.stores["two"].write(left, sync=True))
    assert (await verify(nodes, "one")).outcome == "equal"
    writes = PLANTED["a node that was forgotten"][0](nodes)
    nodes.ask("two", lambda _: nodes.stores["two"].write(writes, sync=True))
    found = await verify(nodes, "one")
    assert (found.outcome, found.kind, found.looks) == ("different", "forgotten node", 1)
    ended = asyncio.Event()

    async def publish() -> None:
        async with client(nodes.brokers["one"], "bob") as bob:
            while not ended.is_set():
                await bob.publish("kept/1", b"again", qos=1, retain=True)

    task = asyncio.create_task(publish())
    under_load = await verify(nodes, "one")
    ended.set()
    await task
    assert (under_load.outcome, under_load.kind) == ("different", "forgotten node"), under_load


async def test_what_is_on_its_way_is_no_difference(nodes: Nodes) -> None:
    """While clients publish and acknowledge all the time. Nodes are hardly ever at one vector."""
    await fill(nodes, "one", "two")
    ended = asyncio.Event()

    async def publish() -> None:
        async with client(nodes.brokers["one"], "bob") as bob:
            while not ended.is_set():
                await bob.publish("a/1", b"more", qos=1)
                await bob.publish("kept/1", b"again", qos=1, retain=True)

    async def take() -> None:
        async with client(nodes.brokers["two"], "ann") as ann:
            while not ended.is_set():
                await anext(ann.messages)

    publishing, taking = (asyncio.create_task(each()) for each in (publish, take))
    found = [await verify(nodes, name) for name in ("one", "two", "one")]
    ended.set()
    await publishing
    taking.cancel()
    with suppress(asyncio.CancelledError):
        await taking
    assert [each.outcome for each in found] == ["equal"] * 3, found


async def test_a_difference_is_found_under_load(nodes: Nodes) -> None:
    await fill(nodes, "one", "two")
    writes = PLANTED["no entry"][0](nodes)
    nodes.ask("two", lambda _: nodes.stores["two"].write(writes, sync=True))
    ended = asyncio.Event()

    async def publish() -> None:
        async with client(nodes.brokers["one"], "bob") as bob:
            while not ended.is_set():
                await bob.publish("b", b"more", qos=1)

    task = asyncio.create_task(publish())
    found = await verify(nodes, "one")
    ended.set()
    await task
    assert (found.outcome, found.kind) == ("different", "queue entry"), found
    assert {each.has for each in found.nodes if each.name == "two"} == {"nothing"}


async def test_what_a_node_lacks_for_long_is_said_to_be_on_its_way(nodes: Nodes) -> None:
    await nodes.meet("one", "two", suspect_s=1000.0)
    one = nodes.brokers["one"]
    nodes.links.dropped |= {"records", "fetch"}
    nodes.links.copying = False
    async with client(one, "bob") as bob:
        bob.publish_nowait("kept", b"x", qos=1, retain=True)
        await until(lambda: nodes.count("one", "retained") == 1)
        found = await verify(nodes, "one", wait_s=0.5)
        assert found.outcome == "unknown"
        # bob's session, that it has a queue, and the retained message
        assert found.text.startswith("3 rows differ, perhaps by what is still on its way; the first is")
        nodes.links.dropped.clear()
        nodes.links.copying = True


async def test_a_node_that_does_not_know_the_question_is_named(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemq.cluster.verifying.SILENT_S", 0.2)
    monkeypatch.setattr("tidemq.cluster.verifying.AGAIN_S", 0.05)
    await nodes.meet("one", "two")
    del nodes.keepers["two"].exchange.acts[QUESTION]  # as in a version that is older
    found = await verify(nodes, "one")
    two = nodes.keepers["two"].node.incarnation
    text = f"two ({two:016x}) does not answer: its version may not know this command"
    assert (found.outcome, found.text) == ("unknown", text)
    refused = nodes.keepers["two"].exchange.troubles.all()
    assert [each.text for each in refused if "of the kind 'verify', unknown here" in each.text]
    assert (await verify(nodes, "two")).outcome == "equal"


async def test_members_that_are_away_are_left_out(nodes: Nodes) -> None:
    await nodes.meet("one", "two", "three", suspect_s=1.0)
    away = nodes.keepers["three"].node.incarnation
    await nodes.stop("three")
    keeper = nodes.keepers["one"]

    def is_dead() -> bool:
        figures = keeper.survey.figures(time.monotonic())
        return figures is not None and "nothing is heard of three" in figures.degraded

    await until(is_dead)
    found = await verify(nodes, "one")
    assert (found.outcome, found.left_out) == ("equal", [f"three ({away:016x})"])
    await nodes.stop("two")
    await until(
        lambda: (
            nodes.ask("one", lambda each: each.node.members.live(time.monotonic()))
            == [keeper.node.incarnation]
        )
    )
    with pytest.raises(ClusterError, match="no other node is alive"):
        await verify(nodes, "one")
