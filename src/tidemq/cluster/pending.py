"""A store as it will be: rows that are about to be written are read as if they were there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Protocol

from tidemq.store import Write
from tidemq.store.interface import Row

FAMILIES = ("payload", "reference", "queue", "expiry", "cluster")


class Readable(Protocol):
    """What of a `Store` is needed to read it."""

    def get(self, family: str, key: bytes) -> bytes | None: ...
    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]: ...


class Pending:
    """`rows`, by family: new ones, none of which the store has. All else is the store's."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self.rows: dict[str, dict[bytes, bytes]] = {each: {} for each in FAMILIES}

    @property
    def count(self) -> int:
        """Queue rows that are about to be written."""
        return len(self.rows["queue"])

    def writes(self) -> list[Write]:
        """Those of all of them."""
        return [(family, key, value) for family, rows in self.rows.items() for key, value in rows.items()]

    def clear(self) -> None:
        """They are in the store now, or are not to be."""
        for rows in self.rows.values():
            rows.clear()

    def get(self, family: str, key: bytes) -> bytes | None:
        """As in `Store`."""
        rows = self.rows.get(family)
        found = rows.get(key) if rows else None
        return self._store.get(family, key) if found is None else found

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """As in `Store`."""
        values = self._store.get_many(family, keys)
        rows = self.rows.get(family)
        if rows:
            values = [rows.get(key, value) for key, value in zip(keys, values, strict=True)]
        return values

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """As in `Store`."""
        there = self._store.scan(family, prefix, after)
        rows = self.rows.get(family) or {}
        new = sorted(row for row in rows.items() if row[0].startswith(prefix) and row[0] > after)
        return merge(new, there, key=itemgetter(0)) if new else there
