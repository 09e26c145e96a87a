"""A store's whole content as one stream of bytes that any engine takes back.

    magic       "TIDEMQ DUMP" and a line feed
    version     2 bytes, 1
    blocks      size of the rows (4 bytes), their CRC32 (4), the rows
    end         a block of size 8 whose content is the number of rows (8 bytes)

A row: sizes of family (1 byte), key (4) and value (4); then these. No row has 8 bytes, for its sizes have 9.
Numbers are big-endian. The row `meta` `format` is among the rows.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from tidemq.errors import StoreError
from tidemq.store.interface import FAMILIES, FORMAT, FORMAT_KEY, INCOMPLETE, Store, Write

MAGIC = b"TIDEMQ DUMP\n"
VERSION = 1
BLOCK_BYTES = 1 << 20  # after which a block ends
BLOCK_BYTES_MAX = 1 << 30

_VERSION = struct.Struct(">H")
_BLOCK = struct.Struct(">II")
_ROW = struct.Struct(">BII")
_END = struct.Struct(">Q")

Entry = tuple[str, bytes, bytes]
"""Family, key and value."""


def read_store(store: Store) -> Iterator[Entry]:
    """Every row, family by family."""
    return ((family, key, value) for family in FAMILIES for key, value in store.scan(family))


def write_dump(rows: Iterable[Entry], file: BinaryIO) -> int:
    """Writes rows to a stream; gives their number."""
    file.write(MAGIC + _VERSION.pack(VERSION))
    block = bytearray()
    count = 0
    for family, key, value in rows:
        block += _ROW.pack(len(family), len(key), len(value)) + family.encode() + key + value
        count += 1
        if len(block) >= BLOCK_BYTES:
            _write_block(file, block)
            block.clear()
    if block:
        _write_block(file, block)
    _write_block(file, _END.pack(count))
    return count


def read_dump(file: BinaryIO) -> Iterator[Entry]:
    """The rows of a stream. StoreError at once when it is no dump, later where it is damaged or cut off."""
    head = file.read(len(MAGIC) + _VERSION.size)
    if not head.startswith(MAGIC) or len(head) < len(MAGIC) + _VERSION.size:
        raise StoreError("this is no dump of a store")
    (version,) = _VERSION.unpack_from(head, len(MAGIC))
    if version != VERSION:
        raise StoreError(f"the dump has version {version}, this version of TideMQ reads {VERSION}")
    return _read_rows(file)


def fill_store(store: Store, rows: Iterable[Entry], first: Callable[[], None] | None = None) -> int:
    """Writes rows into an empty store; gives their number.

    Until all are there the store has a format that every broker refuses; `first` is called in that time.
    StoreError when the rows are of another format than this version's.
    """
    store.write([("meta", FORMAT_KEY, INCOMPLETE)], sync=True)
    if first is not None:
        first()
    row_format = None
    batch: list[Write] = []
    count = size = 0
    for family, key, value in rows:
        count += 1
        if (family, key) == ("meta", FORMAT_KEY):
            row_format = value
            continue
        batch.append((family, key, value))
        size += len(value)
        if len(batch) == 1000 or size >= BLOCK_BYTES:
            store.write(batch, sync=False)
            batch, size = [], 0
    if row_format != FORMAT:
        raise StoreError(f"the rows have format {row_format!r}, this version reads {FORMAT!r}")
    store.write(batch, sync=False)
    store.write([("meta", FORMAT_KEY, row_format)], sync=True)
    return count


def set_aside_rows(path: Path, rows: Iterable[Entry]) -> Path:
    """Writes rows that cannot be parsed to a dump in a data directory's `corrupt/`; gives its place."""
    folder = path / "corrupt"
    folder.mkdir(mode=0o700, exist_ok=True)
    place = folder / f"{time.time_ns()}-rows.dump"
    with place.open("xb") as file:
        write_dump(rows, file)
    return place


def _read_rows(file: BinaryIO) -> Iterator[Entry]:
    count = 0
    while len(block := _read_block(file)) != _END.size:
        for row in _parse_block(block):
            yield row
            count += 1
    if count != _END.unpack(block)[0]:
        raise StoreError(f"the dump says it has {_END.unpack(block)[0]} rows, and has {count}")


def _write_block(file: BinaryIO, block: bytes | bytearray) -> None:
    file.write(_BLOCK.pack(len(block), zlib.crc32(block)))
    file.write(block)


def _read_block(file: BinaryIO) -> bytes:
    head = file.read(_BLOCK.size)
    if len(head) < _BLOCK.size:
        raise StoreError("the dump is cut off")
    size, checksum = _BLOCK.unpack(head)
    if size > BLOCK_BYTES_MAX:
        raise StoreError("the dump is damaged")
    block = file.read(size)
    if len(block) < size:
        raise StoreError("the dump is cut off")
    if zlib.crc32(block) != checksum:
        raise StoreError("the dump is damaged")
    return block


def _parse_block(block: bytes) -> Iterator[Entry]:
    at = 0
    while at < len(block):
        if at + _ROW.size > len(block):
            raise StoreError("the dump is damaged")
        family_size, key_size, value_size = _ROW.unpack_from(block, at)
        key_at = at + _ROW.size + family_size
        value_at = key_at + key_size
        family = block[at + _ROW.size : key_at].decode(errors="replace")
        at = value_at + value_size
        if at > len(block):
            raise StoreError("the dump is damaged")
        if family not in FAMILIES:
            raise StoreError(f"the dump has rows of the unknown family {family!r}")
        yield family, block[key_at:value_at], block[value_at:at]
