"""When a reactor's turns wait a little before they read: only where messages that nobody waits for come fast,
steadily and few at a time, and only for as long as that brings no less of them.
"""

from __future__ import annotations

import pytest

from tidemq.engine.turn.gathering import gathered

Turn = tuple[int, int, int, int]  # µs before it, µs that it takes, messages nobody waits for, all packets

FAST: Turn = (2, 4, 3, 3)  # 500,000 a second
GATHERED: Turn = (90, 30, 60, 60)  # the same, with a wait
SECOND = 1_000_000


def turns(turn: Turn, seconds: float) -> list[Turn]:
    return [turn] * int(seconds * SECOND / (turn[0] + turn[1]))


def test_begins_when_the_inflow_has_been_fast_for_some_milliseconds() -> None:
    found = gathered(turns(FAST, 0.1))
    first = found.index(True)
    assert 0.004 * SECOND <= first * 6 <= 0.01 * SECOND


def test_goes_on_while_as_much_comes() -> None:
    """For half a second; then the size of turns without it shows whether it is still needed."""
    found = gathered(turns(FAST, 0.01) + turns(GATHERED, 0.4))
    assert all(found[-len(turns(GATHERED, 0.4)) :])
    later = turns(FAST, 0.02)
    found = gathered(turns(FAST, 0.01) + turns(GATHERED, 0.6) + later)
    assert not all(found[2000 : -len(later)])
    assert found[-1]


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param((195, 5, 1, 1), id="5,000 a second"),
        pytest.param((7, 3, 1, 1), id="100,000 a second, with time to spare"),
        pytest.param((2, 4, 0, 3), id="an answer is waited for"),
        pytest.param((2, 4, 3, 6), id="half of the packets wait for an answer"),
        pytest.param((2, 50, 64, 64), id="many at a time"),
        pytest.param((2, 4, 0, 0), id="no packets"),
    ],
)
def test_never_otherwise(turn: Turn) -> None:
    assert not any(gathered(turns(turn, 3)))


def test_a_short_burst_is_not_waited_for() -> None:
    assert not any(gathered((turns(FAST, 0.003) + turns((195, 5, 1, 1), 0.05)) * 20))


def test_a_slow_machine_is_fast_earlier() -> None:
    """What fills its time in small pieces is as much as it can do."""
    assert any(gathered(turns((3, 12, 1, 1), 0.1)))  # 67,000 a second


def test_ends_when_the_inflow_ends() -> None:
    slow = turns((195, 5, 1, 1), 1)
    found = gathered(turns(FAST, 0.02) + slow)
    assert not any(found[-len(slow) + 50 :])


def test_who_waits_in_another_way_is_left_alone_for_a_second() -> None:
    """Three messages a turn, however long it waits: they come no faster than they are handled."""
    fast = turns(FAST, 0.9)
    found = gathered(turns(FAST, 0.0065) + turns((90, 4, 3, 3), 0.01) + fast)
    assert any(found[: -len(fast)])
    assert not any(found[-len(fast) :])
