"""How the jobs of a process are: written by them, read by others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

from tidemq.pipeline.lake.measures import Measures
from tidemq.pipeline.service.figures import FiguresListener


class Board:
    """Of some streams' ingest what it counts; of queries what Spark says; of jobs, whether they go on."""

    def __init__(self, streams: Iterable[str]) -> None:
        self.measures: Mapping[str, Measures] = {name: Measures(name) for name in streams}
        self.listener = FiguresListener()
        self._lock = threading.Lock()
        self._failing: dict[str, str] = {}
        self._failures: Counter[str] = Counter()

    def goes_on(self, job: str) -> None:
        """It has begun, or has begun again."""
        with self._lock:
            self._failing.pop(job, None)
            self._failures[job] += 0

    def cannot_go_on(self, job: str, why: str) -> None:
        """It waits to be begun again."""
        with self._lock:
            self._failing[job] = why
            self._failures[job] += 1

    def failing(self) -> dict[str, str]:
        """Jobs that wait, and why."""
        with self._lock:
            return dict(self._failing)

    def failures(self) -> Counter[str]:
        """By job, how often it could not go on; 0 of one that always has."""
        with self._lock:
            return Counter(self._failures)
