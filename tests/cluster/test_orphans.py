"""When a dead node is not waited for any more, as one node decides it, without an engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cluster.nodes import START_NS, begun, make_node

from tidemq.cluster import orphans as orphans_module
from tidemq.cluster.forms import encode
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Stamp, Strike
from tidemq.cluster.orphans import FIRST_S, LACKS_S, LOOK_S, Orphans
from tidemq.cluster.rows import Rows, Session
from tidemq.cluster.stored_rows import StoredRows
from tidemq.cluster.vectors import Dot
from tidemq.store.memory import MemoryStore


class Links:
    """In the place of `Links`; others know at once what they are told."""

    def __init__(self) -> None:
        self.taken: list[int] = []  # of whom it was said that nobody waits for them
        self.parted: list[int] = []

    def apart(self) -> list[int]:
        return self.parted

    def announce(self) -> int:
        return 1

    def announced(self, _number: int) -> set[int]:
        return set()

    def refuse(self, _node: int) -> None:
        raise AssertionError("no session leaves")

    def ask_for_last(self, _node: int) -> None:
        """The test answers."""

    def taken_over(self, node: int) -> None:
        self.taken.append(node)

    def broadcast(self, _kind: str, _body: bytes) -> None:
        """Nobody hears it."""


class Searching:
    """Node two, which hears three, has never heard one, and has been told that there are no copies of it."""

    def __init__(self) -> None:
        self.one, self.two, self.three = (make_node(index, 3) for index in range(3))
        self.brought: list[str] = []
        self.links = Links()
        links: Any = self.links
        self.orphans = Orphans(self.two, links, self.brought.append, lambda: False, lambda: False, 0.0)
        self.orphans.hear_last(1, 0)
        self._now = FIRST_S + 1.0

    def look(self, seconds: float = LOOK_S + 0.1) -> None:
        for _ in range(2):
            self._now += seconds
            for node, other in ((self.two, self.three), (self.three, self.two)):
                other.hear(replace(node.beat(self._now, START_NS), wall_ns=START_NS), self._now)
            self.advance()

    def advance(self) -> None:
        self.orphans.advance(self._now, pauses=False)

    def hear_record_of(self, client: str) -> None:
        """By which its session is at home on one."""
        self.two.receive(self.one.write([begun(client, self.one.stamp())]).encoded)

    def take(self, client: str) -> None:
        self.two.write([replace(begun(client, self.two.stamp(), 2), begins=False)])


@pytest.mark.parametrize("by", ["another node", "its own nats-server"])
def test_a_dead_node_is_waited_for_until_all_that_it_did_is_known(by: str) -> None:
    """It has taken sessions of which the next in the ring has not heard: that one would find none there, and
    what is published for them would go to nobody.
    """
    one, two, three = (make_node(index, 3) for index in range(3))
    record = one.write([begun("ann", one.stamp())])
    if by == "another node":
        three.receive(record.encoded)
        three.synced(three.rows.vector)
    brought: list[str] = []
    links: Any = Links()
    orphans = Orphans(two, links, brought.append, lambda: False, lambda: False, 0.0)
    now = FIRST_S + 1.0

    def say() -> None:
        for node, other in ((two, three), (three, two)):
            other.hear(replace(node.beat(now, START_NS), wall_ns=START_NS), now)

    def look() -> None:
        nonlocal now
        for _ in range(2):
            now += LOOK_S + 0.1
            say()
            orphans.advance(now, pauses=False)

    say()
    orphans.advance(now, pauses=False)
    assert not links.taken, "its nats-server has not answered"
    orphans.hear_last(1, 0 if by == "another node" else record.dot.number)
    look()
    assert not links.taken
    two.receive(record.encoded)
    look()
    assert brought == ["ann"] * len(brought)
    assert brought
    assert not links.taken, "its session is still there"
    row = replace(begun("ann", two.stamp(), 2), begins=False)
    two.write([row])
    look()
    assert links.taken == [1]


def test_a_dead_node_has_more_sessions_when_records_come_from_another_side() -> None:
    """It was settled when those that were known had gone on elsewhere. What is published for the others would
    be acknowledged, and nobody's.
    """
    two = Searching()
    two.look()
    assert two.links.taken == [1]
    two.hear_record_of("ann")
    two.advance()
    orphans = two.orphans
    assert (two.brought, list(orphans.settled), list(orphans.late)) == (["ann"], [], [1])
    orphans.hear_took(encode("Q", 1))  # by who does not know of it either
    two.look()
    assert two.links.taken == [1]
    two.take("ann")
    two.look()
    assert two.links.taken == [1, 1]
    assert not orphans.late


@pytest.mark.parametrize("opened", [False, True])
def test_so_has_one_that_was_heard_for_a_moment(opened: bool) -> None:
    """It was not opened to: what it wants does not count yet."""
    one, two, three = (make_node(index, 3) for index in range(3))
    links: Any = Links()
    orphans = Orphans(two, links, lambda _: None, lambda: False, lambda: False, 0.0)
    orphans.hear_last(1, 0)
    now = FIRST_S + 1.0

    def look(*there: Node) -> None:
        nonlocal now
        for _ in range(2):
            now += LOOK_S + 0.1
            for node, other in [(two, each) for each in there] + [(each, two) for each in there]:
                other.hear(replace(node.beat(now, START_NS), wall_ns=START_NS), now)
            orphans.advance(now, pauses=False)

    look(three)
    assert links.taken == [1]
    links.parted = [1]
    look(one, three)
    assert not orphans.settled
    links.parted = [] if opened else [1]
    look(one, three)
    now += two.members.suspect_s
    look(three)
    links.parted = [1]
    two.receive(one.write([begun("ann", one.stamp())]).encoded)
    orphans.advance(now, pauses=False)
    assert list(orphans.late) == ([] if opened else [1])
    since = dict(orphans.late)
    look(three)
    assert orphans.late == since


def test_a_dead_node_whose_records_are_lost_can_be_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody gives them; until it is forgotten what is published waits for sessions that it may have had."""
    one, two, three = (make_node(index, 3) for index in range(3))
    record = one.write([begun("ann", one.stamp())])
    three.receive(record.encoded)
    three.synced(three.rows.vector)
    links: Any = Links()
    orphans = Orphans(two, links, lambda _: None, lambda: False, lambda: False, 0.0)
    orphans.hear_last(1, 0)
    now = FIRST_S + 1.0

    def look() -> None:
        three.hear(replace(two.beat(now, START_NS), wall_ns=START_NS), now)
        two.hear(replace(three.beat(now, START_NS), wall_ns=START_NS), now)
        orphans.advance(now, pauses=False)

    for _ in range(2):
        look()
        assert not orphans.settled
        now += LACKS_S / 2 + LOOK_S
    look()
    assert list(orphans.settled) == [1]
    assert not links.taken, "what is published waits"
    assert [each.levelname for each in caplog.records].count("WARNING") == 1
    two.write([Strike(1, "n1")])
    for _ in range(3):
        now += LOOK_S + 0.1
        look()
    assert links.taken == [1]


