"""RocksDB's MANIFEST, as far as it must be edited to take a damaged table out of a database.

A MANIFEST is a log of edits. The log has blocks of 32 KiB; a record in it is a checksum (4 bytes,
little-endian, masked CRC32C of type and data), a length (2), a type (1: whole; 2, 3, 4: first, middle and
last part), and data. An edit is a sequence of tags (varints) with fields. Source: RocksDB, `db/log_format.h`
and `db/version_edit.h`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from mmap import mmap
from pathlib import Path

from tidemq.errors import StoreError
from tidemq.store.checksums import crc32c
from tidemq.store.directory import replace_file

_BLOCK = 32 << 10
_HEADER = struct.Struct("<IHB")
_SIZE_AND_TYPE = struct.Struct("<4xHB")
_RECYCLED = (5, 6, 7, 8)

# tags of an edit
_COMPARATOR, _COMPACT_POINTER, _DELETED_FILE, _NEW_FILE = 1, 5, 6, 103
_FAMILY, _FAMILY_ADD, _FAMILY_DROP, _FAMILY_MAX = 200, 201, 202, 203
_LAST_ROW, _FIRST_LOG = 4, 10
# numbers of log, next file, previous log; of edits to come in an atomic group
_VARINTS = (2, 3, 9, _FAMILY_MAX, 300)
_IGNORABLE = 1 << 13  # tags with this bit have one field that says its length
_TERMINATE = 1  # ends the custom fields of a new file


@dataclass
class Manifest:
    """What a MANIFEST says, and the bytes that say it; `text` ends where what can be read ends."""

    text: bytes
    tables: dict[int, tuple[int, int]] = field(default_factory=dict)  # number -> family's id and level
    families: dict[str, int] = field(default_factory=lambda: {"default": 0})  # name -> id
    last_row: int = 0  # number of the last one that tables may have
    first_log: int = 0  # number of the first one with rows that no table has


def find_manifest(files: Path) -> Path:
    """The MANIFEST that CURRENT names; StoreError when there is none."""
    try:
        named = (files / "CURRENT").read_bytes()
    except FileNotFoundError:
        named = b""
    if re.fullmatch(rb"MANIFEST-\d+\n", named) and (path := files / named.decode().strip()).exists():
        return path
    raise StoreError(f"{files / 'CURRENT'} names no MANIFEST")


def parse_manifest(text: bytes) -> Manifest:
    """Reads a MANIFEST up to its end or first damaged record; StoreError on an edit that is not known."""
    manifest = Manifest(b"")
    for edit, end in _records(text):
        _apply_edit(manifest, edit)
        manifest.text = text[:end]
    return manifest


def encode_dropped_table(family: int, level: int, number: int) -> bytes:
    """The edit that takes a table out of its family."""
    fields = _encode_varint(_FAMILY) + _encode_varint(family) if family else b""
    return fields + b"".join(map(_encode_varint, (_DELETED_FILE, level, number)))


def encode_added_family(name: str, number: int, number_max: int) -> bytes:
    """The edit that adds a family under a given id; `number_max` is the highest id of all."""
    fields = [
        *map(_encode_varint, (_FAMILY_MAX, number_max, _FAMILY, number)),
        *(_encode_varint(_FAMILY_ADD), _encode_text(name)),
        *(_encode_varint(_COMPARATOR), _encode_text("leveldb.BytewiseComparator")),
    ]
    return b"".join(fields)


def rewrite_manifest(path: Path, manifest: Manifest, edits: Iterable[bytes]) -> None:
    """Puts the edits behind what the MANIFEST says; after a crash the file is as before or as meant."""
    text = bytearray(manifest.text)
    for edit in edits:
        _append_record(text, edit)
    replace_file(path, bytes(text))


def find_endless_records(text: bytes | mmap) -> list[int]:
    """Where the types of records stand that a log of ours never has: of recycled logs.

    RocksDB 9.8 reads such a record again and again, without end, so it must not come across one.
    """
    found = []
    unpack, head = _SIZE_AND_TYPE.unpack_from, _HEADER.size  # a million records take a second
    at, block_end = 0, _BLOCK
    while at + head <= len(text):
        size, kind = unpack(text, at)
        after = at + head + size
        if 0 < kind < 5 and after <= block_end:
            at = after
            if block_end - at >= head:
                continue
        elif kind in _RECYCLED:
            found.append(at + head - 1)
        at = block_end  # as RocksDB does with what it cannot read
        block_end += _BLOCK
    return found


class Part(IntEnum):
    """What stands at a place of a log: a record or a part of it, by its type, or none."""

    WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
    DAMAGED, ZEROS, CUT_OFF = 100, 101, 102  # the rest of its block is passed over


_RECORDS = (Part.WHOLE, Part.FIRST, Part.MIDDLE, Part.LAST)


def read_parts(text: bytes | memoryview) -> Iterator[tuple[Part, bytes | memoryview, int]]:
    """Every part of a log's records with its data, and where it ends; and what is none, where it begins."""
    at = 0
    while at + _HEADER.size <= len(text):
        block_end = at - at % _BLOCK + _BLOCK
        if block_end - at < _HEADER.size:
            at = block_end
            continue
        checksum, size, kind = _HEADER.unpack_from(text, at)
        after = at + _HEADER.size + size
        data = text[at + _HEADER.size : after]
        if 0 < kind < 5 and after <= block_end and len(data) < size:
            yield Part.CUT_OFF, b"", at
            return
        if 0 < kind < 5 and after <= block_end and checksum == _checksum(kind, data):
            yield _RECORDS[kind - 1], data, after
            at = after
            continue
        yield Part.DAMAGED if checksum or size or kind else Part.ZEROS, b"", at
        at = block_end


