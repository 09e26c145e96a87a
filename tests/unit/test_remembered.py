"""What remembers answers, and what leaves a failing service alone, by a clock of their own."""

from __future__ import annotations

import pytest

from tidemq.broker.access.remembered import Remembered
from tidemq.broker.circuit_breaker import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_entry_lives_for_its_time(clock: Clock) -> None:
    kept: Remembered[str, int] = Remembered(10, clock)
    kept.put("a", 1, 5.0)
    kept.put("b", 2, 10.0)
    kept.put("never", 3, 0.0)
    clock.now += 4.9
    assert (kept.find("a"), kept.find("b"), kept.find("never")) == (1, 2, None)
    assert kept.left_s("a") == pytest.approx(0.1)
    assert kept.left_s("never") == 0.0
    clock.now += 0.2
    assert kept.left_s("a") == 0.0
    assert (kept.find("a"), kept.find("b")) == (None, 2)
    assert len(kept) == 1
    kept.put("b", 4, 10.0)
    clock.now += 9.0
    assert kept.find("b") == 4


def test_the_one_not_used_for_longest_makes_room(clock: Clock) -> None:
    kept: Remembered[int, int] = Remembered(3, clock)
    for number in range(3):
        kept.put(number, number, 5.0, owner="o")
    kept.find(0)
    kept.put(3, 3, 5.0, owner="p")
    assert [kept.find(number) for number in range(4)] == [0, None, 2, 3]
    assert kept.evicted == 1
    nothing: Remembered[int, int] = Remembered(0, clock)
    nothing.put(1, 1, 5.0)
    assert nothing.find(1) is None


def test_large_entries_count_as_several_and_those_that_are_over_go(clock: Clock) -> None:
    kept: Remembered[int, int] = Remembered(1000, clock)
    for number in range(10_000):
        kept.put(number, number, 5.0, held_bytes=65_535)
    assert len(kept) == 1000 // 256
    kept.put(-1, 0, 5.0, held_bytes=1000 * 256)
    assert kept.find(-1) is None
    clock.now += 5.0
    for number in range(10):
        kept.put(number, number, 5.0, "o")
    assert len(kept) == 10
    kept.drop_owner("o")
    for number in range(1000):
        kept.put(number, number, 5.0)
    assert len(kept) == 1000
    kept.clear()
    for number in range(1000):
        kept.put(number, number, 5.0)
    assert len(kept) == 1000


def test_what_belongs_to_one_owner_goes_together(clock: Clock) -> None:
    kept: Remembered[int, int] = Remembered(100, clock)
    for number in range(10):
        kept.put(number, number, 5.0, owner=str(number % 2))
    kept.drop_owner("0")
    kept.drop_owner("nobody")
    assert [number for number in range(10) if kept.find(number) is not None] == [1, 3, 5, 7, 9]
    clock.now += 5.0
    for number in range(10):
        kept.find(number)
    assert not kept._keys_of


def test_it_opens_after_failures_in_a_row_only(clock: Clock) -> None:
    circuit = CircuitBreaker(3, 10.0, clock)

    def call(succeeds: bool) -> bool:
        permit = circuit.enter()
        if permit is None:
            return False
        circuit.leave(permit, succeeds)
        return True

    for succeeds in (False, False, True, False, False):
        assert call(succeeds)
    assert not circuit.is_open
    assert call(False)
    assert circuit.is_open
    clock.now += 9.9
    assert not call(True)
    clock.now += 0.1
    assert call(False)  # the probe
    assert not call(True)
    clock.now += 10.0
    assert call(True)
    assert not circuit.is_open
    assert call(False)
    assert not circuit.is_open  # they are counted anew


def test_calls_from_before_say_nothing_about_the_probe(clock: Clock) -> None:
    circuit = CircuitBreaker(1, 10.0, clock)
    first, second, third = circuit.enter(), circuit.enter(), circuit.enter()
    assert first is not None
    assert second is not None
    assert third is not None
    circuit.leave(first, False)
    circuit.leave(second, True)
    assert circuit.is_open
    clock.now += 10.0
    probe = circuit.enter()
    assert probe is not None
    assert circuit.enter() is None
    circuit.leave(third, False)
    circuit.leave(probe, True)
    assert not circuit.is_open
