"""Sessions to which another node may add the same messages as this one, for a while after they have moved."""

from __future__ import annotations

import time
from collections import deque
from math import inf

LATE_S = 30.0  # no message is on its way for longer
DOUBLES_S = LATE_S  # and twice `cluster_suspect_s`: longer than its old home takes messages for it


class Sharing:
    """Keeps the set of these sessions' `clients`; on the keeper's thread."""

    def __init__(self, suspect_s: float) -> None:
        self.clients: set[str] = set()
        self._suspect_s = suspect_s
        self._until: dict[str, float] = {}
        self._in_turn: deque[tuple[float, str]] = deque()  # the same in the order of time

    @property
    def for_s(self) -> float:
        """For how long after it has come a session may get a message by its old home, too."""
        return DOUBLES_S + 2 * self._suspect_s

    def begin(self, client: str, *, until_it_goes: bool = False) -> None:
        """From now on, for so long; or while it takes messages here that are another node's by now."""
        self.clients.add(client)
        until = self._until[client] = inf if until_it_goes else time.monotonic() + self.for_s
        if not until_it_goes:
            self._in_turn.append((until, client))

    def end(self, client: str) -> None:
        """It is this node's no more."""
        self.clients.discard(client)
        self._until.pop(client, None)

    def advance(self, now: float) -> None:
        """Ends those whose time is over."""
        while self._in_turn and self._in_turn[0][0] <= now:
            until, client = self._in_turn.popleft()
            if self._until.get(client) == until:
                self.end(client)