def _records(text: bytes) -> Iterator[tuple[bytes, int]]:
    """Each whole record and where it ends, until the first one that cannot be read."""
    parts = bytearray()
    for part, data, end in read_parts(text):
        if part not in _RECORDS:
            return
        parts += data
        if part in (Part.WHOLE, Part.LAST):
            yield bytes(parts), end
            parts.clear()


def _append_record(text: bytearray, data: bytes) -> None:
    """Appends one record of a log, in as many parts as blocks ask for."""
    first = True
    while first or data:
        room = _BLOCK - len(text) % _BLOCK
        if room < _HEADER.size:
            text += bytes(room)
            continue
        part, data = data[: room - _HEADER.size], data[room - _HEADER.size :]
        kind = (Part.FIRST if data else Part.WHOLE) if first else (Part.MIDDLE if data else Part.LAST)
        text += _HEADER.pack(_checksum(kind, part), len(part), kind) + part
        first = False


def _apply_edit(manifest: Manifest, edit: bytes) -> None:
    """Follows families and tables; everything else is only read past."""
    fields = _Fields(edit)
    family, added, dropped, gone, new = 0, "", False, [], []
    while fields.rest():
        tag = fields.varint()
        if tag == _FAMILY:
            family = fields.varint()
        elif tag == _FAMILY_ADD:
            added = fields.text().decode()
        elif tag == _FAMILY_DROP:
            dropped = True
        elif tag == _DELETED_FILE:
            fields.varint()
            gone.append(fields.varint())
        elif tag == _NEW_FILE:
            new.append(fields.new_file())
        elif tag == _COMPACT_POINTER:
            fields.varint()
            fields.text()
        elif tag == _LAST_ROW:
            manifest.last_row = max(manifest.last_row, fields.varint())
        elif tag == _FIRST_LOG:
            manifest.first_log = max(manifest.first_log, fields.varint())
        elif tag in _VARINTS:
            fields.varint()
        elif tag == _COMPARATOR or tag & _IGNORABLE:
            fields.text()
        else:
            raise StoreError(f"RocksDB's MANIFEST has an edit with the unknown tag {tag}")
    for number in gone:
        manifest.tables.pop(number, None)
    for number, level in new:
        manifest.tables[number] = (family, level)
    if added:
        manifest.families[added] = family
    if dropped:
        manifest.families = {name: each for name, each in manifest.families.items() if each != family}


class _Fields:
    """Reads the fields of an edit, one behind the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def rest(self) -> int:
        return len(self._data) - self._at

    def varint(self) -> int:
        value = shift = 0
        while self._at < len(self._data):
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise StoreError("RocksDB's MANIFEST has an edit that ends too early")

    def text(self) -> bytes:
        size = self.varint()
        if size > self.rest():
            raise StoreError("RocksDB's MANIFEST has an edit that ends too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def new_file(self) -> tuple[int, int]:
        """Number and level of a table that an edit adds."""
        level, number, _size = self.varint(), self.varint(), self.varint()
        self.text(), self.text()  # its first and last key
        self.varint(), self.varint()  # its first and last sequence
        while self.varint() != _TERMINATE:
            self.text()
        return number, level


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_text(text: str) -> bytes:
    return _encode_varint(len(text.encode())) + text.encode()


def _checksum(kind: int, data: bytes | memoryview) -> int:
    """CRC-32C of type and data, masked as RocksDB stores it."""
    value = crc32c(data, crc32c(bytes([kind])))
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
