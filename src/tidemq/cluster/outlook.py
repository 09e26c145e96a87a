"""When a member will have what it lacks, by the pace of the last seconds; without any I/O."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tidemq.broker.clustering import Progress

WINDOW_S = 10.0  # the pace is that of so long
SPAN_S_MIN = 3.0  # of looks; about less nothing is said
UNDER_WAY_S = 2.0  # what a member applies in so long is on its way: heartbeats are not of one moment
LEFT_S_MAX = 86_400.0  # a pace that changes the next minute says nothing of next week


class _Sample(NamedTuple):
    at: float
    has: int
    lacks: int


class Outlook:
    """Of one member. `left_s` is None unless `progress` is `catching_up`."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()  # since it began to lack some, at most `WINDOW_S`
        self.progress: Progress = "complete"
        self.left_s: float | None = None

    def note(self, now: float, has: int, lacks: int) -> None:
        """How many records of all nodes it has applied, and how many more there are."""
        samples, new = self._samples, _Sample(now, has, lacks)
        if not lacks or (samples and _begins_anew(samples[-1], new)):
            samples.clear()
        if not lacks:
            self.progress, self.left_s = "complete", None
            return
        samples.append(new)
        while len(samples) > 2 and samples[1].at <= now - WINDOW_S:
            samples.popleft()
        self.progress, self.left_s = _estimate(samples[0], new)


def _begins_anew(before: _Sample, now: _Sample) -> bool:
    """Whether the two show no pace: it has lost what it had, or a node and its log were forgotten."""
    return now.has < before.has or now.has + now.lacks < before.has + before.lacks


def _estimate(first: _Sample, last: _Sample) -> tuple[Progress, float | None]:
    span_s = last.at - first.at
    if span_s < SPAN_S_MIN:
        return "unknown", None
    applied = last.has - first.has
    if not applied:
        return "stalled", None
    if last.lacks * span_s <= UNDER_WAY_S * applied:
        return "catching_up", last.lacks * span_s / applied
    gained = first.lacks - last.lacks  # what was added meanwhile is in it
    if gained <= 0 or last.lacks * span_s > LEFT_S_MAX * gained:
        return "staying_behind", None
    return "catching_up", last.lacks * span_s / gained
