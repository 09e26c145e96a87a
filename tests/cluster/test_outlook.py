"""When a member will have what it lacks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemq.broker.clustering import Progress
from tidemq.cluster.outlook import LEFT_S_MAX, SPAN_S_MIN, WINDOW_S, Outlook

STEP_S = 0.3

Course = Callable[[float], tuple[float, float]]
"""What a member has, and lacks, at a time."""


def after(course: Course, seconds: float, outlook: Outlook | None = None, begun: float = 0) -> Outlook:
    """As it is when so long has been looked."""
    outlook = outlook or Outlook()
    for step in range(round(seconds / STEP_S) + 1):
        now = begun + step * STEP_S
        has, lacks = course(now)
        outlook.note(now, int(has), int(has + lacks + 0.01) - int(has))
    return outlook


def steady(now: float) -> tuple[float, float]:
    """100 a second of 10,000 that it lacked."""
    return 100 * now, 10_000 - 100 * now


def stalled(_: float) -> tuple[float, float]:
    return 500, 10_000


def fed(now: float) -> tuple[float, float]:
    """300 a second, while 200 come."""
    return 300 * now, 10_000 - 100 * now


def growing(now: float) -> tuple[float, float]:
    return 100 * now, 10_000 + 50 * now


def level(now: float) -> tuple[float, float]:
    return 100 * now, 10_000


def crawling(now: float) -> tuple[float, float]:
    """Ten a second more than come, of ten million."""
    return 1000 * now, 10_000_000 - 10 * now


def under_way(now: float) -> tuple[float, float]:
    """Half a second's worth, always, as heartbeats are not of one moment."""
    return 1000 * now, 500 + 30 * (now % 1)


@pytest.mark.parametrize(
    ("course", "seconds", "progress", "left_s"),
    [
        (lambda now: (100 * now, 0), 30, "complete", None),
        (steady, SPAN_S_MIN - STEP_S, "unknown", None),
        (steady, 30, "catching_up", 70),
        (steady, 60, "catching_up", 40),
        (fed, 30, "catching_up", 70),
        (stalled, SPAN_S_MIN - STEP_S, "unknown", None),
        (stalled, 30, "stalled", None),
        (growing, 30, "staying_behind", None),
        (level, 30, "staying_behind", None),
        (crawling, 30, "staying_behind", None),
        (under_way, 30, "catching_up", 0.5),
    ],
)
def test_what_is_left_follows_from_the_pace(
    course: Course, seconds: float, progress: Progress, left_s: float | None
) -> None:
    outlook = after(course, seconds)
    assert outlook.progress == progress
    assert outlook.left_s == (None if left_s is None else pytest.approx(left_s, rel=0.05))


def test_the_pace_is_that_of_the_last_seconds() -> None:
    """It stops, and goes on twice as fast."""
    outlook = after(steady, 30)
    after(lambda _: steady(30), WINDOW_S + STEP_S, outlook, 30)
    assert outlook.progress == "stalled"

    def faster(now: float) -> tuple[float, float]:
        more = 200 * (now - 41)
        return 3000 + more, 7000 - more

    after(faster, WINDOW_S + STEP_S, outlook, 41)
    assert outlook.left_s == pytest.approx((7000 - 2060) / 200, rel=0.05)


@pytest.mark.parametrize(
    "again",
    [
        lambda now: (100 * (now - 30), 13_000 - 100 * (now - 30)),  # it has lost what it had
        lambda now: (3000 + 100 * (now - 30), 2000 - 100 * (now - 30)),  # a node was forgotten with its log
    ],
)
def test_what_was_before_a_member_began_anew_does_not_count(again: Course) -> None:
    outlook = after(steady, 30)
    after(again, SPAN_S_MIN - STEP_S, outlook, 30 + STEP_S)
    assert outlook.progress == "unknown"
    after(again, 10, outlook, 33.3)
    left_s = again(43.3)[1] / 100
    assert outlook.left_s == pytest.approx(left_s, rel=0.05)


def test_who_has_had_all_is_not_slower_for_that() -> None:
    """What is lacking now and then, for one look, is no sign of anything."""
    outlook = Outlook()
    for step in range(1000):
        outlook.note(step * STEP_S, step // 2, step % 2)
        assert outlook.progress in ("complete", "unknown")
        assert outlook.left_s is None


def test_little_is_remembered_and_a_long_pause_is_part_of_the_pace() -> None:
    outlook = after(steady, 90)
    assert len(outlook._samples) <= WINDOW_S / STEP_S + 2
    assert outlook.left_s is not None
    outlook.note(290.0, 9500, 500)
    assert outlook.left_s == pytest.approx(500 / 2.5, rel=0.1)
    outlook.note(290.0 + LEFT_S_MAX, 9501, 499)
    assert outlook.progress == "staying_behind"
