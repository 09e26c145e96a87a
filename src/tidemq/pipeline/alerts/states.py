"""When an alert is raised and when it is cleared: of one rule, on one topic or of one client.

All of it is plain: (state, reading) -> (new state, alerts), without Spark and without a clock. So the same
readings give the same alerts in whatever batches they come, and again when they come again after a crash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

SECOND_US = 1_000_000
FORGET_S = 7 * 86_400.0
_SPREAD_MIN = 1e-9  # of the mean: equal readings differ from theirs by rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What is watched for. `kind` says how a reading is measured:

    threshold: by its value; rate: by the change a second since the reading before it; zscore: by the distance
    from the mean of the `window` readings before it, in their standard deviations; absence: not at all.
    """

    kind: str
    above: float | None = None  # measures above this are beyond,
    below: float | None = None  # and those below this
    hysteresis: float = 0.0  # a raised alert is cleared so far within the limit
    for_s: float = 0.0  # beyond for so long: that is raised,
    count: int = 1  # or so many
    of: int = 1  # of the last so many readings
    window: int = 0  # of zscore
    after_s: float = 0.0  # of absence: no message for so long
    forget_s: float = FORGET_S  # no message for so long: nothing is known any more, and nothing waited for

    def is_beyond(self, measure: float, margin: float) -> bool:
        """Whether it lies beyond a limit that is drawn in by `margin`."""
        high = self.above is not None and measure > self.above - margin
        return high or (self.below is not None and measure < self.below + margin)

    def limit(self, measure: float) -> float:
        """The limit that the measure is beyond, or nearest to."""
        limits = [limit for limit in (self.above, self.below) if limit is not None]
        return min(limits, key=lambda limit: abs(measure - limit))


@dataclass(frozen=True, slots=True)
class Reading:
    """A message and the number in it; absence asks for none."""

    epoch: int
    offset: int
    time_us: int  # when the broker had it, since 1970
    topic: str
    client: str | None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """That something has begun (`raised`), is over (`cleared`), or is not watched any more (`forgotten`)."""

    state: str
    value: float  # what was compared with the limit; of absence, seconds
    limit: float
    time_us: int
    reading: Reading  # that it was seen by; the last one before, where it is seen by none


@dataclass(frozen=True, slots=True)
class State:
    """What is known so far. Kept as JSON: fields may be added, and a checkpoint stays readable."""

    raised: bool = False
    beyond_since_us: int | None = None  # without a reading in between that was not
    verdicts: tuple[bool, ...] = ()  # of the last readings: beyond or not
    window: tuple[float, ...] = ()
    last: Reading | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        known: dict[str, Any] = json.loads(text)
        last = known.get("last")
        return cls(
            raised=known.get("raised", False),
            beyond_since_us=known.get("beyond_since_us"),
            verdicts=tuple(known.get("verdicts", ())),
            window=tuple(known.get("window", ())),
            last=Reading(**last) if last else None,
        )


def step(condition: Condition, state: State, reading: Reading) -> tuple[State, list[Alert]]:
    """The next reading, in the order of offsets; with a value, unless the condition is absence."""
    state, ended = expire(condition, state, reading.time_us)  # what no timer has seen
    state, alerts = (
        _come(condition, state, reading) if condition.kind == "absence" else _read(condition, state, reading)
    )
    return state, ended + alerts


def _read(condition: Condition, state: State, reading: Reading) -> tuple[State, list[Alert]]:
    """A number."""
    assert reading.value is not None
    if condition.kind == "rate" and state.last and reading.time_us <= state.last.time_us:
        return state, []  # no time has passed by the broker's clock
    measure = _measured(condition, state, reading, reading.value)
    window = (*state.window, reading.value)[-condition.window :] if condition.window else ()
    state = replace(state, last=reading, window=window)
    return (state, []) if measure is None else _judged(condition, state, reading, measure)


def deadline_us(condition: Condition, state: State) -> int | None:
    """When an absence begins if nothing comes, or all is forgotten; None where nothing is known."""
    if state.last is None:
        return None
    absent = condition.kind == "absence" and not state.raised
    return state.last.time_us + round((condition.after_s if absent else condition.forget_s) * SECOND_US)


def expire(condition: Condition, state: State, now_us: int) -> tuple[State, list[Alert]]:
    """Nothing has come until now. The alert has the time of the deadline, whenever this is called."""
    alerts = []
    while (due_us := deadline_us(condition, state)) is not None and now_us >= due_us:
        last = state.last
        assert last is not None
        if condition.kind == "absence" and not state.raised:
            alerts.append(Alert("raised", condition.after_s, condition.after_s, due_us, last))
            state = replace(state, raised=True)
        else:
            if state.raised:
                alerts.append(Alert("forgotten", condition.forget_s, condition.forget_s, due_us, last))
            state = State()
    return state, alerts


def _come(condition: Condition, state: State, reading: Reading) -> tuple[State, list[Alert]]:
    """A message, after an absence or not."""
    alerts: list[Alert] = []
    if state.raised and state.last is not None:
        absent_s = max(reading.time_us - state.last.time_us, 0) / SECOND_US
        alerts.append(Alert("cleared", absent_s, condition.after_s, reading.time_us, reading))
    return State(last=reading), alerts


def _measured(condition: Condition, state: State, reading: Reading, value: float) -> float | None:
    """What is compared with the limits; None while too little is known."""
    if condition.kind == "threshold":
        return value
    if condition.kind == "zscore":
        return zscore(value, state.window) if len(state.window) >= condition.window else None
    if state.last is None or state.last.value is None:
        return None
    return (value - state.last.value) * SECOND_US / (reading.time_us - state.last.time_us)


def zscore(value: float, window: Sequence[float]) -> float:
    """The distance from the window's mean in standard deviations (of the population). Where numbers are too
    large for it, it is infinite or not a number, and so beyond a limit or not.
    """
    mean = sum(window) / len(window)
    spread = math.sqrt(sum((each - mean) * (each - mean) for each in window) / len(window))
    return (value - mean) / max(spread, _SPREAD_MIN * abs(mean), 1e-30)


def _judged(
    condition: Condition, state: State, reading: Reading, measure: float
) -> tuple[State, list[Alert]]:
    """What the measure changes."""
    beyond = condition.is_beyond(measure, condition.hysteresis if state.raised else 0.0)
    verdicts = (*state.verdicts, beyond)[-condition.of :]
    since_us = None
    if beyond:
        since_us = reading.time_us if state.beyond_since_us is None else state.beyond_since_us
    if condition.for_s:
        raised = since_us is not None and reading.time_us - since_us >= condition.for_s * SECOND_US
    else:
        raised = sum(verdicts) >= condition.count
    alerts = []
    if raised != state.raised:
        name = "raised" if raised else "cleared"
        alerts.append(Alert(name, measure, condition.limit(measure), reading.time_us, reading))
    return replace(state, raised=raised, verdicts=verdicts, beyond_since_us=since_us), alerts
