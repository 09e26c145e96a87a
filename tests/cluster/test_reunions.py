"""When a node parts with others, and when it goes on with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cluster.nodes import START_NS
from cluster.test_decisions import beat

from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.members import SUSPECT_S, Members
from tidemq.cluster.reunions import MEET_S, Reunions
from tidemq.cluster.sharing import Sharing


class Links:
    """As in `tidemq.cluster.links`, of what reunions need."""

    def __init__(self) -> None:
        self.parted: list[int] = []
        self.opened: list[int] = []
        self.met: set[int] = set()
        self.expected: dict[int, list[str]] = {}
        self._apart: set[int] = set()

    def forget(self) -> None:
        """As one that has just begun, and has parted with nobody."""
        self._apart.clear()

    def expect(self, incarnation: int, filters: list[str]) -> None:
        self.expected[incarnation] = filters
        self._apart.add(incarnation)

    def part(self, incarnation: int) -> None:
        self.parted.append(incarnation)
        self._apart.add(incarnation)

    def open(self, incarnation: int) -> None:
        self.opened.append(incarnation)
        self._apart.discard(incarnation)

    def apart(self) -> set[int]:
        return set(self._apart)

    def has_met(self, incarnation: int) -> bool:
        return incarnation in self.met


class Here:
    """Node 1, which hears 2 and 3."""

    def __init__(self) -> None:
        self.links = Links()
        self.members = Members(beat(1), HybridClock(lambda: START_NS, skew_s_max=5))
        self.vector: dict[int, int] = {}
        self.sessions: dict[str, int] = {}  # where they are at home
        node: Any = SimpleNamespace(
            incarnation=1,
            last=8,
            members=self.members,
            rows=SimpleNamespace(
                vector=self.vector,
                homes=lambda: self.sessions.items(),
                filters=lambda client: [(f"of/{client}", None), (f"$exclusive/{client}", None)],
            ),
            sharing=(sharing := Sharing(SUSPECT_S)),
        )
        self.sharing = sharing
        links: Any = self.links
        self.reunions = Reunions(node, links)

    def hear(self, who: int, now: float, **said: Any) -> None:
        others = {each: (1, True) for each in (1, 2, 3) if each != who}
        self.members.hear(beat(who, **{"peers": others, "wall_ns": START_NS, **said}), now)

    def advance(self, now: float, *, opens: bool = True) -> None:
        self.reunions.advance(now, opens=opens)


@pytest.fixture
def here() -> Here:
    made = Here()
    for each in (2, 3):
        made.hear(each, 0.0)
    made.advance(0.0)
    assert made.links.parted == made.reunions.passed_over() == []
    made.hear(3, SUSPECT_S)
    made.advance(SUSPECT_S)
    made.advance(SUSPECT_S + 0.1)
    assert made.links.parted == made.reunions.passed_over() == [2]  # once
    return made


def test_it_goes_on_when_all_have_met_and_what_they_did_is_applied(here: Here) -> None:
    here.hear(2, 2.0, number=7)
    here.hear(3, 2.0, number=5)
    here.links.met = {2, 3}
    here.vector.update({2: 7, 3: 4})
    here.advance(2.0)
    assert (here.links.opened, here.reunions.passed_over()) == ([], [2])
    here.vector[3] = 5
    here.links.met = {2}
    here.advance(2.1)
    assert here.links.opened == []
    here.links.met = {2, 3}
    here.hear(3, 2.1, number=9)  # what came later is not waited for
    here.advance(2.2, opens=False)
    assert here.links.opened == []
    here.advance(2.2)
    assert (here.links.opened, here.reunions.passed_over()) == ([2], [])


def test_who_is_not_heard_by_all_is_waited_for(here: Here) -> None:
    here.links.met = {2, 3}
    here.hear(2, 2.0)
    here.hear(3, 2.0, peers={1: (1, True), 2: (1, False)})
    here.hear(2, 2.0, peers={1: (1, False), 3: (1, True)})
    here.advance(2.0)
    assert here.links.opened == []
    here.hear(2, 2.1)
    here.advance(2.1)
    assert here.links.opened == [2]


def test_it_does_not_wait_for_ever(here: Here, caplog: pytest.LogCaptureFixture) -> None:
    now = 2.0
    while now < 2.0 + MEET_S:
        for each in (2, 3):
            here.hear(each, now, number=7)
        here.advance(now)
        assert here.links.opened == []
        now += 1.0
    here.hear(2, now, number=7)
    here.advance(now + 0.5)
    assert here.links.opened == [2]
    assert "not all nodes have said what they want" in caplog.text


def test_who_goes_again_is_parted_with_again(here: Here) -> None:
    here.hear(2, 2.0)
    here.advance(2.0)
    here.hear(3, 2.0 + SUSPECT_S)
    here.advance(2.0 + SUSPECT_S)
    assert here.links.parted == [2, 2]


def test_all_sessions_are_shared_until_who_comes_back_knows_what_was_done_here(here: Here) -> None:
    assert not here.sharing, "who is not heard sends nothing"
    here.links.met = {2, 3}
    here.vector.update({2: 7, 3: 5})
    here.hear(2, 2.0, number=8, applied={1: 6})
    here.hear(3, 2.0, number=5)
    here.advance(2.0)
    assert (here.links.opened, "ann" in here.sharing) == ([], True)
    here.vector[2] = 8
    here.advance(2.1)
    assert (here.links.opened, "ann" in here.sharing) == ([2], True), "it may not know of sessions taken here"
    here.hear(2, 2.2, number=8, applied={1: 7})
    here.advance(2.2)
    assert "ann" in here.sharing
    here.hear(2, 2.3, number=8, applied={1: 8})
    here.advance(2.3)
    assert not here.sharing


def test_who_is_gone_again_is_not_waited_for(here: Here) -> None:
    here.links.met = {2, 3}
    here.hear(2, 2.0)
    here.hear(3, 2.0)
    here.advance(2.0)
    assert (here.links.opened, "ann" in here.sharing) == ([2], True)
    here.hear(3, 2.0 + SUSPECT_S)
    here.advance(2.0 + SUSPECT_S)
    assert not here.sharing


def test_who_begins_beside_one_that_is_not_there_holds_back_what_is_for_it(here: Here) -> None:
    here.sessions = {"ann": 2, "bob": 3, "eve": 2}
    here.links.met = {3}
    here.hear(3, SUSPECT_S, peers={1: (1, True), 2: (1, False)})
    here.links.forget()
    assert here.reunions.may_serve(SUSPECT_S), "2 is expected now"
    assert here.links.expected == {2: ["ann", "eve", "of/ann", "of/eve"]}


def test_who_is_not_there_and_wants_nothing_is_not_expected(here: Here) -> None:
    here.sessions = {"bob": 3}
    here.links.met = {3}
    here.hear(3, SUSPECT_S, peers={1: (1, True), 2: (1, False)})
    here.links.forget()
    assert here.reunions.may_serve(SUSPECT_S)
    assert here.links.expected == {}


def test_nobody_serves_before_all_that_are_there_have_met(here: Here) -> None:
    here.sessions = {"ann": 2}
    here.links.forget()
    assert not here.reunions.may_serve(SUSPECT_S)
    assert here.links.expected == {}
