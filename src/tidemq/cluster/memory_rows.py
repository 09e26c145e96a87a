"""Rows in memory: for simulation, and the model that the stored ones are held against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Generic, NamedTuple, TypeVar

from tidemq.cluster.rows import Rows

A = TypeVar("A")
B = TypeVar("B")
V = TypeVar("V")


class Change(NamedTuple):
    """What a row was, and is; None: no row."""

    table: MemoryTable[Any, Any, Any]
    first: Any
    second: Any
    old: Any
    new: Any


class MemoryTable(Generic[A, B, V]):
    """Rows by two keys; all with one first key can be had together."""

    def __init__(self, name: str, changes: list[Change]) -> None:
        self.name = name
        self._rows: dict[A, dict[B, V]] = {}
        self._changes = changes

    def get(self, first: A, second: B) -> V | None:
        return self._rows.get(first, {}).get(second)

    def put(self, first: A, second: B, new: V | None) -> None:
        """Replaces a row; None removes it."""
        old = self.get(first, second)
        if old is not None or new is not None:
            self._changes.append(Change(self, first, second, old, new))
            self.restore(first, second, new)

    def restore(self, first: A, second: B, value: V | None) -> None:
        """The same, but not as a change of a batch."""
        if value is not None:
            self._rows.setdefault(first, {})[second] = value
        elif first in self._rows:
            self._rows[first].pop(second, None)
            if not self._rows[first]:
                del self._rows[first]

    def of(self, first: A) -> list[tuple[B, V]]:
        """All with this first key, as they are now."""
        return list(self._rows.get(first, {}).items())

    def has(self, first: A) -> bool:
        """Whether there is any with this first key."""
        return first in self._rows

    def all(self) -> Iterator[tuple[A, B, V]]:
        for first, rows in list(self._rows.items()):
            for second, value in list(rows.items()):
                yield first, second, value


class MemoryRows(Rows):
    """Rows with the order and the bounds of a store: `take_changes` gives what one batch has changed."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        tables: dict[str, Any] = {each.name: MemoryTable(each.name, self._changes) for each in fields(Rows)}
        super().__init__(**tables)

    def take_changes(self) -> list[Change]:
        """What was changed since the last time: one batch."""
        taken = self._changes[:]
        self._changes.clear()
        return taken

    @property
    def has_changes(self) -> bool:
        """Whether `take_changes` would give any."""
        return bool(self._changes)
