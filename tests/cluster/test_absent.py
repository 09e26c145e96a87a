"""Nodes that are absent for too long: they are struck off, and come back with what only they had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster.nodes import START_NS, begun, make_message, make_node
from cluster.test_host import Cluster, client, publish, receive
from cluster.test_membership import LATE_S, membership_of, three_nodes, written
from cluster.test_status import run, states
from waiting import until

from tidemq.broker import Broker
from tidemq.cluster import operations as ops
from tidemq.cluster import snapshots
from tidemq.cluster.membership import SAID_S, SILENT_S, Patience, struck_word
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Clear, Owner, Stamp, Strike
from tidemq.cluster.rejoining import begin_anew_if_due, note_struck_off
from tidemq.cluster.snapshots import remove_rows
from tidemq.cluster.stored_rows import StoredRows
from tidemq.errors import ClusterError, StoreError
from tidemq.store import Write
from tidemq.store.memory import MemoryStore
from tidemq.testing.ports import free_port

WEEK_S = 604_800.0
ANN = Owner(SESSION, "ann")


# --- who is struck off ---------------------------------------------------------------------------------


def logged(node: Node) -> None:
    """Something that the others have not heard of."""
    written(node, Clear("t", node.stamp()))


def later(node: Node, seconds: float) -> None:
    node.clock.raise_to(START_NS + int(seconds * 1e9))


@pytest.mark.parametrize(
    ("age_s", "bytes_max", "settled", "struck"),
    [
        (WEEK_S + 1, 1 << 30, {2, 3}, [2, 3]),  # both have not been heard since the log began
        (WEEK_S - 1, 1 << 30, {2, 3}, []),
        (0, 10, {2, 3}, [2, 3]),
        (0, 10, {3}, [3]),  # sessions of the other are on their way
        (0, 10, set(), []),
    ],
)
def test_who_holds_up_an_old_or_a_large_log_is_struck_off(
    age_s: float, bytes_max: int, settled: set[int], struck: list[int]
) -> None:
    one, _, _ = three_nodes()
    logged(one)
    later(one, age_s)
    membership, _ = membership_of(one, Patience(WEEK_S, bytes_max))
    membership.strike_off(settled, LATE_S)
    assert [each for each, _, _ in one.rows.struck.all()] == struck
    assert membership.counts["cluster_members_struck_off"] == len(struck)


def test_nobody_is_struck_off_who_is_there_or_is_heard_or_lacks_nothing() -> None:
    one, two, three = three_nodes()
    text = one.write([Clear("t", one.stamp())]).encoded
    one.rows.take_changes()
    one.synced(one.rows.vector)
    later(one, WEEK_S + 1)
    membership, _ = membership_of(one, Patience())
    membership.strike_off({2, 3}, 0.0)  # both are there
    two.receive(text)
    two.synced(two.rows.vector)
    one.hear(two.beat(LATE_S, START_NS), 0.0)
    one.stability.take_in()
    two.hear(three.beat(LATE_S, START_NS), LATE_S)
    one.hear(two.beat(LATE_S, START_NS), LATE_S)
    membership.strike_off({2, 3}, LATE_S + 1)  # the second hears the third
    assert [each for each, _, _ in one.rows.struck.all()] == []
    membership.strike_off({2, 3}, 3 * LATE_S)
    assert [each for each, _, _ in one.rows.struck.all()] == [3]  # the second has the log


# --- who begins anew -----------------------------------------------------------------------------------


def test_a_word_that_is_none_is_refused() -> None:
    one, _, _ = three_nodes()
    membership, _ = membership_of(one)
    with pytest.raises(ClusterError):
        membership.hear_struck(2, b"", 0.0)
    assert membership.verdict == ""


def parted(*sides: tuple[int, ...]) -> list[Node]:
    """Nodes 1, 2, 3… of which each side has struck off the other."""
    count = sum(map(len, sides))
    nodes = [make_node(index, count) for index in range(count)]
    for side in sides:
        for number in side:
            others = [each + 1 for each in range(count) if each + 1 not in side]
            written(nodes[number - 1], *(Strike(each, f"n{each}") for each in others))
    return nodes


@pytest.mark.parametrize(
    ("sides", "anew"),
    [
        (((1,), (2,)), [2]),
        (((1,), (2, 3)), [1]),
        (((2, 4), (1, 3)), [2, 4]),
        (((1, 2, 5), (3, 4)), [3, 4]),
    ],
)
def test_of_two_sides_that_have_struck_each_other_off_one_begins_anew(
    sides: tuple[tuple[int, ...], ...], anew: list[int]
) -> None:
    nodes = parted(*sides)
    found = []
    for side, others in (sides, sides[::-1]):
        for number in side:
            membership, _ = membership_of(nodes[number - 1])
            words = [(each, struck_word(nodes[each - 1])) for each in others]
            for at in (0.0, 0.9, 0.9 + 2 * SILENT_S, SAID_S + 0.5):  # with a pause in it
                for source, word in words:
                    membership.hear_struck(source, word, at)
            assert membership.verdict == ""  # it is not said for long enough
            for step in range(20):
                for source, word in words:
                    membership.hear_struck(source, word, 10.0 + step * 0.3)
            if membership.verdict:
                found.append(number)
    assert sorted(found) == anew


# --- what is put aside ---------------------------------------------------------------------------------


class Stored:
    """A node over a store, whose batches are written."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        numbers = iter(range(1, 100))
        self.rows = StoredRows(self.store, lambda: next(numbers))
        self.node = make_node(0, 2, self.rows)

    def do(self, *operations: ops.Operation) -> None:
        self.node.write(list(operations))
        self.store.write(self.rows.take_changes(), sync=True)
        self.rows.confirm()

    def add(self, text: bytes) -> Stamp:
        message_id = self.node.stamp()
        self.do(
            ops.Payload(message_id, make_message("a/1", text)), ops.Add(ANN, message_id, 0, 1, len(text), 0)
        )
        return message_id


