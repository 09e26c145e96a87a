"""A store as it will be: what is about to be written is read as if it were there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Protocol

from tidemq.store import Write
from tidemq.store.interface import Row


class Readable(Protocol):
    """What of a `Store` is needed to read it."""

    def get(self, family: str, key: bytes) -> bytes | None: ...
    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]: ...


class Pending:
    """`writes`: those that the store has not; more may be appended. All else is the store's."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self.writes: list[Write] = []
        self._found: dict[str, dict[bytes, bytes | None]] = {}  # of the first of them, by family
        self._looked = 0  # so many: mostly nobody asks
        self._sorted: dict[str, list[bytes]] = {}  # keys of `_found`, where they were scanned

    def clear(self) -> None:
        """They are in the store now, or are not to be."""
        self.writes.clear()
        self._found.clear()
        self._sorted.clear()
        self._looked = 0

    def get(self, family: str, key: bytes) -> bytes | None:
        """As in `Store`."""
        rows = self._rows(family)
        return rows[key] if key in rows else self._store.get(family, key)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """As in `Store`."""
        rows = self._rows(family)
        if not rows:
            return self._store.get_many(family, keys)
        rest = [key for key in keys if key not in rows]
        there = dict(zip(rest, self._store.get_many(family, rest), strict=True)) if rest else {}
        return [rows[key] if key in rows else there[key] for key in keys]

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """As in `Store`."""
        there, rows = self._store.scan(family, prefix, after), self._rows(family)
        keys = self._keys(family, prefix, after)
        if not keys:
            return there
        new = [(key, value) for key in keys if (value := rows[key]) is not None]
        changed = frozenset(keys)
        return merge(new, (row for row in there if row[0] not in changed), key=itemgetter(0))

    def _rows(self, family: str) -> dict[bytes, bytes | None]:
        if self._looked < len(self.writes):
            for each, key, value in self.writes[self._looked :]:
                self._found.setdefault(each, {})[key] = value
            self._looked = len(self.writes)
        return self._found.get(family, {})

    def _keys(self, family: str, prefix: bytes, after: bytes) -> list[bytes]:
        """Those of a scan, in order."""
        rows, keys = self._found.get(family, {}), self._sorted.setdefault(family, [])
        if len(keys) != len(rows):
            keys[:] = sorted(rows)
        first = max(bisect_left(keys, prefix), bisect_right(keys, after) if after else 0)
        last = first
        while last < len(keys) and keys[last].startswith(prefix):
            last += 1
        return keys[first:last]
