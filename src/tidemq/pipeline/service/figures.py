"""How the queries of a session go on, by Spark's own listener."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a query, since it was seen first."""

    batches: int = 0
    messages: int = 0  # that it has worked
    seconds: float = 0.0  # that its batches took
    behind: int = 0  # messages from where it is to the end of the stream, when its last batch began
    state_rows: int = 0  # that it keeps now
    state_bytes: int = 0


class FiguresListener(StreamingQueryListener):
    """Told by Spark, read by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures: dict[str, Figures] = {}

    def figures(self) -> dict[str, Figures]:
        """By the names of the queries."""
        with self._lock:
            return dict(self._figures)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's names
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        if progress.name:
            with self._lock:
                before = self._figures.get(progress.name, Figures())
                self._figures[progress.name] = _after(before, progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def _after(before: Figures, progress: StreamingQueryProgress) -> Figures:
    source = progress.sources[0]
    observed = progress.observedMetrics.get("tidemq")
    rows = progress.numInputRows if observed is None else observed["messages"] or 0
    return Figures(
        before.batches + 1,
        before.messages + rows,
        before.seconds + progress.durationMs.get("triggerExecution", 0) / 1000,
        max(_offset(source.latestOffset) - _offset(source.endOffset), 0),
        sum(each.numRowsTotal for each in progress.stateOperators),
        sum(each.memoryUsedBytes for each in progress.stateOperators),
    )


def _offset(text: Any) -> int:
    """As the source writes it; 0 where there is none."""
    found = json.loads(text) if text else None
    return int(found["offset"]) if isinstance(found, dict) else 0
