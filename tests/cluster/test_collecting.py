"""What ended sessions have left is removed a piece at a time, however much it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cluster.nodes import WrittenRows, begun, make_message, make_node

from tidemq.cluster import operations as ops
from tidemq.cluster.memory_rows import MemoryRows
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Owner, Stamp
from tidemq.cluster.rows import Entry, Rows
from tidemq.cluster.stored_rows import EntryLayout
from tidemq.cluster.vectors import Dot

ANN, BOB = Owner(SESSION, "ann"), Owner(SESSION, "bob")


@pytest.fixture(params=[MemoryRows, WrittenRows], ids=["memory", "stored"])
def node(request: pytest.FixtureRequest) -> Node:
    rows: Rows = request.param()
    return make_node(0, 1, rows)


def do(node: Node, *operations: ops.Operation) -> None:
    node.write(operations)
    node.rows.take_changes()
    node.synced(node.rows.vector)


def begin(node: Node, client: str) -> None:
    do(node, begun(client, node.stamp()))


def end(node: Node, client: str) -> None:
    session = node.rows.sessions.get(client, None)
    assert session is not None
    do(node, ops.EndSession(client, session.row.epoch))


def add(node: Node, owner: Owner, count: int) -> list[Stamp]:
    ids = [node.stamp() for _ in range(count)]
    for each in ids:
        do(node, ops.Payload(each, make_message("a/1", b"x")), ops.Add(owner, each, 0, 1, 1, 0))
    return ids


def left(node: Node, owner: Owner) -> list[Stamp]:
    return sorted(each for each, _ in node.rows.entries.of(owner))


def test_so_many_entries_are_looked_at_in_one_batch(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemq.cluster.stability.LOOKED_AT_ONCE", 10)
    begin(node, "ann")
    begin(node, "bob")
    add(node, ANN, 25)
    add(node, BOB, 5)
    end(node, "ann")
    end(node, "bob")
    begin(node, "ann")
    stays = add(node, ANN, 12)
    found = []
    for _ in range(6):
        node.tidy()
        node.rows.take_changes()
        found.append((len(left(node, ANN)), len(left(node, BOB))))
    assert found == [(27, 5), (17, 5), (12, 5), (12, 2), (12, 0), (12, 0)]
    assert left(node, ANN) == stays
    assert [each for each, _, _ in node.rows.ends.all()] == []
    assert sum(1 for _ in node.rows.payloads.all()) == len(stays)
    assert [each for each, _ in node.rows.queue(ANN)] == stays


def test_an_end_is_remembered_as_long_as_the_engine_has_what_has_ended(node: Node) -> None:
    """What it has added to that, and says late, would be the next session's."""
    begin(node, "ann")
    ids, ended = add(node, ANN, 3), node.rows.sessions.get("ann", None)
    assert ended is not None
    node.applier.home = {"ann": ended.row.epoch}
    end(node, "ann")
    begin(node, "ann")
    for _ in range(3):
        node.tidy()
        node.rows.take_changes()
    assert node.rows.ends.of("ann")
    assert left(node, ANN) == ids
    node.applier.home = {}
    for _ in range(2):
        node.tidy()
        node.rows.take_changes()
    assert node.rows.ends.of("ann") == []
    assert left(node, ANN) == []


def test_so_many_removals_are_looked_at_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store: they may be millions."""
    monkeypatch.setattr("tidemq.cluster.stability.REMOVALS_AT_ONCE", 10)
    node = make_node(0, 1, WrittenRows())
    begin(node, "ann")
    begin(node, "bob")
    shared = [(owner, node.stamp()) for owner in (ANN, BOB) for _ in range(12)]
    for owner, each in shared:
        do(node, ops.Payload(each, make_message("a/1", b"x")), ops.Add(owner, each, 0, 1, 1, 0, shared=True))
    for owner, each in shared:
        do(node, ops.Remove(owner, each))
    node.sharing.begin("ann")
    found = []
    for tidies in range(8):
        if tidies == 5:
            node.sharing.end("ann")
        node.tidy()
        node.rows.take_changes()
        removed = [owner for owner, _, _ in node.rows.removed.all()]
        found.append((removed.count(ANN), removed.count(BOB)))
    assert found == [(12, 12), (12, 4), (12, 0), (12, 0), (12, 0), (2, 0), (0, 0), (0, 0)], found


def test_a_removal_that_this_batch_has_changed_is_remembered(node: Node) -> None:
    """Another node has removed it as well, and that is not stable."""
    begin(node, "ann")
    (each,) = add(node, ANN, 1)
    node.rows.removed.put(ANN, each, (Dot(1, 1),))
    node.rows.take_changes()
    node.rows.removed.put(ANN, each, (Dot(1, 1), Dot(2, 1)))
    node.tidy()
    node.rows.take_changes()
    assert node.rows.removed.get(ANN, each) == (Dot(1, 1), Dot(2, 1))


def test_what_several_queues_have_stays_with_the_last(node: Node) -> None:
    begin(node, "ann")
    begin(node, "bob")
    shared = node.stamp()
    adds = (ops.Add(owner, shared, 0, 1, 1, 0) for owner in (ANN, BOB))
    do(node, ops.Payload(shared, make_message("a/1", b"x")), *adds)
    for client, count in (("ann", 1), ("bob", 0)):
        end(node, client)
        node.tidy()
        node.rows.take_changes()
        assert len(list(itertools.islice(node.rows.payloads.all(), 9))) == count


def gone_topics(node: Node) -> list[str]:
    return sorted(name for name, _, _ in node.rows.gone.all())


def test_so_many_tombstones_are_looked_at_in_one_batch(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retained messages that were removed; one of which is there again meanwhile."""
    monkeypatch.setattr("tidemq.cluster.stability.LOOKED_AT_ONCE", 10)
    topics = [f"t/{number:02}" for number in range(25)]
    for topic in topics:
        do(node, ops.Retain(topic, node.stamp(), b"x"), ops.Clear(topic, node.stamp()))
    node.stability.first = node.last + 1  # its records are not what this is about
    found = []
    for tidies in range(4):
        if tidies == 1:
            do(node, ops.Retain(topics[-1], node.stamp(), b"new"))
            node.stability.first = node.last + 1
        node.tidy()
        node.rows.take_changes()
        found.append(len(gone_topics(node)))
    assert found == [15, 4, 0, 0]
    retained = node.rows.retained.get(topics[-1], None)
    assert retained is not None
    assert retained.message == b"new"
    assert [topic for topic, _, _ in node.rows.retained.all()] == [topics[-1]]


