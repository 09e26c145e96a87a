"""Some columns of a stream's batches, taken out of the bytes that are on the disk.

A batch is a message of an Arrow IPC stream: a description (a flatbuffer) and a body, in which the buffers of
all columns stand one after the other, each compressed by itself. So a batch with fewer columns is another
description and some of the same bytes; nothing is decompressed (`packing` has the layout).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tidemq.errors import UsageError
from tidemq.stream.packing import ALIGN, CONTINUES, PAIR, PREFIX, RECORD_BATCH, description
from tidemq.stream.schema import SCHEMA


@dataclass(frozen=True, slots=True)
class Projection:
    """Some columns of a stream. `head` begins an Arrow IPC stream of them."""

    head: bytes
    nodes: tuple[int, ...]  # which of the description's, by their places
    buffers: tuple[int, ...]

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, names: tuple[str, ...]) -> Projection:
        """In the stream's order, whatever that of the names is. UsageError for a name that is none."""
        if unknown := [name for name in names if name not in SCHEMA.names]:
            raise UsageError(f"a stream has no column {unknown[0]!r}; accepted: {', '.join(SCHEMA.names)}")
        nodes: list[int] = []
        buffers: list[int] = []
        node = buffer = 0
        for field in SCHEMA:
            node_end, buffer_end = _after(field.type, node, buffer)
            if field.name in names:
                nodes += range(node, node_end)
                buffers += range(buffer, buffer_end)
            node, buffer = node_end, buffer_end
        schema = pa.schema([field for field in SCHEMA if field.name in names])
        return cls(schema.serialize().to_pybytes(), tuple(nodes), tuple(buffers))

    def of_batches(self, data: bytes) -> bytes:
        """The batches, one after the other, with these columns alone. ValueError where they are none."""
        return b"".join(piece for start, end in _messages(data) for piece in self._message(data, start, end))

    def _message(self, data: bytes, start: int, body: int) -> Iterator[bytes | memoryview]:
        rows, codec, nodes, buffers = _described(data, start)
        kept: list[tuple[int, int]] = []
        places: list[tuple[int, int]] = []
        at = 0
        for number in self.buffers:
            place, size = buffers[number]
            kept.append((body + place, size))
            places.append((at, size))
            at += size + -size % ALIGN
        yield description(rows, codec, [nodes[number] for number in self.nodes], places, at)
        yield from _pieces(memoryview(data), kept)


def _after(kind: pa.DataType, node: int, buffer: int) -> tuple[int, int]:
    """The places after those of a column that begins with these: its own, then those of its children."""
    if pa.types.is_struct(kind):
        node, buffer = node + 1, buffer + 1
        for number in range(kind.num_fields):
            node, buffer = _after(kind.field(number).type, node, buffer)
        return node, buffer
    if pa.types.is_list(kind):
        return _after(kind.value_type, node + 1, buffer + 2)
    with_offsets = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return node + 1, buffer + (3 if with_offsets else 2)


def _messages(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the description of each message begins, and where its body does."""
    at = 0
    while at < len(data):
        mark, size = PREFIX.unpack_from(data, at)
        if mark != CONTINUES or size <= 0:
            raise ValueError("the bytes are no record batches")
        at += PREFIX.size
        yield at, at + size
        at += size + _body_bytes(data, at)


def _body_bytes(data: bytes, start: int) -> int:
    message = _root(data, start)
    return _number(data, message, 3, "<q")


def _described(data: bytes, start: int) -> tuple[int, int | None, Sequence[Any], Sequence[Any]]:
    """Rows, codec (None: not compressed), nodes and buffers of a record batch's description."""
    message = _root(data, start)
    if _number(data, message, 1, "<B") != RECORD_BATCH:
        raise ValueError("a message is no record batch")
    batch = _table(data, message, 2)
    assert batch is not None
    compression = _table(data, batch, 3)
    codec = None if compression is None else _number(data, compression, 0, "<b")
    return _number(data, batch, 0, "<q"), codec, _pairs(data, batch, 1), _pairs(data, batch, 2)


def _root(data: bytes, start: int) -> int:
    return start + int(struct.unpack_from("<I", data, start)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a table's field is; None where it has its default."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    if 4 + 2 * number >= size:
        return None
    place = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + place if place else None


def _number(data: bytes, table: int, number: int, kind: str) -> int:
    at = _field(data, table, number)
    return 0 if at is None else int(struct.unpack_from(kind, data, at)[0])


def _table(data: bytes, table: int, number: int) -> int | None:
    at = _field(data, table, number)
    return None if at is None else _root(data, at)


def _pairs(data: bytes, table: int, number: int) -> Sequence[tuple[int, int]]:
    """A vector of FieldNodes or of Buffers."""
    vector = _table(data, table, number)
    if vector is None:
        return []
    count = struct.unpack_from("<I", data, vector)[0]
    return list(PAIR.iter_unpack(memoryview(data)[vector + 4 : vector + 4 + count * PAIR.size]))


def _pieces(data: memoryview, kept: Iterable[tuple[int, int]]) -> Iterator[bytes | memoryview]:
    """The bytes of these buffers, each padded."""
    for place, size in kept:
        yield data[place : place + size]
        yield bytes(-size % ALIGN)
