"""Answers that are remembered for a time: no more than so many, the one not used for longest goes first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 256  # an entry of more counts as one for each of these


class Remembered(Generic[K, V]):
    """A bounded cache with a time to live. A key may belong to an owner, whose keys are dropped together.
    Large entries count as several: what clients can make long must not make it large.
    """

    def __init__(self, entries_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries_max = entries_max
        self._clock = clock
        self._entries: OrderedDict[K, tuple[V, float, str, int]] = OrderedDict()
        self._weight = 0  # of all, in entries
        self._keys_of: dict[str, set[K]] = {}
        self.evicted = 0  # entries that went for want of room

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: K) -> V | None:
        """What was put there, unless its time has passed."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, until, _, _ = entry
        if self._clock() >= until:
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return value

    def left_s(self, key: K) -> float:
        """The seconds that `find` will still find it for; 0 where it is not there."""
        entry = self._entries.get(key)
        return 0.0 if entry is None else max(0.0, entry[1] - self._clock())

    def put(self, key: K, value: V, ttl_s: float, owner: str = "", held_bytes: int = 0) -> None:
        """Remembers the value for `ttl_s` seconds; not at all where that is 0. `held_bytes`: about what key
        and value hold."""
        self.drop(key)
        weight = 1 + held_bytes // ENTRY_BYTES
        if ttl_s <= 0 or weight > self._entries_max:
            return
        now = self._clock()
        for oldest in list(islice(self._entries, 2)):  # those that nobody has asked for go in time, too
            if self._entries[oldest][1] <= now:
                self.drop(oldest)
        self._entries[key] = (value, now + ttl_s, owner, weight)
        self._weight += weight
        if owner:
            self._keys_of.setdefault(owner, set()).add(key)
        while self._weight > self._entries_max:
            self.drop(next(iter(self._entries)))
            self.evicted += 1

    def drop(self, key: K) -> None:
        """Forgets one entry, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._weight -= entry[3]
        if not entry[2]:
            return
        keys = self._keys_of[entry[2]]
        keys.discard(key)
        if not keys:
            del self._keys_of[entry[2]]

    def clear(self) -> None:
        """Forgets all."""
        self._entries.clear()
        self._keys_of.clear()
        self._weight = 0

    def drop_owner(self, owner: str) -> None:
        """Forgets what belongs to this owner."""
        for key in tuple(self._keys_of.get(owner, ())):
            self.drop(key)
