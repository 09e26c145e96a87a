"""What several nodes did without knowing of each other is the same on all of them once they know."""

from __future__ import annotations

import random

import pytest
from cluster.nodes import Actor, make_node, say

from tidemq.cluster.node import Node
from tidemq.cluster.operations import Owner, Stamp

STEPS = 160


def exchange(nodes: list[Node], records: dict[int, list[bytes]]) -> None:
    """Everybody gets everything."""
    for node in nodes:
        for of_one in records.values():
            for text in of_one:
                node.receive(text)
        node.rows.take_changes()
        node.synced(node.rows.vector)


@pytest.mark.parametrize("seed", range(300))
def test_nodes_agree_whatever_the_order(seed: int) -> None:
    choose = random.Random(seed)
    count = choose.randint(2, 4)
    nodes = [make_node(index, count) for index in range(count)]
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
    exchange(nodes, records)
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
        references = sum(payload.references for _, _, payload in rows.payloads.all())
        assert references == len(list(rows.entries.all()))
