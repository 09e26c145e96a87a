"""What several nodes did without knowing of each other is the same on all of them once they know."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from cluster.nodes import Actor, WrittenRows, begun, make_message, make_node, say

from tidemq.cluster import operations as ops
from tidemq.cluster.memory_rows import MemoryRows
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Operation, Owner, Stamp
from tidemq.cluster.rows import Rows
from tidemq.cluster.sessions import connect
from tidemq.cluster.stored_rows import id_bytes
from tidemq.store.rows import IDLE, PARSERS, RELEASED, parse_queue, parse_session

STEPS = 160


def exchange(nodes: list[Node], records: dict[int, list[bytes]]) -> None:
    """Everybody gets everything."""
    for node in nodes:
        for of_one in records.values():
            for text in of_one:
                node.receive(text)
        node.rows.take_changes()
        node.synced(node.rows.vector)


def check_rows(rows: Rows) -> None:
    """What the engine reads in a store is what the rows say."""
    if not isinstance(rows, WrittenRows):
        return
    store = rows.store
    for family, parse in PARSERS.items():
        for key, value in store.scan(family):
            parse(key, value)
    there = {parse_queue(key, value).id for key, value in store.scan("queue")}
    assert there == {id_bytes(message_id) for _, message_id, _ in rows.entries.all()}
    assert there == {key for key, _ in store.scan("payload")}
    for key, value in store.scan("reference"):
        assert key in there
        assert int.from_bytes(value) > 1
    for key, value in store.scan("session"):
        session = parse_session(key, value)
        found = [parse_queue(*each) for each in store.scan("queue", session.queue.to_bytes(8))]
        waiting = [each.id for each in found if each.status == IDLE]
        flying = [
            (each.id, each.sequence, bool(each.flags & RELEASED)) for each in found if each.status != IDLE
        ]
        queue = rows.queue(Owner(SESSION, session.client_id))
        assert waiting == [id_bytes(message_id) for message_id, entry in queue if entry.sequence < 0]
        assert flying == [
            (id_bytes(message_id), entry.sequence, entry.released)
            for message_id, entry in queue
            if entry.sequence >= 0
        ]


def live_apart(nodes: list[Node], choose: random.Random) -> dict[int, list[bytes]]:
    """Nodes do something, and hear some of what others did; gives the records of each."""
    published: list[tuple[Owner, Stamp]] = []
    actors = [Actor(node, choose, published) for node in nodes]
    records: dict[int, list[bytes]] = {node.incarnation: [] for node in nodes}
    apart = choose.random()
    for _ in range(STEPS):
        actor = choose.choice(actors)
        node = actor.node
        if choose.random() < apart:
            record = actor.act()
            if record:
                records[node.incarnation].append(record.encoded)
        elif choose.random() < 0.8:
            other = choose.choice([each for each in nodes if each is not node])
            applied = node.rows.vector.get(other.incarnation, 0)
            for text in records[other.incarnation][applied : applied + choose.randint(1, 30)]:
                node.receive(text)
            node.rows.take_changes()
            node.synced(node.rows.vector)
        else:
            say(node, [each for each in nodes if each is not node])
    return records


@pytest.mark.parametrize("seed", range(300))
def test_nodes_agree_whatever_the_order(seed: int) -> None:
    choose = random.Random(seed)
    count = choose.randint(2, 4)
    stored = [WrittenRows() for _ in range(seed % 3)]  # the others have them in memory
    nodes = [make_node(index, count, rows) for index, rows in enumerate([*stored, *[None] * count][:count])]
    homes = [node.incarnation for node in nodes]
    assert all(
        node.rows.count_at(home) == 0 for node in nodes for home in homes
    )  # from now on they are counted
    exchange(nodes, live_apart(nodes, choose))
    for rows in (node.rows for node in nodes):
        assert [rows.count_at(home) for home in homes] == [Rows.count_at(rows, home) for home in homes]
    assert len({node.rows.digest() for node in nodes}) == 1, [list(node.rows.lines()) for node in nodes]
    for _ in range(2):
        for node in nodes:
            say(node, [each for each in nodes if each is not node])
    assert len({node.rows.digest() for node in nodes}) == 1
    for node in nodes:
        rows = node.rows
        assert not list(rows.removed.all())
        assert not list(rows.ends.all())
        assert not list(rows.gone.all())
        assert not list(rows.log.all())
        check_rows(rows)
        references = sum(payload.references for _, _, payload in rows.payloads.all())
        assert references == len(list(rows.entries.all()))


@pytest.mark.parametrize("make_rows", [MemoryRows, WrittenRows])
def test_what_a_session_has_received_and_its_will_are_those_of_the_side_that_goes_on(
    make_rows: Callable[[], Rows],
) -> None:
    """Whole, never of both: an identifier that was released and used again would swallow a message."""
    one, two = (make_node(index, 2, make_rows()) for index in range(2))
    records: dict[int, list[bytes]] = {1: [], 2: []}

    def write(node: Node, *operations: Operation) -> None:
        records[node.incarnation].append(node.write(list(operations)).encoded)
        node.rows.take_changes()
        node.synced(node.rows.vector)

    mark = {packet_id: 1 << 16 | packet_id for packet_id in (3, 4, 5, 6)}
    first = one.stamp()
    write(one, replace(begun("ann", first), will=make_message("w", b"first"), will_delay_s=1))
    write(one, ops.Receive("ann", first, mark[3]), ops.Receive("ann", first, mark[4]))
    exchange([one, two], records)
    write(one, ops.Forget("ann", first, 3), ops.Receive("ann", first, mark[5]))  # on one side
    then = two.stamp()
    assert then > first
    comes = replace(begun("ann", then, 2), begins=False, will=make_message("w", b"then"), will_delay_s=2)
    write(two, connect(two.rows, comes, clean=False, asked=False))
    write(two, ops.Forget("ann", then, 4), ops.Receive("ann", then, mark[6]))
    exchange([one, two], records)
    for node in (one, two):
        session = node.rows.sessions.get("ann", None)
        assert session is not None
        row = session.row
        assert (row.home, row.received) == (2, (mark[3], mark[6]))
        assert (row.will, row.will_delay_s) == (comes.will, 2)