def test_sessions_are_counted_by_their_homes() -> None:
    """As they are in the store, and as they are about to be; and anew where it is open what that has."""
    store, numbers = MemoryStore(), itertools.count(1)
    rows = StoredRows(store, lambda: next(numbers))

    def put(client: str, home: int) -> None:
        row = Session(begun(client, Stamp(START_NS, home), home), Dot(home, 1)) if home else None
        rows.sessions.put(client, None, row)

    def counts() -> list[int]:
        assert [rows.count_at(home) for home in (1, 2)] == [Rows.count_at(rows, home) for home in (1, 2)]
        return [rows.count_at(home) for home in (1, 2)]

    def write() -> None:
        store.write(rows.take_changes(), sync=True)

    assert counts() == [0, 0]
    for client, home in (("ann", 1), ("bob", 1), ("cem", 2)):
        put(client, home)
    assert counts() == [2, 1]
    write()
    rows.confirm()
    assert counts() == [2, 1]
    put("ann", 2)
    put("cem", 0)
    assert counts() == [1, 1]
    rows.discard()
    assert counts() == [2, 1]
    put("ann", 2)
    put("cem", 0)
    write()
    rows.discard()
    rows.read_again()
    assert counts() == [1, 1]
    put("bob", 0)
    write()
    rows.confirm()
    assert counts() == [0, 1]


def test_a_struck_node_without_sessions_costs_no_look_at_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be many after a year; and some at a time are looked at of one that has any."""
    node = make_node(1, 3)
    for number in range(20):
        node.write([Strike(100 + number, "gone")])
    node.write([begun(f"client {number}", node.stamp(), 3) for number in range(50)])
    looks = 0
    homes = node.rows.homes

    def count() -> Iterator[tuple[str, int]]:
        nonlocal looks
        for each in homes():
            looks += 1
            yield each

    monkeypatch.setattr(node.rows, "homes", count)
    monkeypatch.setattr(node.rows, "count_at", lambda home: 50 * (home == 3))
    monkeypatch.setattr(orphans_module, "LOOKED_AT_ONCE", 20)
    monkeypatch.setattr(orphans_module, "TAKEN_AT_ONCE", 8)
    brought: list[str] = []
    links: Any = Links()
    orphans = Orphans(node, links, brought.append, lambda: False, lambda: False, 0.0)
    for turn in range(1, 4):
        orphans.advance(FIRST_S + 0.1 * turn, pauses=False)
        assert len(brought) == 8 * turn
        assert looks <= 8 * turn + 1


def test_what_is_heard_of_a_dead_node_after_it_was_searched_is_found() -> None:
    """Also while it is waited for what others know of its sessions: nobody waits for it any more."""
    two = Searching()
    two.look()
    two.hear_record_of("ann")
    two.orphans.hear_of("ann")
    assert two.brought == ["ann"]
    two.look(0.0)
    two.brought.clear()
    two.hear_record_of("eve")  # and it is not told
    two.look(0.0)
    assert two.brought == []
    two.look()
    assert set(two.brought) == {"ann", "eve"}
    two.orphans.hear_of("nobody")
    two.take("ann")
    two.brought.clear()
    two.orphans.hear_of("ann")
    assert two.brought == []


def test_it_is_searched_before_this_node_opens_to_others() -> None:
    """As long as sessions are not found of a node for which nobody waits any more."""
    two = Searching()
    two.look()
    two.hear_record_of("ann")
    two.advance()
    assert two.orphans.is_searching
    two.advance()
    assert not two.orphans.is_searching
