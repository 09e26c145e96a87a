"""Reads a damaged SQLite file page by page: SQLite itself goes no further than the first page it cannot read.

A table WITHOUT ROWID is a tree of pages that all hold rows; the children of a page lie between its rows. A
page: type (1), first free block (2), number of rows (2), 3 more bytes, on an interior page the last child
(4), and the places of the rows (2 each). A row's place: on an interior page the child before it (4), size
(varint), as much of the row as the page takes, and where that is not all the number of the page with the rest
(4), which begins with that of the next one (4). A row: size of what comes before the columns, a type for each
column (varints), the columns. Pages that are not in use are in a list that begins on page 1. Numbers are
big-endian. Source: SQLite, "Database File Format".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tidemq.store.interface import Write

PAGE_BYTES = 4096  # unless page 1 says otherwise
_INTERIOR, _LEAF = 2, 10
_BLOB = 12  # type of an empty one; two more for each byte
_APART, _IN_TREE = 1, 2  # what is known of a page: it is free or a part of a row; it was read


@dataclass
class _Page:
    children: list[int]  # none on a leaf, else one more than rows
    rows: list[tuple[bytes, bytes | None]]  # key and value; None where that cannot be read

    def belongs(self, place: _Place) -> bool:
        return not self.rows or any(place.holds(key) for key, _ in self.rows)


@dataclass
class _Place:
    """Where a page hangs: all its keys lie between two."""

    family: str
    page: int
    depth: int = 0
    low: bytes | None = None
    high: bytes | None = None

    def holds(self, key: bytes) -> bool:
        return (self.low is None or key > self.low) and (self.high is None or key < self.high)

    def rows(self, page: _Page) -> Iterator[Write]:
        rows = ((key, value) for key, value in page.rows if self.holds(key))
        yield from ((self.family, key, value) for key, value in rows if value is not None)

    def children(self, page: _Page) -> list[_Place]:
        bounds = [self.low, *(key for key, _ in page.rows), self.high]
        numbers = zip(page.children, pairwise(bounds), strict=False)
        return [_Place(self.family, number, self.depth + 1, *between) for number, between in numbers]


def read_rows(path: Path, roots: Mapping[str, int]) -> Iterator[Write]:
    """What can be read of a file without its log, whose tables begin on these pages: all rows but those on
    damaged pages, in no order.

    Where a page that says where others are is damaged, those are found by their keys, unless two tables could
    have them.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from _Reader(descriptor).read(roots)
    finally:
        os.close(descriptor)


