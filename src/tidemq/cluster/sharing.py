"""Sessions to which another node may add the same messages as this one: for a while after they have moved;
and all, while nodes that did not hear each other hear what the others have done.
"""

from __future__ import annotations

import time
from collections import deque
from math import inf

LATE_S = 30.0  # no message is on its way for longer
DOUBLES_S = LATE_S  # and twice `cluster_suspect_s`: longer than its old home takes messages for it


class Sharing:
    """These sessions' clients; on the keeper's thread. `everybody`: all clients are."""

    def __init__(self, suspect_s: float) -> None:
        self.everybody = False
        self._clients: set[str] = set()
        self._suspect_s = suspect_s
        self._until: dict[str, float] = {}
        self._in_turn: deque[tuple[float, str]] = deque()  # the same in the order of time

    def __contains__(self, client: object) -> bool:
        return self.everybody or client in self._clients

    def __bool__(self) -> bool:
        return self.everybody or bool(self._clients)

    @property
    def for_s(self) -> float:
        """For how long after it has come a session may get a message by its old home, too."""
        return DOUBLES_S + 2 * self._suspect_s

    def begin(self, client: str, *, until_it_goes: bool = False) -> None:
        """From now on, for so long; or while it takes messages here that are another node's by now."""
        self._clients.add(client)
        until = self._until[client] = inf if until_it_goes else time.monotonic() + self.for_s
        if not until_it_goes:
            self._in_turn.append((until, client))

    def end(self, client: str) -> None:
        """It is this node's no more."""
        self._clients.discard(client)
        self._until.pop(client, None)

    def advance(self, now: float) -> None:
        """Ends those whose time is over."""
        while self._in_turn and self._in_turn[0][0] <= now:
            until, client = self._in_turn.popleft()
            if self._until.get(client) == until:
                self.end(client)
