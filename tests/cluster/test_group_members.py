"""Whether a shared group has ended, by the subscriptions that a store has."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tidemq.cluster import group_members
from tidemq.cluster.group_members import AGAIN_S, LOOKED_AT_ONCE, GroupMembers
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.operations import Stamp
from tidemq.errors import StoreError

GROUP = "$share/g/a"


class StoreDouble:
    """Has subscriptions, and cannot read one of them."""

    def __init__(self, *subscriptions: tuple[str, str]) -> None:
        self.subscriptions = subscriptions
        self.fails_at = -1
        self.over: set[tuple[str, str]] = set()  # rows of sessions that have ended

    def scan(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        assert family == "subscription"
        for number, (client, topic_filter) in enumerate(self.subscriptions):
            if number == self.fails_at:
                raise StoreError("the store cannot be read")
            yield struct.pack(">H", len(client)) + client.encode() + topic_filter.encode(), b""

    def subscription(self, client: str, topic_filter: str) -> object:
        """As in `Rows`."""
        return None if (client, topic_filter) in self.over else object()


class Clock:
    """Each time a nanosecond on."""

    now = 0

    def next_ns(self) -> int:
        self.now += 1
        return self.now


def members(store: StoreDouble, clock: Clock) -> GroupMembers:
    return GroupMembers(cast("Any", store), cast("Any", store), cast("HybridClock", clock))


def test_a_group_without_a_subscription_has_ended_for_what_came_before() -> None:
    store, clock = StoreDouble(("ann", "a"), ("bob", "$share/g/b"), ("eve", "$share/h/a")), Clock()
    looking = members(store, clock)
    clock.now = 100
    looking.doubt(GROUP)
    assert looking.advance(0.0)
    assert looking.has_ended(GROUP, Stamp(100, 1))
    assert not looking.has_ended(GROUP, Stamp(101, 1))
    assert not looking.has_ended("$share/h/a", Stamp(100, 1))


@pytest.mark.parametrize("over", [True, False])
def test_a_session_that_has_ended_does_not_count(over: bool) -> None:
    store = StoreDouble(("ann", "a"), ("bob", GROUP))
    store.over = {("bob", GROUP)} if over else set()
    looking = members(store, Clock())
    looking.doubt(GROUP)
    assert looking.advance(0.0) == over
    assert looking.has_ended(GROUP, Stamp(0, 1)) == over


def test_it_looks_a_piece_at_a_time_and_rests_then() -> None:
    store = StoreDouble(*((f"c{number}", "a") for number in range(2 * LOOKED_AT_ONCE)), ("ann", GROUP))
    looking = members(store, Clock())
    looking.doubt(GROUP)
    assert [looking.advance(0.0) for _ in range(3)] == [False] * 3
    assert not looking.has_ended(GROUP, Stamp(0, 1))
    store.subscriptions = ()
    looking.doubt(GROUP)
    assert not looking.advance(AGAIN_S - 0.1)
    assert looking.advance(AGAIN_S)
    assert looking.has_ended(GROUP, Stamp(1, 1))


def test_what_cannot_be_read_is_not_taken_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_members, "LOOKED_AT_ONCE", 2)
    store = StoreDouble(("ann", "a"), ("bob", "b"), ("eve", "c"), ("joe", GROUP))
    looking = members(store, Clock())
    store.fails_at = 2
    looking.doubt(GROUP)
    for _ in range(2):
        assert not looking.advance(0.0)
        with pytest.raises(StoreError):
            looking.advance(0.0)
    store.fails_at = -1
    assert [looking.advance(0.0) for _ in range(3)] == [False] * 3
    assert not looking.has_ended(GROUP, Stamp(0, 1))
