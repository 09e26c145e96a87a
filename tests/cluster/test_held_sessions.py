"""What is published for sessions in no engine waits for their homes, as one node decides it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from cluster.nodes import begun, make_node

from tidemq.cluster import operations as ops
from tidemq.cluster.held_sessions import HeldSessions

ONE, TWO, THREE = 1, 2, 3


class Links:
    """In the place of `Links`."""

    def __init__(self) -> None:
        self.parted: set[int] = set()
        self.held: list[tuple[str, int, list[str]]] = []
        self.gone: list[str] = []

    def apart(self) -> set[int]:
        return self.parted

    def hold(self, client: str, incarnation: int, filters: list[str]) -> bool:
        self.held.append((client, incarnation, filters))
        return False

    def let_go(self, client: str) -> None:
        self.gone.append(client)


class Here:
    """Node two, which holds what is published for ann, whose home is one."""

    def __init__(self) -> None:
        self.node = make_node(1, 3)
        links: Any = Links()
        self.links = links
        self.counts: Counter[str] = Counter()
        self.links.parted = {ONE, THREE}
        home = make_node(0, 3)
        subscribed = [ops.Subscribe("ann", each, home.stamp(), 1, 0) for each in ("a/#", "$share/g/b")]
        record = home.write([begun("ann", home.stamp(), ONE), *subscribed])
        self.node.receive(record.encoded)
        self.held = HeldSessions(self.node, links, self.counts)
        assert not self.held.hold("ann", ONE)
        assert self.links.held == [("ann", ONE, ["a/#"])]

    def move(self, home: int) -> None:
        """Ann's session is at home there."""
        row = self.node.rows.sessions.get("ann", None)
        assert row is not None
        self.node.write([replace(row.row, epoch=self.node.stamp(), home=home, begins=False)])


@pytest.fixture
def here() -> Here:
    return Here()


def test_until_its_home_is_opened_to(here: Here) -> None:
    """Although it is not to come here any more, for its home is heard again: what that wants does not count
    yet, and what is published would be acknowledged, and nobody's. Found by a run of three nodes.
    """
    for _ in range(3):
        here.held.advance({})
    assert here.links.gone == []
    here.links.parted = {THREE}
    here.held.advance({})
    here.held.advance({})
    assert here.links.gone == ["ann"]
    assert here.counts == {"cluster_sessions_held": 1}
    assert len(here.links.held) == 1


def test_until_it_has_come_or_does_not(here: Here) -> None:
    here.links.parted = set()
    here.held.advance({"ann": None})
    assert here.links.gone == []
    here.held.advance({})
    assert here.links.gone == ["ann"]


def test_not_where_it_is_here(here: Here) -> None:
    here.move(TWO)
    here.held.advance({})
    assert here.links.gone == ["ann"]


def test_not_where_it_has_ended(here: Here) -> None:
    session = here.node.rows.sessions.get("ann", None)
    assert session is not None
    here.node.write([ops.EndSession("ann", here.node.stamp())])
    here.held.advance({})
    assert here.links.gone == ["ann"]


def test_it_waits_for_its_next_home(here: Here) -> None:
    """The one before may be opened to first."""
    here.move(THREE)
    here.held.advance({})
    here.links.parted = {THREE}
    here.held.advance({})
    assert [each[1] for each in here.links.held] == [ONE, THREE]
    assert here.links.gone == []
    assert here.counts == {"cluster_sessions_held": 1}
    here.links.parted = set()
    here.held.advance({})
    assert here.links.gone == ["ann"]
