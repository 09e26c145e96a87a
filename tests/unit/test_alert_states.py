"""When alerts are raised and cleared: the same readings give the same alerts, however they are cut."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemq.pipeline.alerts.states import Alert, Condition, Reading, State, deadline_us, expire, step, zscore

SECOND = 1_000_000


def reading(at_s: float, value: float | None, offset: int = 0) -> Reading:
    return Reading(7, offset, round(at_s * SECOND), "a/b", "device", value)


def alerts_of(
    condition: Condition, values: Iterable[Any], state: State | None = None
) -> list[tuple[str, int, float]]:
    """State, number of the reading, and value of each alert; a reading a second, or pairs with their time."""
    found = []
    state = state or State()
    for number, each in enumerate(values):
        at_s, value = each if isinstance(each, tuple) else (number, each)
        state, alerts = step(condition, state, reading(at_s, value, number))
        found += [(alert.state, alert.reading.offset, alert.value) for alert in alerts]
    return found


def test_an_alert_is_raised_once_and_cleared_once() -> None:
    above = Condition(kind="threshold", above=30.0)
    assert alerts_of(above, [29, 30, 30.1, 31, 30, 30.5]) == [
        ("raised", 2, 30.1),
        ("cleared", 4, 30),
        ("raised", 5, 30.5),
    ]
    below = Condition(kind="threshold", below=0.0)
    assert alerts_of(below, [1, 0, -1, -2, 0]) == [("raised", 2, -1), ("cleared", 4, 0)]


def test_both_limits_are_one_alert_that_names_the_limit_it_passed() -> None:
    condition = Condition(kind="threshold", above=30.0, below=10.0)
    state, [first] = step(condition, State(), reading(0, 31.0))
    assert (first.state, first.limit) == ("raised", 30.0)
    state, alerts = step(condition, state, reading(1, 5.0))
    assert alerts == []
    state, [last] = step(condition, state, reading(2, 12.0))
    assert (last.state, last.limit) == ("cleared", 10.0)


def test_hysteresis_holds_an_alert_until_the_value_has_come_back_so_far() -> None:
    above = Condition(kind="threshold", above=30.0, hysteresis=2.0)
    assert alerts_of(above, [29, 31, 29, 28.1, 28, 29, 31]) == [
        ("raised", 1, 31),
        ("cleared", 4, 28),
        ("raised", 6, 31),
    ]
    below = Condition(kind="threshold", below=10.0, hysteresis=2.0)
    assert alerts_of(below, [9, 11, 12, 11]) == [("raised", 0, 9), ("cleared", 2, 12)]


def test_beyond_for_some_seconds_means_every_reading_of_that_time() -> None:
    condition = Condition(kind="threshold", above=30.0, for_s=10.0)
    assert alerts_of(condition, [(0, 31), (9.9, 31), (10, 31), (11, 29), (12, 31)]) == [
        ("raised", 2, 31),
        ("cleared", 3, 29),
    ]
    assert alerts_of(condition, [(0, 31), (5, 29), (6, 31), (15, 31), (16, 31)]) == [("raised", 4, 31)]
    assert alerts_of(condition, [(0, 31)]) == []


def test_n_of_m_readings() -> None:
    condition = Condition(kind="threshold", above=30.0, count=2, of=3)
    assert alerts_of(condition, [31, 29, 29, 31, 29, 31, 29, 29, 31]) == [
        ("raised", 5, 31),
        ("cleared", 6, 29),
    ]
    consecutive = Condition(kind="threshold", above=30.0, count=3, of=3)
    assert alerts_of(consecutive, [31, 31, 29, 31, 31, 31, 29]) == [("raised", 5, 31), ("cleared", 6, 29)]


def test_rates_are_by_the_broker_s_clock() -> None:
    condition = Condition(kind="rate", above=2.0, below=-2.0)
    assert alerts_of(condition, [(0, 100), (10, 120), (20, 150), (30, 150)]) == [
        ("raised", 2, 3.0),
        ("cleared", 3, 0.0),
    ]
    assert alerts_of(condition, [(0, 100), (1, 90)]) == [("raised", 1, -10.0)]
    # no time has passed, or the clock was set back: the reading is passed over
    assert alerts_of(condition, [(5, 100), (5, 200), (4, 300), (6, 101)]) == []


def test_zscores_compare_with_the_readings_before() -> None:
    condition = Condition(kind="zscore", above=3.0, below=-3.0, window=4)
    assert alerts_of(condition, [1, 100, 1, 100]) == []  # it knows too little
    found = alerts_of(condition, [10, 11, 10, 11, 12.1, 14, 10])
    assert [each[:2] for each in found] == [("raised", 4), ("cleared", 6)]
    assert found[0][2] == pytest.approx(3.2)
    shifted = alerts_of(condition, [10, 11, 10, 11, *[50] * 4])  # what lasts becomes usual
    assert [each[:2] for each in shifted] == [("raised", 4), ("cleared", 5)]


def test_readings_that_do_not_vary_are_no_reason_for_an_alert_and_a_jump_is() -> None:
    condition = Condition(kind="zscore", above=3.0, window=3)
    assert alerts_of(condition, [20.1] * 50) == []
    [(state, number, score)] = alerts_of(condition, [0, 0, 0, 0, 1])
    assert (state, number) == ("raised", 4)
    assert math.isfinite(score)


@pytest.mark.parametrize("kind", ["threshold", "rate", "zscore"])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_no_number_is_too_large_or_too_small(
    kind: Literal["threshold", "rate", "zscore"], values: Iterable[Any]
) -> None:
    condition = Condition(kind=kind, above=3.0, below=-3.0, window=3 if kind == "zscore" else 0)
    alerts_of(condition, values)


def test_an_absence_begins_when_the_time_is_over_and_ends_with_the_next_message() -> None:
    condition = Condition(kind="absence", after_s=60.0)
    state, alerts = step(condition, State(), reading(100, None, 1))
    assert alerts == []
    assert deadline_us(condition, state) == 160 * SECOND
    assert expire(condition, state, 159 * SECOND) == (state, [])
    state, [raised] = expire(condition, state, 170 * SECOND)
    assert raised == Alert("raised", 60.0, 60.0, 160 * SECOND, reading(100, None, 1))
    assert deadline_us(condition, state) == (100 + 7 * 86_400) * SECOND
    assert expire(condition, state, 999 * SECOND) == (state, [])
    state, [cleared] = step(condition, state, reading(300, None, 2))
    assert cleared == Alert("cleared", 200.0, 60.0, 300 * SECOND, reading(300, None, 2))
    assert deadline_us(condition, state) == 360 * SECOND


def test_an_absence_that_no_timer_saw_is_told_by_the_message_that_ends_it() -> None:
    condition = Condition(kind="absence", after_s=60.0)
    state, _ = step(condition, State(), reading(100, None, 1))
    by_timer, [raised] = expire(condition, state, 170 * SECOND)
    _, [cleared] = step(condition, by_timer, reading(300, None, 2))
    assert step(condition, state, reading(300, None, 2))[1] == [raised, cleared]


def test_who_never_comes_back_is_forgotten() -> None:
    condition = Condition(kind="absence", after_s=60.0, forget_s=3600.0)
    state, _ = step(condition, State(), reading(100, None))
    absent, [raised] = expire(condition, state, 200 * SECOND)
    assert deadline_us(condition, absent) == 3700 * SECOND
    for before in (absent, state):  # whether a timer has seen the absence or not
        forgotten, alerts = expire(condition, before, 4000 * SECOND)
        assert forgotten == State()
        assert alerts[-1] == Alert("forgotten", 3600.0, 3600.0, 3700 * SECOND, raised.reading)
        assert [each.state for each in alerts[:-1]] == ["raised"] * (before is state)
        again, alerts = step(condition, before, reading(9000, None, 1))
        assert [each.state for each in alerts][-1:] == ["forgotten"]  # and not cleared: it is a new one
        assert not again.raised


def test_readings_are_forgotten_too() -> None:
    condition = Condition(kind="threshold", above=30.0, forget_s=60.0)
    assert alerts_of(condition, [(0, 31.0), (59, 31.0), (120, 31.0), (400, 29.0)]) == [
        ("raised", 0, 31.0),
        ("forgotten", 1, 60.0),
        ("raised", 2, 31.0),
        ("forgotten", 2, 60.0),
    ]
    calm, _ = step(condition, State(), reading(0, 29.0))
    assert expire(condition, calm, 100 * SECOND) == (State(), [])


def test_nothing_is_absent_that_was_never_there() -> None:
    assert expire(Condition(kind="absence", after_s=1.0), State(), 10**18) == (State(), [])


CONDITIONS = [
    Condition(kind="threshold", above=5.0, below=-5.0, hysteresis=1.0),
    Condition(kind="threshold", above=5.0, for_s=3.0),
    Condition(kind="threshold", above=5.0, count=2, of=4),
    Condition(kind="rate", above=5.0),
    Condition(kind="zscore", above=1.5, window=3, count=2, of=2),
    Condition(kind="absence", after_s=2.5),
]


@pytest.mark.parametrize("condition", CONDITIONS)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 2.0, 9.0]), st.integers(-9, 9)), max_size=30), st.data())
def test_alerts_alternate_and_do_not_depend_on_where_a_state_was_kept(
    condition: Condition, steps: list[tuple[float, int]], data: st.DataObject
) -> None:
    times = itertools.accumulate(pause for pause, _ in steps)
    readings = [
        reading(at, float(value), n) for n, (at, (_, value)) in enumerate(zip(times, steps, strict=True))
    ]
    together, apart = [], []
    state = kept = State()
    for each in readings:
        state, alerts = step(condition, state, each)
        together += alerts
        if data.draw(st.booleans()):
            kept = State.from_json(kept.to_json())
        if data.draw(st.booleans()):  # a timer, as early or late as may be before the next message
            kept, alerts = expire(condition, kept, each.time_us)
            apart += alerts
        kept, alerts = step(condition, kept, each)
        apart += alerts
    assert together == apart
    assert [alert.state for alert in together] == ["raised", "cleared"] * (len(together) // 2) + [
        "raised"
    ] * (len(together) % 2)
    names = [(alert.state, alert.reading.offset) for alert in together]
    assert len(set(names)) == len(names)  # of which their identifiers are made


def test_a_state_of_another_version_is_read() -> None:
    state = State(raised=True, last=reading(1, 2.0))
    known = json.loads(state.to_json())
    assert State.from_json(json.dumps(known | {"later": 1})) == state
    del known["window"], known["raised"]
    assert State.from_json(json.dumps(known)) == replace(state, raised=False)


def test_zscore_is_in_standard_deviations() -> None:
    assert zscore(12.0, [8.0, 12.0]) == 1.0
    assert zscore(8.0, [8.0, 12.0]) == -1.0