def test_what_becomes_stable_while_others_are_looked_at_is_found_in_the_next_round(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemq.cluster.stability.LOOKED_AT_ONCE", 10)
    for number in range(25):
        topic = f"t/{number:02}"
        do(node, ops.Retain(topic, node.stamp(), b"x"), ops.Clear(topic, node.stamp()))
    stability, last = node.stability, node.last
    assert stability.collect({1: 0}, ())  # a round has begun, and nothing is stable
    assert stability.collect({1: last}, ())
    more = [stability.collect({1: last}, ()) for _ in range(6)]
    node.rows.take_changes()
    assert more == [True, True, False, False, False, False]
    assert gone_topics(node) == []


def test_so_many_records_of_the_own_log_are_deleted_in_one_batch(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemq.cluster.stability.LOOKED_AT_ONCE", 10)
    for _ in range(25):
        begin(node, "ann")
    found = []
    for _ in range(4):
        node.tidy()
        node.rows.take_changes()
        found.append((node.stability.first, len(node.rows.log.of(1))))
    assert found == [(11, 15), (21, 5), (26, 0), (26, 0)]


@pytest.mark.parametrize("fails_at", range(9))
def test_what_a_batch_that_failed_would_have_deleted_is_deleted_later(
    monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Removals, tombstones, an ended session, records: nothing of these stays until the node starts again."""
    for name in ("LOOKED_AT_ONCE", "REMOVALS_AT_ONCE"):
        monkeypatch.setattr(f"tidemq.cluster.stability.{name}", 10)
    rows = WrittenRows()
    node = make_node(0, 1, rows)
    for client, owner in (("ann", ANN), ("bob", BOB)):
        begin(node, client)
        shared = [node.stamp() for _ in range(12)]
        for each in shared:
            payload = ops.Payload(each, make_message("a/1", b"x"))
            do(node, payload, ops.Add(owner, each, 0, 1, 1, 0, shared=True))
        for each in shared:
            do(node, ops.Remove(owner, each))
        add(node, owner, 12)
        end(node, client)
    for number in range(12):
        do(node, ops.Clear(f"gone/{number}", node.stamp()))
    for tidies in range(40):
        node.tidy()
        if tidies == fails_at:
            rows.discard()
            node.tidy_again()
        else:
            rows.take_changes()
    kinds = (rows.removed, rows.gone, rows.retained, rows.ends, rows.entries, rows.payloads)
    assert [len(list(each.all())) for each in kinds] == [0] * len(kinds)
    assert len(rows.log.of(1)) == 0


def test_what_an_ended_session_has_left_is_not_looked_through_at_each_message_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stays as long as another node may not know of the end, as in a split."""
    rows = WrittenRows()
    node = make_node(0, 2, rows)
    begin(node, "ann")
    add(node, ANN, 3)
    end(node, "ann")
    begin(node, "ann")
    assert len(rows.owners.numbers(ANN)) == 2
    looked: list[Owner] = []
    placed = EntryLayout.placed

    def looks(layout: EntryLayout, owner: Owner) -> Iterator[tuple[Stamp, int, list[Dot]]]:
        looked.append(owner)
        return placed(layout, owner)

    def reads(*_: object) -> Iterator[tuple[Stamp, Entry]]:
        raise AssertionError("there may be a hundred thousand, and all that is asked is where they are")

    monkeypatch.setattr(EntryLayout, "placed", looks)
    for each in ("load", "load_each"):
        monkeypatch.setattr(EntryLayout, each, reads)
    session = rows.sessions.get("ann", None)
    assert session is not None
    do(node, ops.Receive("ann", session.row.epoch, 1 << 16 | 7))
    assert looked == []
    end(node, "ann")
    assert set(looked) == {ANN}


def test_the_ends_of_a_client_are_those_of_now_also_where_they_were_looked_at() -> None:
    rows = WrittenRows()
    node = make_node(0, 2, rows)
    begin(node, "ann")
    end(node, "ann")
    [(dot, known)] = rows.ends.of("ann")
    changed = replace(known, known={1: 7})
    rows.ends.put("ann", dot, changed)
    assert rows.ends.of("ann") == [(dot, changed)]
    rows.discard()
    assert rows.ends.of("ann") == [(dot, known)]
    rows.ends.put("ann", dot, None)
    assert rows.ends.of("ann") == []


def test_how_large_the_own_log_is_takes_no_more_than_a_record_in_memory() -> None:
    rows = WrittenRows()
    node = make_node(0, 2, rows)
    begin(node, "ann")
    add(node, ANN, 3)
    sizes = [(number, len(text)) for number, text in sorted(rows.log.of(node.incarnation))]
    found = iter(rows.log_sizes(node.incarnation))
    assert next(found) == sizes[0]  # read as it is asked for
    assert list(found) == sizes[1:]
