"""What was wrong with other nodes, or refused of them: for the log, and for who looks at a node."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from dataclasses import dataclass

from tidemq.broker.clustering import Trouble

TROUBLES_MAX = 64  # of different nodes; the one that is oldest goes
TEXT_MAX = 1000  # characters of a reason
REPEATED_S = 60.0  # between two lines in the log about one that goes on, though its figures change

_log = logging.getLogger("tidemq.cluster")


@dataclass(slots=True)
class _Noted:
    text: str
    count: int
    at: float  # of the wall clock
    logged_at: float  # of a monotonic one


class Troubles:
    """Of each node the last reason; newest last. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: dict[str, _Noted] = {}

    def note(self, whose: str, text: str, *, is_logged: bool = False) -> None:
        """A node, by incarnation or address, was refused, or is not as it should be. `is_logged`: the log has
        it already.
        """
        text, now = text[:TEXT_MAX], time.monotonic()
        with self._lock:
            before = self._noted.pop(whose, None)
            same = before is not None and _words(before.text) == _words(text)
            since = before.logged_at if before is not None and same else -math.inf
            quiet = is_logged or now - since < REPEATED_S
            count = before.count + 1 if before is not None else 1
            self._noted[whose] = _Noted(text, count, time.time(), since if quiet else now)
            if len(self._noted) > TROUBLES_MAX:
                del self._noted[next(iter(self._noted))]
        if not quiet:
            _log.warning("%s: %s", whose, text)

    def note_state(self, whose: str, text: str) -> None:
        """The same of what lasts, and is seen again and again: it is counted once."""
        with self._lock:
            before = self._noted.get(whose)
        if before is None or before.text != text[:TEXT_MAX]:
            self.note(whose, text)

    def all(self) -> list[Trouble]:
        """As they are now."""
        with self._lock:
            return [Trouble(whose, each.text, each.count, each.at) for whose, each in self._noted.items()]


def _words(text: str) -> str:
    return re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "", text)
