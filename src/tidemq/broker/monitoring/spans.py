"""Spans of messages for OpenTelemetry, where the configuration asks for them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tidemq.config import refused

if TYPE_CHECKING:
    from tidemq.broker.monitoring.span_export import Export
    from tidemq.engine.door.events import Spanned


class Spans:
    """Of one broker; belongs to its event loop."""

    def __init__(self, per_s_max: int) -> None:
        """0: there are none. ConfigError where OpenTelemetry's SDK is not installed."""
        self._export: Export | None = None
        if per_s_max == 0:
            return
        try:
            from tidemq.broker.monitoring.span_export import Export
        except ImportError as error:
            text = f"it needs the package {error.name}"
            accepted = ["0", "pip install 'tidemq[otel]'"]
            raise refused("configuration", "limits.spans_per_s", text, accepted) from error
        self._export = Export()

    @property
    def counts(self) -> Counter[str]:
        """`spans_sent` and `spans_lost`, where there are spans."""
        return Counter() if self._export is None else self._export.counts

    def on_span(self, event: Spanned) -> None:
        """From the engine."""
        if self._export is not None:
            self._export.add(event)

    def close(self) -> None:
        """Sends the last ones; waits some seconds for that. On any thread, once."""
        if self._export is not None:
            self._export.close()
