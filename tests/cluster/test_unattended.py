"""Sessions that were taken from a node that is not heard: when their time begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster.nodes import begun, make_node, say

from tidemq.cluster import operations as ops
from tidemq.cluster import unattended
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Owner, PutSession
from tidemq.cluster.unattended import Unattended


class Engine:
    """What the sessions are told of. Of those in `here` it has a queue."""

    def __init__(self) -> None:
        self.here: dict[str, int] = {}
        self.let: list[int] = []

    def number(self, owner: Owner) -> int:
        return self.here.get(owner.name, 0)

    def let_expire(self, queue: int) -> None:
        self.let.append(queue)


def take_over(two: Node, rows: list[PutSession], engine: Engine) -> Unattended:
    """Sessions of node 1 go on at node 2."""
    found: Any = engine
    taken = Unattended(two, found, found)
    for number, row in enumerate(rows, 1):
        two.write([replace(row, epoch=two.stamp(), home=2, begins=False)])
        taken.add(row)
        engine.here[row.client] = number
    return taken


def settle(node: Node) -> None:
    node.rows.take_changes()
    node.synced(node.rows.vector)


def test_the_time_of_those_that_are_still_here_begins_when_the_node_has_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unattended, "AT_ONCE", 2)
    one, two = make_node(0, 2), make_node(1, 2)
    engine, rows = Engine(), [begun(each, one.stamp()) for each in ("ann", "bob", "cid", "dan")]
    for row in rows:
        two.receive(one.write([row]).encoded)
    taken = take_over(two, rows, engine)
    taken.advance()
    assert not engine.let
    for number in range(1, len(rows) + 1):
        text = two.record(2, number)
        assert text is not None
        one.receive(text)
    del engine.here["bob"]
    for node in (one, two):
        settle(node)
    say(one, [two])
    taken.advance()
    assert engine.let == [1]
    taken.advance()
    assert engine.let == [1, 3, 4]
    taken.advance()
    assert engine.let == [1, 3, 4]


def test_the_time_begins_when_the_node_is_a_member_no_more() -> None:
    one, two = make_node(0, 2), make_node(1, 2)
    engine, rows = Engine(), [begun("ann", one.stamp())]
    two.receive(one.write(rows).encoded)
    taken = take_over(two, rows, engine)
    taken.advance()
    assert not engine.let
    two.write([ops.Strike(1, "one")])
    taken.advance()
    assert engine.let == [1]


def test_only_a_client_that_was_connected_to_another_member_may_be_there() -> None:
    two = make_node(1, 2)
    taken: Any = Unattended(two, None, None)  # type: ignore[arg-type]
    row = begun("ann", make_node(0, 2).stamp())
    assert taken.may_be_elsewhere(row)
    assert not taken.may_be_elsewhere(replace(row, ends_at_ms=5))
    assert not taken.may_be_elsewhere(replace(row, connected=two.stamp()))
    two.write([ops.Strike(1, "one")])
    assert not taken.may_be_elsewhere(row)
