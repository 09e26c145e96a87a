"""Answers that are remembered for a time: no more than so many, the one not used for longest goes first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """A bounded cache with a time to live. A key may belong to an owner, whose keys are dropped together."""

    def __init__(self, entries_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries_max = entries_max
        self._clock = clock
        self._entries: OrderedDict[K, tuple[V, float, str]] = OrderedDict()
        self._keys_of: dict[str, set[K]] = {}
        self.evicted = 0  # entries that went for want of room

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: K) -> V | None:
        """What was put there, unless its time has passed."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, until, _ = entry
        if self._clock() >= until:
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return value

    def left_s(self, key: K) -> float:
        """The seconds that `find` will still find it for; 0 where it is not there."""
        entry = self._entries.get(key)
        return 0.0 if entry is None else max(0.0, entry[1] - self._clock())

    def put(self, key: K, value: V, ttl_s: float, owner: str = "") -> None:
        """Remembers the value for `ttl_s` seconds; not at all where that is 0."""
        self.drop(key)
        if ttl_s <= 0 or self._entries_max == 0:
            return
        self._entries[key] = (value, self._clock() + ttl_s, owner)
        if owner:
            self._keys_of.setdefault(owner, set()).add(key)
        if len(self._entries) > self._entries_max:
            self.drop(next(iter(self._entries)))
            self.evicted += 1

    def drop(self, key: K) -> None:
        """Forgets one entry, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is None or not entry[2]:
            return
        keys = self._keys_of[entry[2]]
        keys.discard(key)
        if not keys:
            del self._keys_of[entry[2]]

    def drop_owner(self, owner: str) -> None:
        """Forgets what belongs to this owner."""
        for key in self._keys_of.pop(owner, ()):
            del self._entries[key]
