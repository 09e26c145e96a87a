"""One log line for each fault of a client, and no more lines than the operator wants."""

from __future__ import annotations

import logging
import time

from tidemq.engine.events import Disconnected
from tidemq.wire import fault_text

_log = logging.getLogger("tidemq")


class FaultLog:
    """Logs disconnections that a fault caused, at most `lines_max` a second; says how many it left out."""

    def __init__(self, lines_max: int) -> None:
        self._lines_max = lines_max
        self._lines_left = lines_max
        self._left_out = 0
        self._second = 0

    def log(self, event: Disconnected, now_s: float | None = None) -> None:
        """Logs the event unless this second's lines are used up. `now_s` is a monotonic time."""
        second = int(time.monotonic() if now_s is None else now_s)
        if second != self._second:
            self._second = second
            self._lines_left = self._lines_max
            self.flush()
        if self._lines_left == 0:
            self._left_out += 1
            return
        self._lines_left -= 1
        # %r: a client identifier may hold control characters
        detail = f" ({event.detail})" if event.detail else ""
        _log.warning("client %r (%s): %s%s", event.client_id, event.peer, fault_text(event.fault), detail)

    def flush(self) -> None:
        """Says how many lines were left out."""
        if self._left_out:
            _log.warning("%d more faults of clients were not logged", self._left_out)
            self._left_out = 0
