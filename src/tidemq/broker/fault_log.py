"""Log lines that strangers cause: no more a second than the operator wants, and how many were left out."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from tidemq.engine.door.events import Connected, Disconnected, Dropped, Revoked
from tidemq.wire import fault_text

if TYPE_CHECKING:
    from tidemq.engine import Engine

PAUSE_S = 1.0  # in which nobody who comes or goes is reported, after there were too many

_log = logging.getLogger("tidemq.clients")


class Lines:
    """The lines of one kind, `what`: at most `lines_max` a second."""

    def __init__(self, lines_max: int, what: str, level: int = logging.WARNING) -> None:
        self._lines_max = lines_max
        self._what = what
        self._level = level
        self._lines_left = lines_max
        self._left_out = 0
        self._second = 0
        self.left_out = 0  # in all

    def take(self, now_s: float | None = None) -> bool:
        """Whether one more may be written. `now_s` is a monotonic time."""
        second = int(time.monotonic() if now_s is None else now_s)
        if second != self._second:
            self._second = second
            self._lines_left = self._lines_max
            self.flush()
        if self._lines_left == 0:
            self._left_out += 1
            self.left_out += 1
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
            values = event.client_id, event.peer, event.listener, text
            fields = {
                "client": event.client_id,
                "address": event.peer,
                "listener": event.listener,
                "user": event.username,
                "reason": fault_text(event.fault),
                "bytes": event.bytes,
                "seconds": round(event.seconds, 3),
            }
            _log.warning("client %r (%s, listener %r): %s", *values, extra=fields)


class Comings(Lines):
    """Clients that come and go. Where nobody but the log wants to know of them, the engine does not report
    them for a while after one second had more than there are lines: each report costs microseconds of Python.
    """

    def __init__(self, engine: Engine, lines_max: int, *, is_needed: bool) -> None:
        super().__init__(lines_max, "connects and disconnects (at least)", logging.INFO)
        self._engine = engine
        self._is_needed = is_needed
        self.follow_level()

    def follow_level(self) -> None:
        """Looks whether anybody wants the lines: to be called when the level has changed."""
        self._is_logged = _log.isEnabledFor(logging.INFO)
        self._engine.report_connections = self._is_needed or (self._is_logged and self._lines_max > 0)

    def log(self, text: str, *values: object, **fields: object) -> None:
        """Logs it unless this second's lines are used up."""
        if not self._is_logged:
            return
        if self.take():
            _log.info(text, *values, extra=fields)
        elif not self._is_needed and self._engine.report_connections:
            self._engine.report_connections = False
            asyncio.get_running_loop().call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self.follow_level()


# by the counter: what stands after the number of messages
DROPS = {
    "dropped_slow_consumer": "of QoS 0 dropped: it reads more slowly than they come",
    "dropped_queue_full": "dropped: its queue is full (queued_messages_max, queued_bytes_max)",
    "dropped_purged": "dropped: an administrator has purged its queue",
    "dropped_packet_too_large": "dropped: they are larger than its Maximum Packet Size",
    "dropped_payload_too_large": "that it published dropped: payload_bytes_max",
    "dropped_session_ended": "dropped: its session has ended",
    "dropped_no_group_member": "dropped: the last member of the shared subscription has left",
    "dropped_retained_full": "not retained: retained_messages_max",
    "refused_not_authorised": "or filters refused: the rules, the authoriser or a plugin do not allow them",
    "refused_plugin": "refused: a plugin does not want them",
    "dropped_held": "dropped: its connection has ended while plugins decided on them",
    "dropped_node_full": "not passed on: too much is under way to another node (node_bytes_max)",
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
            fields = {"client": event.client_id or None, "reason": event.counter}
            _log.warning("%s: %d messages %s", who, event.messages, DROPS[event.counter], extra=fields)


class ClientLog:
    """What is logged of a running broker's clients."""

    def __init__(self, engine: Engine, lines_max: int, *, is_needed: bool) -> None:
        """`is_needed`: somebody else wants to know who comes and goes, too."""
        self._faults = FaultLog(lines_max)
        self._drops = DropLog(lines_max)
        self._comings = Comings(engine, lines_max, is_needed=is_needed)

    @property
    def left_out(self) -> int:
        """Lines that were too many."""
        return self._faults.left_out + self._drops.left_out + self._comings.left_out

    def on_connected(self, event: Connected) -> None:
        """A client has come."""
        fields = {
            "client": event.client_id,
            "address": event.peer,
            "listener": event.listener,
            "user": event.username,
        }
        self._comings.log("client %r (%s) connected", event.client_id, event.peer, **fields)

    def on_disconnected(self, event: Disconnected) -> None:
        """A client has gone, or was refused."""
        if event.fault:
            self._faults.log(event)
            return
        text, reason = "client %r (%s) disconnected, reason %#04x", f"{event.reason:#04x}"
        fields = {
            "client": event.client_id,
            "address": event.peer,
            "listener": event.listener,
            "user": event.username,
            "reason": reason,
            "bytes": event.bytes,
            "seconds": round(event.seconds, 3),
        }
        self._comings.log(text, event.client_id, event.peer, event.reason, **fields)

    def on_dropped(self, event: Dropped) -> None:
        """Messages were dropped."""
        self._drops.log(event)

    def on_revoked(self, event: Revoked) -> None:
        """New rules have ended subscriptions."""
        _log.info(
            "the rules ended %d subscriptions of client %r, one of them to %r",
            event.subscriptions,
            event.client_id,
            event.topic_filter,
            extra={"client": event.client_id},
        )

    def follow_level(self) -> None:
        """The level of the log has changed."""
        self._comings.follow_level()

    def flush(self) -> None:
        """Says how many lines were left out."""
        for lines in (self._faults, self._comings, self._drops):
            lines.flush()
