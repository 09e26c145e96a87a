"""What others had done at some moment, and whether it is known by now."""

from __future__ import annotations

import pytest
from cluster.nodes import START_NS, begun, make_node

from tidemq.cluster import catching_up
from tidemq.cluster.catching_up import CatchingUp, catch_up
from tidemq.cluster.members import SUSPECT_S
from tidemq.errors import StoreError


class Two:
    """The second one listens. `now`: seconds of both."""

    def __init__(self) -> None:
        self.one, self.two = make_node(0, 2), make_node(1, 2)
        self.now = 100.0
        self.beat()
        self.one.hear(self.two.beat(self.now, START_NS), self.now)
        self.beat()

    def beat(self) -> None:
        """The first one's heartbeat comes."""
        self.two.hear(self.one.beat(self.now, START_NS), self.now)

    def write(self) -> bytes:
        """A record of the first one's that is durable there."""
        record = self.one.write([begun("ann", self.one.stamp())])
        self.one.synced(self.one.rows.vector)
        return record.encoded


def test_it_is_known_with_a_later_heartbeat_and_all_records_before_that() -> None:
    nodes = Two()
    nodes.two.receive(nodes.write())
    text = nodes.write()
    known = CatchingUp(nodes.two, nodes.now)
    assert not known.is_over(), "nothing has been heard since"
    nodes.now += 0.1
    nodes.beat()
    assert not known.is_over(), "the heartbeat says that there is another record"
    later = nodes.write()
    nodes.beat()
    nodes.two.receive(text)
    assert known.is_over(), "what was done later is not waited for"
    nodes.two.receive(later)
    assert known.is_over()


def test_a_record_that_came_before_the_heartbeat_counts_though_that_does_not_say_so() -> None:
    """It was said again, by a node that waits for its disk; and the record waits for one that is missing."""
    nodes = Two()
    old = nodes.one.beat(nodes.now, START_NS)
    first, second = nodes.write(), nodes.write()
    known = CatchingUp(nodes.two, nodes.now)
    nodes.two.receive(second)
    nodes.two.hear(old, nodes.now + 0.1)
    assert not known.is_over()
    nodes.two.receive(first)
    assert known.is_over()


def test_who_is_not_there_is_not_waited_for_and_who_goes_is() -> None:
    nodes = Two()
    known = CatchingUp(nodes.two, nodes.now)
    assert CatchingUp(nodes.two, nodes.now + SUSPECT_S).is_over()
    assert not known.is_over()


def test_what_does_not_come_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catching_up, "AT_MOST_S", 0.05)
    node = make_node(0, 1)
    asked = iter([True, True, False])
    catch_up(node, lambda: next(asked), lambda: None)  # nobody else is there: it is over at once
    assert list(asked) == [True, False]
    monkeypatch.setattr(CatchingUp, "is_over", lambda _: False)
    acts: list[None] = []
    with pytest.raises(StoreError, match=r"what other nodes did has not come within 0\.05 s"):
        catch_up(node, lambda: True, lambda: acts.append(None))
    assert len(acts) > 1
    catch_up(node, lambda: len(acts) < 1, lambda: None)
