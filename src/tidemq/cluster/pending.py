"""A store as it will be: new rows that are about to be written are read as if they were there."""

from __future__ import annotations

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
    """`writes`: those of new rows, which the store has not; more may be appended. All else is the store's."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self.writes: list[Write] = []
        self._found: dict[str, dict[bytes, bytes]] = {}  # of the first of them, by family
        self._looked = 0  # so many: mostly nobody asks

    def clear(self) -> None:
        """They are in the store now, or are not to be."""
        self.writes.clear()
        self._found.clear()
        self._looked = 0

    def get(self, family: str, key: bytes) -> bytes | None:
        """As in `Store`."""
        found = self._rows(family).get(key)
        return self._store.get(family, key) if found is None else found

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """As in `Store`."""
        values, rows = self._store.get_many(family, keys), self._rows(family)
        return [rows.get(key, value) for key, value in zip(keys, values, strict=True)] if rows else values

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """As in `Store`."""
        there, rows = self._store.scan(family, prefix, after), self._rows(family)
        new = sorted(row for row in rows.items() if row[0].startswith(prefix) and row[0] > after)
        return merge(new, there, key=itemgetter(0)) if new else there

    def _rows(self, family: str) -> dict[bytes, bytes]:
        for each, key, value in self.writes[self._looked :]:
            if value is not None:
                self._found.setdefault(each, {})[key] = value
        self._looked = len(self.writes)
        return self._found.get(family, {})
