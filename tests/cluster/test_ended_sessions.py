"""What went with the end of a session, on nodes that have heard of it and on those that have not."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from cluster.nodes import begun, make_node, say

from tidemq.cluster import applying
from tidemq.cluster import operations as ops
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Operation, Owner, PutSession, Stamp
from tidemq.cluster.records import Record
from tidemq.cluster.sharing import LATE_S


def end_session(node: Node, began: PutSession, how: str) -> list[Operation]:
    """A session ends, and its client begins another."""
    begun = replace(began, epoch=(epoch := node.stamp()), connected=epoch)
    if how == "expires":
        return [ops.EndSession("ann", began.connected), begun]
    return [replace(begun, replaces=True)]


@pytest.mark.parametrize("how", ["expires", "is replaced"])
def test_what_a_node_adds_that_does_not_know_of_the_end_of_a_session_is_not_for_the_next(how: str) -> None:
    """Until it knows, in whatever order others hear of it. What it adds from then on is for the next one."""
    one, two, three = (make_node(index, 3) for index in range(3))
    owner = Owner(SESSION, "ann")

    def add(node: Node) -> tuple[Stamp, list[Operation]]:
        message_id = node.stamp()
        return message_id, [
            ops.Payload(message_id, b"m"),
            ops.Add(owner, message_id, 0, 1, 1, 0, shared=True),
            ops.Subscribe("ann", f"f/{message_id.clock}", node.stamp(), 1, 0),
        ]

    epoch = one.stamp()
    first = one.write([began := begun("ann", epoch)])
    two.receive(first.encoded)
    three.receive(first.encoded)
    early, operations = add(two)
    of_two = [two.write(operations)]
    of_one = [one.write([each]) for each in end_session(one, began, how)]
    for node in (one, three):
        for record in of_one if node is three else ():
            node.receive(record.encoded)
        node.applier.forget_changes()
        node.receive(of_two[0].encoded)
        assert not node.rows.queue(owner)
        assert not node.rows.filters("ann")
        assert not node.applier.added
        assert node.applier.counts["cluster_added_after_end"] == 1
    assert [each for each, _ in two.rows.queue(owner)] == [early]
    for record in of_one:
        two.receive(record.encoded)
    assert not two.rows.queue(owner)
    for node in (one, three):
        node.applier.forget_changes()
    late, operations = add(two)
    record = two.write(operations)
    for node in (one, three):
        node.receive(record.encoded)
        assert node.applier.added == [(owner, late)]
    nodes = [one, two, three]
    for node in nodes:
        assert [each for each, _ in node.rows.queue(owner)] == [late]
        assert [each for each, _ in node.rows.filters("ann")] == [f"f/{late.clock}"]
    digest = one.rows.digest()
    for node in nodes:
        node.rows.take_changes()
        node.synced(node.rows.vector)
    for node in nodes * 2:
        say(node, [each for each in nodes if each is not node])
    for node in nodes:
        assert not list(node.rows.ends.all())
        assert len(list(node.rows.entries.all())) == 1
        assert node.rows.digest() == digest


def test_what_a_node_adds_when_no_session_has_come_after_the_end_is_for_nobody() -> None:
    """As what was under way when it heard of the end. One has deleted it, and the end, when two others begin
    a session, neither knowing of the other.
    """
    one, two, three = nodes = [make_node(index, 3) for index in range(3)]
    owner = Owner(SESSION, "ann")
    records = [one.write([began := begun("ann", one.stamp())])]
    records.append(one.write([ops.EndSession("ann", began.connected)]))
    two.receive(records[0].encoded)
    two.receive(records[1].encoded)
    message_id = two.stamp()
    added = ops.Add(owner, message_id, 0, 1, 1, 0, shared=True)
    records.append(two.write([ops.Payload(message_id, b"m"), added]))
    one.receive(records[2].encoded)
    for record in records:
        three.receive(record.encoded)
    for node in nodes:
        assert not node.rows.queue(owner)
        node.synced(node.rows.vector)
    for node in (one, two) * 2:
        say(node, [each for each in nodes if each is not node])
    assert not list(three.rows.ends.all())
    assert not list(three.rows.entries.all())
    assert list(one.rows.ends.all())
    connects = [Stamp(two.stamp().clock + number, 2 + number % 2) for number in range(4)]
    sides: dict[int, list[Record]] = {2: [], 3: []}
    for number, epoch in enumerate(connects):  # the client goes to and fro
        node = (two, three)[number % 2]
        row = replace(begun("ann", epoch, node.incarnation), begins=number < 2)
        sides[node.incarnation].append(node.write([row]))
    for node, others in ((one, [*sides[2], *sides[3]]), (two, sides[3]), (three, sides[2])):
        for record in others:
            node.receive(record.encoded)
    for node in nodes:
        assert not node.rows.queue(owner)
        assert node.rows.digest() == one.rows.digest()


def test_what_a_node_adds_for_a_session_that_only_it_knows_is_for_that_of_the_last_connect() -> None:
    """Who began that one knew of none, and so has ended none."""
    one, two = make_node(0, 2), make_node(1, 2)
    owner, message_id = Owner(SESSION, "ann"), one.stamp()
    records = [one.write([begun("ann", one.stamp())])]
    operations: list[Operation] = [ops.Payload(message_id, b"m")]
    operations.append(ops.Add(owner, message_id, 0, 1, 1, 0, shared=True))
    records.append(one.write(operations))
    came = two.write([begun("ann", Stamp(one.stamp().clock + 1, 2), 2)])
    one.receive(came.encoded)
    for record in records:
        two.receive(record.encoded)
    for node in (one, two):
        assert [each for each, _ in node.rows.queue(owner)] == [message_id]
        session = node.rows.sessions.get("ann", None)
        assert session is not None
        assert session.row.home == 2


def test_what_came_for_a_session_that_went_on_elsewhere_is_shown_when_its_end_proves_void() -> None:
    one, two = make_node(0, 2), make_node(1, 2)
    owner, message_id = Owner(SESSION, "ann"), two.stamp()
    first = one.write([began := begun("ann", one.stamp())])
    two.receive(first.encoded)
    end = one.write([ops.EndSession("ann", began.connected)])
    operations: list[Operation] = [ops.Payload(message_id, b"m")]
    operations.append(ops.Add(owner, message_id, 0, 1, 1, 0, shared=True))
    added = two.write(operations)
    epoch = two.stamp()
    came = two.write([replace(began, epoch=epoch, connected=epoch, home=2, begins=False)])
    one.receive(added.encoded)
    assert not one.rows.queue(owner)
    one.receive(came.encoded)
    two.receive(end.encoded)
    for node in (one, two):
        assert [each for each, _ in node.rows.queue(owner)] == [message_id]


@pytest.mark.parametrize("is_here", [True, False])
def test_who_has_begun_another_session_is_told_what_its_queue_has_again(is_here: bool) -> None:
    """If its engine has that one. What was added for it since then it has."""
    one, two = make_node(0, 2), make_node(1, 2)
    owner = Owner(SESSION, "ann")
    old, new = one.stamp(), one.stamp()
    adds = [ops.Add(owner, each, 0, 1, 1, 0, shared=True) for each in (old, new)]
    subscribe = [ops.Subscribe("ann", text, one.stamp(), 1, 0) for text in ("f/old", "f/new")]
    first = one.write([began := begun("ann", one.stamp()), ops.Payload(old, b"m"), adds[0], subscribe[0]])
    two.receive(first.encoded)
    epoch = one.stamp()
    one.write([replace(began, epoch=epoch, connected=epoch, replaces=True)])
    one.write([ops.Payload(new, b"m"), adds[1], subscribe[1]])
    one.applier.home = {"ann": epoch} if is_here else {}
    later = two.stamp()
    came = two.write([replace(began, epoch=later, connected=later, home=2, begins=False)])
    one.receive(came.encoded)
    assert [each for each, _ in one.rows.queue(owner)] == [old, new]
    assert one.applier.added == ([(owner, old)] if is_here else [])
    assert one.applier.subscriptions == ([("ann", "f/old")] if is_here else [])


@pytest.mark.parametrize("ends", [False, True])
def test_what_a_session_gets_in_the_batch_in_which_it_begins_is_its_own(ends: bool) -> None:
    """Where there are rows of one before it, which has ended, or ends in that batch."""
    here, there = make_node(0, 2), make_node(1, 2)
    owner, old = Owner(SESSION, "ann"), Stamp(1, 1)

    def begin(epoch: Stamp) -> PutSession:
        return PutSession("ann", epoch, 1, True, 0, 60, 0, 0, 0, -1, connected=epoch)

    def message(clock: int) -> list[ops.Operation]:
        return [ops.Payload(Stamp(clock, 1), b"m"), ops.Add(owner, Stamp(clock, 1), 0, 1, 9, 0, False)]

    end = ops.EndSession("ann", old)
    first: list[ops.Operation] = [begin(old), ops.Subscribe("ann", "a", Stamp(2, 1), 1, 0), *message(3)]
    second: list[ops.Operation] = [
        begin(Stamp(4, 1)),
        ops.Subscribe("ann", "b", Stamp(5, 1), 1, 0),
        *message(6),
    ]
    batches: list[list[ops.Operation]] = [first, [end, *second]] if ends else [first, [end], second]
    for batch in batches:
        record = here.write(batch)
        here.rows.take_changes()
        here.synced(here.rows.vector)
        there.receive(record.encoded)
    assert here.rows.digest() == there.rows.digest()
    for node in (here, there):
        assert [each for each, _ in node.rows.queue(owner)] == [Stamp(6, 1)]
        assert [each for each, _ in node.rows.filters("ann")] == ["b"]


def test_who_has_ended_lately_is_remembered_and_no_more_than_so_many_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages that have named a session may be stored for so long after it has ended."""
    monkeypatch.setattr(applying, "ENDED_MAX", 3)
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    node = make_node(0, 1)
    for number in range(5):
        epoch = node.stamp()
        node.write([begun(f"client {number}", epoch)])
        node.write([ops.EndSession(f"client {number}", epoch)])
    assert list(node.applier.ended) == [f"client {number}" for number in range(5)], "all of them lately"
    now[0] += LATE_S + 1
    epoch = node.stamp()
    node.write([begun("client 0", epoch)])
    node.write([ops.EndSession("client 0", epoch)])
    assert list(node.applier.ended) == ["client 3", "client 4", "client 0"]