def test_only_what_nobody_else_has_is_put_aside_and_all_else_is_to_go() -> None:
    stored = Stored()
    stored.do(begun("ann", stored.node.stamp()))
    stored.add(b"known")
    known = stored.rows.vector
    kept, gone = stored.add(b"kept"), stored.add(b"gone")
    stored.do(ops.Remove(ANN, gone))
    note_struck_off(stored.store, ["10.0.0.1:4222"], known)
    assert begin_anew_if_due(stored.store) == ["10.0.0.1:4222"]
    aside = [key for key, _ in stored.store.scan("cluster", b"v")]
    assert [key[1:17] for key in aside] == [kept.clock.to_bytes(8) + kept.incarnation.to_bytes(8)]
    assert begin_anew_if_due(stored.store) == ["10.0.0.1:4222"]  # as it has not got any further
    assert [key for key, _ in stored.store.scan("cluster", b"v")] == aside
    assert stored.store.get("cluster", b"w") == b""  # the rest is removed at the start


def test_what_is_removed_is_removed_in_pieces_and_the_next_start_goes_on_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be any number of rows, of which no more than a piece may be in memory."""
    stored = Stored()
    stored.do(begun("ann", stored.node.stamp()))
    for number in range(20):
        stored.add(b"%d" % number)
    note_struck_off(stored.store, ["10.0.0.1:4222"], {})
    monkeypatch.setattr(snapshots, "ROWS_AT_ONCE", 3)
    write, left = stored.store.write, 10
    sizes = []

    def fails_later(batch: Sequence[Write], *, sync: bool) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise StoreError("it cannot be written")
        sizes.append(len(batch))
        write(batch, sync=sync)

    monkeypatch.setattr(stored.store, "write", fails_later)
    with pytest.raises(StoreError):
        begin_anew_if_due(stored.store)
    assert begin_anew_if_due(stored.store) == ["10.0.0.1:4222"]
    remove_rows(stored.store)
    assert max(sizes) <= 7  # the last words of the old node are one batch
    assert len(list(stored.store.scan("cluster", b"v"))) == 20  # put aside
    for family in ("log", "queue", "payload", "session", "expiry"):
        assert list(stored.store.scan(family)) == []


# --- real nodes ----------------------------------------------------------------------------------------


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        found = Cluster(tmp_path, stack)
        found.suspect_s = 2.0
        yield found


async def leave_subscription(broker: Broker, name: str, topic_filter: str) -> None:
    """A session whose client is away."""
    async with client(broker, name) as some:
        await some.subscribe(topic_filter, qos=1)


async def said(cluster: Cluster, name: str) -> set[str]:
    """How the lines begin that say what a node has of subscriptions and retained messages."""
    keeper = cluster.hosts[name].keeper
    assert keeper is not None
    lines = await asyncio.wrap_future(keeper.ask(lambda: list(keeper.rows.lines())))
    words = {"retained": 2, "subscription": 3}
    split = [line.split() for line in lines]
    return {" ".join(each[: words[each[0]]]) for each in split if each[0] in words}


async def publish_all(broker: Broker, topic: str, *payloads: bytes) -> None:
    async with client(broker, "bob") as bob:
        for each in payloads:
            await publish(bob, each, topic)


@pytest.mark.parametrize(
    ("settings", "message_bytes"),
    [({"cluster_absent_s": 2.0}, 1), ({"cluster_log_bytes_max": 65_536}, 40_000)],
    ids=["for long", "with a large log"],
)
async def test_a_node_that_was_struck_off_brings_the_messages_that_only_it_has(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message_bytes: int
) -> None:
    monkeypatch.setattr("tidemq.cluster.host.ALONE_S", 0.5)
    one = await cluster.start("one")
    two = await cluster.start("two", **settings)
    await until(lambda: cluster.reached("one") == cluster.reached("two") == 1)
    await leave_subscription(one, "ann", "a/#")
    await leave_subscription(one, "cem", "$share/g/s/#")
    await publish_all(one, "a/1", b"both")
    await two.stop()
    await leave_subscription(one, "dan", "a/#")  # of whom nobody else knows
    await publish_all(one, "a/1", b"1", b"2", b"3")
    await publish_all(one, "s/1", b"shared")
    await leave_subscription(one, "ann", "c/#")
    async with client(one, "bob") as bob:
        await bob.publish("r", b"only here", qos=1, retain=True)
    assert {"retained r", "subscription ann c/#"} <= await said(cluster, "one")
    await one.stop()
    two = await cluster.start("two", admin_port=free_port(), **settings)
    async with client(two, "ann") as ann:
        assert await receive(ann) == b"both"

        async def is_alone() -> bool:
            await publish_all(two, "a/1", b"later".ljust(message_bytes))
            await asyncio.wait_for(receive(ann), 5)
            return set(await states(two)) == {"two"}

        await until(is_alone, "it is struck off", poll_s=0.5)
    assert two.counters()["cluster_members_struck_off"] == 1
    with pytest.raises(ClusterError, match="begins anew"):
        await cluster.start("one")
    one = await cluster.start("one")
    await until(lambda: one.counters()["cluster_entries_returned"] == 4, "what only it had is back")
    assert one.counters()["cluster_entries_without_session"] == 3  # for dan
    async with client(one, "ann") as ann:
        found: list[bytes] = []
        while len(found) < 3:
            payload = await receive(ann)
            found += [] if payload.startswith(b"later") else [payload]  # some were not acknowledged
        assert found == [b"1", b"2", b"3"]
    async with client(two, "cem") as cem:
        assert await receive(cem) == b"shared"
    code, output = await run(two, "verify")
    assert (code, "equal" in output) == (0, True), output
    lines = await said(cluster, "one")
    assert "subscription ann a/#" in lines
    assert not {"retained r", "subscription ann c/#"} & lines  # all but messages is as the others have it
    await one.stop()
    one = await cluster.start("one")  # and all of it is done once
    assert one.counters()["cluster_entries_returned"] == 0
