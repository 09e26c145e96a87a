"""Heartbeats that go on while the keeper waits for its disk.

The keeper says how the node stands. While it cannot, a thread says again what it said last: a node whose
disk is slow is not dead. A keeper that has not gone on for `STUCK_S` is taken for one that never will. Then
nothing more is said, and the others take over what was here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tidemq.cluster.members import BEAT_S, encode_heartbeat, parse_heartbeat

STUCK_S = 20.0  # without a step of the keeper
LATE_S = 1.5 * BEAT_S  # after the last heartbeat, until it is said again

_log = logging.getLogger("tidemq.cluster")


class Heartbeats:
    """Of one node. `broadcast` takes an encoded heartbeat; `keeper_seen_s`: when the keeper last went on, of
    the monotonic clock.
    """

    def __init__(
        self,
        broadcast: Callable[[bytes], object],
        keeper_seen_s: Callable[[], float],
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        stuck_s: float = STUCK_S,
    ) -> None:
        self._broadcast = broadcast
        self._keeper_seen_s = keeper_seen_s
        self._wall_ns = wall_ns
        self._stuck_s = stuck_s
        self._lock = threading.Lock()  # a later heartbeat must not go out before an earlier one
        self._last = b""
        self._said_at = 0.0
        self._is_stuck = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidemq-heartbeats", daemon=True)

    def start(self) -> None:
        """From now on what was said is said again."""
        self._thread.start()

    def close(self) -> None:
        """Nothing is said any more."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def say(self, body: bytes) -> None:
        """The keeper's own word."""
        with self._lock:
            self._last, self._said_at = body, time.monotonic()
            self._broadcast(body)

    def look(self, now: float) -> None:
        """Says it again, if that is due. Only the time is a new one: what the node has may have changed."""
        stuck_s = now - self._keeper_seen_s()
        if stuck_s > self._stuck_s:
            if not self._is_stuck:
                _log.critical(
                    "the keeper has not gone on for %.0f s: other nodes take over what is here", stuck_s
                )
            self._is_stuck = True
            return
        self._is_stuck = False
        with self._lock:
            if self._last and now - self._said_at >= LATE_S and not self._closed.is_set():
                self._said_at = now
                again = replace(parse_heartbeat(self._last), wall_ns=self._wall_ns())
                self._broadcast(encode_heartbeat(again))

    def _run(self) -> None:
        while not self._closed.wait(BEAT_S / 3):
            try:
                self.look(time.monotonic())
            except Exception:  # noqa: BLE001 - the next one may succeed
                _log.exception("a heartbeat was not sent")
