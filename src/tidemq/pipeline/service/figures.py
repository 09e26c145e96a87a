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
    if not rows and "nodes" in (source.endOffset or ""):  # ingest of several nodes reads them by itself
        rows = _ahead(source.endOffset, source.startOffset)
    return Figures(
        before.batches + 1,
        before.messages + rows,
        before.seconds + progress.durationMs.get("triggerExecution", 0) / 1000,
        _ahead(source.latestOffset, source.endOffset),
        sum(each.numRowsTotal for each in progress.stateOperators),
        sum(each.memoryUsedBytes for each in progress.stateOperators),
    )


def _ahead(later: Any, sooner: Any) -> int:
    """How many messages are between two offsets of the source; of nodes that both have, if it has several."""
    ends, starts = _offsets(later), _offsets(sooner)
    return sum(max(end - starts.get(epoch, end), 0) for epoch, end in ends.items())


def _offsets(text: Any) -> dict[int, int]:
    """As the source writes it, by epoch of the stream; empty where there is none."""
    found = json.loads(text) if text else None
    if not isinstance(found, dict):
        return {}
    return {each.get("epoch", 0): int(each["offset"]) for each in found.get("nodes", [found])}
