"""Sessions to which another node may add the same messages as this one, for a while after they have moved."""

from __future__ import annotations

import time
from collections import deque
from math import inf

from tidemq.cluster.adoption import Mark


class Sharing:
    """Keeps `moving`, the set of these sessions' clients, as `Node` has it; on the keeper's thread."""

    def __init__(self, moving: set[str]) -> None:
        self._moving = moving
        self._until: dict[str, float] = {}
        self._in_turn: deque[tuple[float, str]] = deque()  # the same in the order of time
        self._marks: dict[str, list[Mark]] = {}

    def begin(self, client: str, for_s: float) -> None:
        """From now on, for so long."""
        self._moving.add(client)
        until = self._until[client] = time.monotonic() + for_s
        if for_s != inf:
            self._in_turn.append((until, client))

    def note_marks(self, client: str, marks: list[Mark]) -> None:
        """What had been taken for it elsewhere when it came here."""
        self._marks[client] = marks

    def marks(self, client: str) -> list[Mark]:
        """As noted; none, where that is over."""
        return self._marks.get(client, [])

    def end(self, client: str) -> None:
        """It is this node's no more."""
        self._moving.discard(client)
        self._until.pop(client, None)
        self._marks.pop(client, None)

    def advance(self, now: float) -> None:
        """Ends those whose time is over."""
        while self._in_turn and self._in_turn[0][0] <= now:
            until, client = self._in_turn.popleft()
            if self._until.get(client) == until:
                self.end(client)
