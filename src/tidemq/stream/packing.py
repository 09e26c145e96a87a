"""A stream's batches as they are written: messages of an Arrow IPC stream, put together from the buffers that
the engine has filled, which go to the disk as they are or compressed, and are copied nowhere.

Arrow's own writer compresses all buffers or none. Here each is judged by itself: what a stream's numbers and
random payloads cost to compress is more than they give. The layout: Arrow's columnar format, "Serialization
and Interprocess Communication", with its Message.fbs and Schema.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from tidemq.stream.schema import COMPRESSED_ROWS_MIN, SCHEMA

Buffers = Mapping[str, tuple[tuple[int, int] | None, ...]]
"""Of each column: address and size in bytes, None where Arrow needs none; only read while they last."""

PREFIX = struct.Struct("<Ii")  # of a message: 0xFFFFFFFF, and how long the description is
CONTINUES = 0xFFFFFFFF
RECORD_BATCH = 3  # of MessageHeader
PAIR = struct.Struct("<qq")  # a FieldNode: rows, nulls; a Buffer: where it begins in the body, its length
ALIGN = 8  # every buffer begins at a multiple
_VERSION = 4  # of MetadataVersion: V5

# A description as it is written here. Of each table: its vtable (own size, the table's size, where its fields
# are), then the table (how far back the vtable is, the fields in the order of their sizes).
_HEAD = struct.Struct(
    "<I6H"  # where Message is, and its vtable: version, header_type, header, bodyLength
    "iIqhBx4x"  # Message: to vtable, to header, bodyLength, version, header_type
    "6H4x"  # vtable of RecordBatch: length, nodes, buffers, compression
    "iIqII"  # RecordBatch: to vtable, to nodes, length, to buffers, to compression
    "4H"  # vtable of BodyCompression: codec, method
    "ibb2x"  # BodyCompression: to vtable, codec, method
    "4xI"  # the number of nodes, which follow
)
_MESSAGE, _BATCH, _COMPRESSION, _NODES = 16, 56, 88, 100  # where each begins,
_VTABLE = 40  # and the vtable of RecordBatch

_CODECS = {"lz4": 0, "zstd": 1}  # of CompressionType
_LENGTH = struct.Struct("<q")  # before a buffer where there is a codec: its bytes, or
_RAW = _LENGTH.pack(-1)  # it is not compressed
_NUMBERS = ("offset", "message_id")  # ascend: LZ4 halves them at a fifth of the cost of all
_WORTH = 0.75  # a buffer that keeps more of its bytes is written as it is,
_SKIPPED = 15  # and for so many batches it is not tried again

Piece = bytes | memoryview


class Packer:
    """Of one stream. `compression`: `none`, `lz4` or `zstd`. For one thread at a time."""

    def __init__(self, compression: str) -> None:
        self.compression = compression
        self._codec = None if compression == "none" else pa.Codec(compression)
        self._skipped: dict[tuple[str, int], int] = {}

    def pack(self, rows: int, buffers: Buffers) -> list[Piece]:
        """A record batch, in pieces that follow one another; good as long as the buffers. Small ones are not
        compressed.
        """
        codec = self._codec if rows >= COMPRESSED_ROWS_MIN else None
        places: list[tuple[int, int]] = []
        body: list[Piece] = []
        at = 0
        for key, part in _parts(buffers):
            pieces = self._packed(key, _memory(part), codec) if part and part[1] else []
            size = sum(map(len, pieces))
            places.append((at, size))
            body += pieces
            if padding := -size % ALIGN:
                body.append(bytes(padding))
            at += size + padding
        number = None if codec is None else _CODECS[self.compression]
        return [description(rows, number, list(_nodes(rows, buffers)), places, at), *body]

    def _packed(self, key: tuple[str, int], raw: memoryview, codec: pa.Codec | None) -> list[Piece]:
        if codec is None:
            return [raw]
        if self.compression == "lz4" and key[0] in _NUMBERS:
            return [_RAW, raw]
        if left := self._skipped.get(key, 0):
            self._skipped[key] = left - 1
            return [_RAW, raw]
        # from the system's memory, which keeps what is freed: Arrow's own is cleared by the kernel each time
        packed = codec.compress(raw, memory_pool=pa.system_memory_pool())
        if packed.size <= len(raw) * _WORTH:
            return [_LENGTH.pack(len(raw)), memoryview(packed)[: packed.size]]  # it was made larger
        self._skipped[key] = _SKIPPED
        return [_RAW, raw]


def _parts(buffers: Buffers) -> Iterator[tuple[tuple[str, int], tuple[int, int] | None]]:
    """Every buffer in Arrow's order, by its column and its place there."""
    for name in (*SCHEMA.names, "pair", "name", "value"):  # user properties are a list of pairs
        for place, part in enumerate(buffers[name] if name != "pair" else (None,)):
            yield (name, place), part


def _nodes(rows: int, buffers: Buffers) -> Iterator[tuple[int, int]]:
    for name in SCHEMA.names:
        yield rows, _nulls(rows, buffers[name][0])
    ends = buffers["name"][1]
    assert ends is not None
    pairs = ends[1] // 4 - 1
    yield from [(pairs, 0)] * 3


def _nulls(rows: int, valid: tuple[int, int] | None) -> int:
    if valid is None:
        return 0
    return rows - int.from_bytes(_memory(valid)).bit_count()


def _memory(part: tuple[int, int]) -> memoryview:
    return memoryview(pa.foreign_buffer(*part))


def description(
    rows: int,
    codec: int | None,
    nodes: Sequence[tuple[int, int]],
    buffers: Sequence[tuple[int, int]],
    body_bytes: int,
) -> bytes:
    """That of a record batch whose buffers are in these places of the body, with the mark that begins a
    message. `codec`: as Arrow numbers them; None: nothing is compressed.
    """
    after = _NODES + 4 + len(nodes) * PAIR.size + 4  # where the number of buffers is
    compressed = codec is not None
    head = _HEAD.pack(
        *(_MESSAGE, 12, 24, 16, 18, 4, 8),
        *(_MESSAGE - 4, _BATCH - _MESSAGE - 4, body_bytes, _VERSION, RECORD_BATCH),
        *(12, 24, 8, 4, 16, 20 if compressed else 0),
        *(_BATCH - _VTABLE, _NODES - _BATCH - 4, rows, after - _BATCH - 16, _COMPRESSION - _BATCH - 20),
        *(8, 8, 4, 5),
        *(8, codec or 0, 0),
        len(nodes),
    )
    text = b"".join(
        [
            head,
            *(PAIR.pack(*node) for node in nodes),
            struct.pack("<4xI", len(buffers)),
            *(PAIR.pack(*buffer) for buffer in buffers),
        ]
    )
    return PREFIX.pack(CONTINUES, len(text)) + text
