"""Tables over a store: what a batch has changed lies before what the store has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tidemq.cluster.forms import Reader, decode, encode, write
from tidemq.cluster.pending import Readable
from tidemq.store import Write

A = TypeVar("A")
B = TypeVar("B")
V = TypeVar("V")

FAMILY = "cluster"
LOOKED_AT_MAX = 1000  # first keys of a `SparseTable` whose rows are remembered


class Layout(Protocol[A, B, V]):
    """Where the rows of a table are in the store."""

    def load(self, first: A, second: B) -> V | None:
        """A row; None: there is none."""

    def load_each(self, first: A) -> Iterator[tuple[B, V]]:
        """All with this first key."""

    def load_all(self) -> Iterator[tuple[A, B, V]]:
        """Every row."""

    def writes(self, first: A, second: B, value: V | None) -> Iterator[Write]:
        """What makes a row this, whatever it was."""


class StoredTable(Generic[A, B, V]):
    """A table of `rows.py`. Holds what has been changed until `confirm` or `discard`."""

    def __init__(self, layout: Layout[A, B, V]) -> None:
        self._layout = layout
        self._changed: dict[A, dict[B, V | None]] = {}

    def get(self, first: A, second: B) -> V | None:
        """As in `Table`."""
        changed = self._changed.get(first)
        if changed is not None and second in changed:
            return changed[second]
        return self._layout.load(first, second)

    def put(self, first: A, second: B, new: V | None) -> None:
        """As in `Table`."""
        self._changed.setdefault(first, {})[second] = new

    def of(self, first: A) -> list[tuple[B, V]]:
        """As in `Table`."""
        rows: dict[B, V | None] = dict(self._layout.load_each(first))
        rows.update(self._changed.get(first, {}))
        return [(second, value) for second, value in rows.items() if value is not None]

    def has(self, first: A) -> bool:
        """As in `Table`."""
        changed = self._changed.get(first, {})
        if any(value is not None for value in changed.values()):
            return True
        return any(second not in changed for second, _ in self._layout.load_each(first))

    def all(self) -> Iterator[tuple[A, B, V]]:
        """As in `Table`."""
        changed = {first: dict(rows) for first, rows in self._changed.items()}
        for first, second, value in self._layout.load_all():
            if second not in changed.get(first, {}):
                yield first, second, value
        for first, rows in changed.items():
            for second, new in rows.items():
                if new is not None:
                    yield first, second, new

    @property
    def changed(self) -> list[A]:
        """First keys of rows that have been changed."""
        return list(self._changed)

    def has_changed(self, first: A) -> bool:
        """Whether a row with this first key has been changed."""
        return first in self._changed

    def changed_of(self, first: A) -> list[B]:
        """Second keys of rows with this first key that have been changed."""
        return list(self._changed.get(first, ()))

    def writes(self) -> Iterator[Write]:
        """Those of what has been changed."""
        for first, rows in self._changed.items():
            for second, value in rows.items():
                yield from self._layout.writes(first, second, value)

    def confirm(self) -> None:
        """The store has what has been changed."""
        self._changed.clear()

    def discard(self) -> None:
        """What has been changed is not."""
        self._changed.clear()

    def read_again(self) -> None:
        """What is remembered of the store, after a `discard`, is as that has it."""


class KeptTable(StoredTable[A, B, V]):
    """A small table, in memory too: it is read once."""

    def __init__(self, layout: Layout[A, B, V]) -> None:
        self._kept: dict[A, dict[B, V]] = {}
        self._stored = layout
        self.read_again()
        super().__init__(KeptLayout(layout, self._kept))

    def read_again(self) -> None:
        """As in `StoredTable`."""
        rows = list(self._stored.load_all())
        self._kept.clear()
        for first, second, value in rows:
            self._kept.setdefault(first, {})[second] = value

    def confirm(self) -> None:
        """As in `StoredTable`."""
        for first, rows in self._changed.items():
            for second, value in rows.items():
                kept = self._kept.setdefault(first, {})
                if value is None:
                    kept.pop(second, None)
                else:
                    kept[second] = value
        super().confirm()


class SparseTable(StoredTable[A, B, V]):
    """Few first keys have rows. Which these are is known in memory, so that the others cost no look; and the
    rows of some that were looked at, for that is done again for each entry of a queue.
    """

    def __init__(self, layout: Layout[A, B, V]) -> None:
        super().__init__(layout)
        self._firsts = {first for first, _, _ in layout.load_all()}
        self._looked_at: dict[A, list[tuple[B, V]]] = {}

    def get(self, first: A, second: B) -> V | None:
        """As in `Table`."""
        return super().get(first, second) if first in self._firsts else None

    def put(self, first: A, second: B, new: V | None) -> None:
        """As in `Table`."""
        self._firsts.add(first)
        self._looked_at.pop(first, None)
        super().put(first, second, new)

    def of(self, first: A) -> list[tuple[B, V]]:
        """As in `Table`."""
        if first not in self._firsts:
            return []
        if first not in self._looked_at:
            if len(self._looked_at) >= LOOKED_AT_MAX:
                self._looked_at.clear()
            self._looked_at[first] = super().of(first)
        return [*self._looked_at[first]]

    def has(self, first: A) -> bool:
        """As in `Table`."""
        return first in self._firsts and super().has(first)

    def confirm(self) -> None:
        """As in `StoredTable`."""
        changed = self.changed
        super().confirm()
        self._firsts.difference_update(first for first in changed if not super(SparseTable, self).has(first))

    def discard(self) -> None:
        """As in `StoredTable`."""
        for first in self.changed:
            self._looked_at.pop(first, None)
        super().discard()

    def read_again(self) -> None:
        """As in `StoredTable`. What was put and then discarded is among the first keys still."""
        self._looked_at.clear()


class NotedTable(StoredTable[A, B, V]):
    """`note` is called with the keys of each row that is put."""

    def __init__(self, layout: Layout[A, B, V], note: Callable[[A, B], object]) -> None:
        super().__init__(layout)
        self._note = note

    def put(self, first: A, second: B, new: V | None) -> None:
        """As in `Table`."""
        if new is not None:
            self._note(first, second)
        super().put(first, second, new)


class PlainLayout(Generic[A, B, V]):
    """Rows of one family: a letter, the first key and the second -> the value. `forms` (`forms.py`) are of
    these three; empty, a key is None. `part` and `join` are between a value and what its forms write.
    """

    def __init__(
        self,
        store: Readable,
        letter: bytes,
        forms: tuple[str, str, str],
        *,
        part: Callable[[V], Sequence[Any]] = lambda value: [value],
        join: Callable[..., V] = lambda value: value,
        family: str = FAMILY,
    ) -> None:
        self._store = store
        self._letter = letter
        self._first, self._second, self._value = forms
        self._part, self._join = part, join
        self._family = family

    def _key(self, first: A, *second: B) -> bytes:
        text = bytearray(self._letter)
        if self._first:
            write(text, self._first, first)
        if self._second and second:
            write(text, self._second, second[0])
        return bytes(text)

    def _decode(self, text: bytes) -> V:
        return self._join(*decode(self._value, text))

    def load(self, first: A, second: B) -> V | None:
        """As in `Layout`."""
        text = self._store.get(self._family, self._key(first, second))
        return None if text is None else self._decode(text)

    def load_each(self, first: A) -> Iterator[tuple[B, V]]:
        """As in `Layout`."""
        for _, second, value in self._scan(self._key(first)):
            yield second, value

    def load_all(self) -> Iterator[tuple[A, B, V]]:
        """As in `Layout`."""
        return self._scan(self._letter)

    def _scan(self, prefix: bytes) -> Iterator[tuple[A, B, V]]:
        for key, text in self._store.scan(self._family, prefix):
            reader = Reader(key, len(self._letter))
            first = reader.read(self._first) if self._first else None
            second = reader.read(self._second) if self._second else None
            yield first, second, self._decode(text)  # type: ignore[misc]  # as the forms say

    def writes(self, first: A, second: B, value: V | None) -> Iterator[Write]:
        """As in `Layout`."""
        text = None if value is None else encode(self._value, *self._part(value))
        yield self._family, self._key(first, second), text


def tuple_layout(store: Readable, letter: bytes, forms: tuple[str, str, str]) -> PlainLayout[Any, Any, Any]:
    """Rows whose values are tuples, as their forms say."""
    return PlainLayout(store, letter, forms, part=lambda value: value, join=lambda *values: values)


class KeptLayout(Generic[A, B, V]):
    """Rows are read in memory and written as the layout below says."""

    def __init__(self, layout: Layout[A, B, V], kept: dict[A, dict[B, V]]) -> None:
        self._kept = kept
        self.writes = layout.writes

    def load(self, first: A, second: B) -> V | None:
        """As in `Layout`."""
        return self._kept.get(first, {}).get(second)

    def load_each(self, first: A) -> Iterator[tuple[B, V]]:
        """As in `Layout`."""
        return iter(list(self._kept.get(first, {}).items()))

    def load_all(self) -> Iterator[tuple[A, B, V]]:
        """As in `Layout`."""
        return iter([(first, *row) for first, rows in self._kept.items() for row in rows.items()])
