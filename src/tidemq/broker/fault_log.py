"""Log lines that strangers cause: no more a second than the operator wants, and how many were left out."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from tidemq.engine.door.events import Disconnected, Dropped
from tidemq.wire import fault_text

if TYPE_CHECKING:
    from tidemq.engine import Engine

PAUSE_S = 1.0  # in which nobody who comes or goes is reported, after there were too many

_log = logging.getLogger("tidemq")


class Lines:
    """The lines of one kind, `what`: at most `lines_max` a second."""

    def __init__(self, lines_max: int, what: str, level: int = logging.WARNING) -> None:
        self._lines_max = lines_max
        self._what = what
        self._level = level
        self._lines_left = lines_max
        self._left_out = 0
        self._second = 0

    def take(self, now_s: float | None = None) -> bool:
        """Whether one more may be written. `now_s` is a monotonic time."""
        second = int(time.monotonic() if now_s is None else now_s)
        if second != self._second:
            self._second = second
            self._lines_left = self._lines_max
            self.flush()
        if self._lines_left == 0:
            self._left_out += 1
            return False
        self._lines_left -= 1
        return True

    def flush(self) -> None:
        """Says how many lines were left out."""
        if self._left_out:
            _log.log(self._level, "%d more %s were not logged", self._left_out, self._what)
            self._left_out = 0


class FaultLog(Lines):
    """Disconnections that a fault caused."""

    def __init__(self, lines_max: int) -> None:
        super().__init__(lines_max, "faults of clients")

    def log(self, event: Disconnected, now_s: float | None = None) -> None:
        """Logs the event unless this second's lines are used up."""
        if self.take(now_s):
            # %r: a client identifier may hold control characters
            text = fault_text(event.fault)
            if event.detail:
                text += f" ({event.detail})"
            _log.warning("client %r (%s, listener %r): %s", event.client_id, event.peer, event.listener, text)


class Comings(Lines):
    """Clients that come and go. Where nobody but the log wants to know of them, the engine does not report
    them for a while after one second had more than there are lines: each report costs microseconds of Python.
    """

    def __init__(self, engine: Engine, lines_max: int, *, is_needed: bool) -> None:
        super().__init__(lines_max, "connects and disconnects (at least)", logging.INFO)
        self._engine = engine
        self._is_needed = is_needed
        self._is_logged = _log.isEnabledFor(logging.INFO)
        engine.report_connections = is_needed or (self._is_logged and lines_max > 0)

    def log(self, text: str, *values: object) -> None:
        """Logs it unless this second's lines are used up."""
        if not self._is_logged:
            return
        if self.take():
            _log.info(text, *values)
        elif not self._is_needed and self._engine.report_connections:
            self._engine.report_connections = False
            asyncio.get_running_loop().call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._engine.report_connections = True


# by the counter: what stands after the number of messages
DROPS = {
    "dropped_slow_consumer": "of QoS 0 dropped: it reads more slowly than they come",
    "dropped_queue_full": "dropped: its queue is full (queued_messages_max, queued_bytes_max)",
    "dropped_purged": "dropped: an administrator has purged its queue",
    "dropped_packet_too_large": "dropped: they are larger than its Maximum Packet Size",
    "dropped_session_ended": "dropped: its session has ended",
    "dropped_no_group_member": "dropped: the last member of the shared subscription has left",
    "dropped_retained_full": "not retained: retained_messages_max",
    "refused_not_authorised": "or filters refused: the rules, the authoriser or a plugin do not allow them",
    "dropped_memory": "that it published refused: memory_bytes_max",
}


class DropLog(Lines):
    """Messages that were dropped, with the client whose they were or would have been."""

    def __init__(self, lines_max: int) -> None:
        super().__init__(lines_max, "lines on dropped messages")

    def log(self, event: Dropped, now_s: float | None = None) -> None:
        """Logs the event unless this second's lines are used up."""
        if self.take(now_s):
            who = f"client {event.client_id!r}" if event.client_id else "some client"
            _log.warning("%s: %d messages %s", who, event.messages, DROPS[event.counter])