class _Reader:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._page_bytes, self._usable = _read_sizes(os.pread(descriptor, 100, 0))
        self._count = os.fstat(descriptor).st_size // self._page_bytes
        self._known = bytearray(self._count + 1)  # what, by page
        self._least = (self._usable - 12) * 32 // 255 - 23  # of a row that is continued elsewhere
        self._most = (self._usable - 12) * 64 // 255 - 23  # of a row that is not

    def read(self, roots: Mapping[str, int]) -> Iterator[Write]:
        self._mark_free()
        damaged: list[_Place] = []
        leaves: dict[str, int] = {}  # how deep they are: all of a table's the same
        for family, root in roots.items():
            todo = [_Place(family, root)]
            while todo:
                place = todo.pop()
                page = self._take(place)
                if page is None:
                    damaged.append(place)
                    continue
                if not page.children:
                    leaves[family] = place.depth
                todo += reversed(place.children(page))
                yield from place.rows(page)
        yield from self._read_lost(damaged, leaves)

    def _take(self, place: _Place) -> _Page | None:
        """The page of a place; None where it cannot be read, or is another's."""
        page = self._parse(place.page)
        if page is None or self._known[place.page] == _IN_TREE or not page.belongs(place):
            return None
        self._known[place.page] = _IN_TREE
        return page

    def _read_lost(self, damaged: list[_Place], leaves: Mapping[str, int]) -> Iterator[Write]:
        """Rows of pages that hung below damaged ones, by the places of these."""
        above = [place for place in damaged if place.depth != leaves.get(place.family)]
        for number in range(2, self._count + 1):
            page = None if self._known[number] else self._parse(number)
            if page is not None and page.rows and (place := _find(page, above) or _find(page, damaged)):
                yield from place.rows(page)

    def _mark_free(self) -> None:
        """Finds the pages that are not in use: those may hold rows that were deleted."""
        trunk = int.from_bytes(self._read(1)[32:36])
        while 1 < trunk <= self._count and not self._known[trunk]:
            self._known[trunk] = _APART
            text = self._read(trunk)
            trunk, count = struct.unpack_from(">II", text.ljust(8, b"\0"))
            numbers = text[8 : 8 + 4 * count] if 8 + 4 * count <= len(text) else b""
            for (number,) in struct.iter_unpack(">I", numbers):
                if number <= self._count:
                    self._known[number] = _APART

    def _read(self, number: int) -> bytes:
        try:
            return os.pread(self._descriptor, self._page_bytes, (number - 1) * self._page_bytes)
        except OSError:  # the disk cannot read it
            return b""

    def _parse(self, number: int) -> _Page | None:
        """The page of a tree, with those rows of a leaf that can be read; None where it is none.

        An interior page must have all its keys, or its children would be taken for what they are not.
        """
        text = self._read(number) if 1 < number <= self._count else b""
        if len(text) < self._page_bytes or text[0] not in (_INTERIOR, _LEAF):
            return None
        interior = text[0] == _INTERIOR
        count, start = int.from_bytes(text[3:5]), 12 if interior else 8
        if start + 2 * count > self._usable:
            return None
        places = struct.unpack_from(f">{count}H", text, start)
        rows = [row for place in places if (row := self._parse_row(text, place + 4 * interior))]
        if not interior:
            return _Page([], rows)
        children = [int.from_bytes(text[place : place + 4]) for place in (*places, 8)]
        ascending = all(first[0] < second[0] for first, second in pairwise(rows))
        return _Page(children, rows) if len(rows) == count and ascending else None

    def _parse_row(self, text: bytes, at: int) -> tuple[bytes, bytes | None] | None:
        size, at = _read_varint(text, at)
        here = size
        if size > self._most:
            here = self._least + (size - self._least) % (self._usable - 4)
            here = here if here <= self._most else self._least
        row = text[at : min(at + here, self._usable)]
        if here < size:
            row += self._read_rest(int.from_bytes(text[at + here : at + here + 4]), size - here)
        return _split(row, size)

    def _read_rest(self, number: int, size: int) -> bytes:
        """The rest of a row, from its own pages; empty where they are not as they should be."""
        pieces: list[bytes] = []
        numbers: set[int] = set()
        while size > 0 and 1 < number <= self._count and number not in numbers:
            text = self._read(number)
            numbers.add(number)
            pieces.append(text[4 : min(4 + size, self._usable)])
            if not pieces[-1]:
                return b""
            number = int.from_bytes(text[:4])
            size -= len(pieces[-1])
        if size or number:
            return b""
        for each in numbers:
            self._known[each] = self._known[each] or _APART
        return b"".join(pieces)


def _find(page: _Page, places: list[_Place]) -> _Place | None:
    """The place that a page belongs to; None where there is none, or one of another family as well."""
    found = [place for place in places if page.belongs(place)]
    return found[0] if len({place.family for place in found}) == 1 else None


def _read_sizes(head: bytes) -> tuple[int, int]:
    """Of a page, and of what SQLite uses of it."""
    size = int.from_bytes(head[16:18])
    size = 65536 if size == 1 else size
    if len(head) < 100 or size < 512 or size & (size - 1):
        return PAGE_BYTES, PAGE_BYTES
    return size, size - head[20]


def _read_varint(text: bytes, at: int) -> tuple[int, int]:
    """Seven bits of each byte, eight of a ninth; and where it ends. Beyond the end all is 0."""
    value = 0
    for index, byte in enumerate(text[at : at + 9]):
        if index == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return 0, len(text)


def _split(row: bytes, size: int) -> tuple[bytes, bytes | None] | None:
    """Key and value of a row of that size; None where it is none, and for a value whose end is missing."""
    head, at = _read_varint(row, 0)
    key, at = _read_varint(row, at)
    value, at = _read_varint(row, at)
    sizes = [(kind - _BLOB) // 2 for kind in (key, value)]
    blobs = all(kind >= _BLOB and kind % 2 == 0 for kind in (key, value))
    value_at = head + sizes[0]
    if at != head or not blobs or head + sum(sizes) != size or value_at > len(row):
        return None
    return row[head:value_at], row[value_at:] if len(row) == size else None
