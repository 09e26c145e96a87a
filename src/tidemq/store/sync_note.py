"""A note of how far the logs were on the disk when they were last forced there.

Without it nobody can tell a log whose end was lost from one that a crash has cut off: both end somewhere. It
is written after each sync, and is itself forced to the disk once a second: so what it says is true, and after
a power failure some second old. Two places in the file take turns, each with a checksum, so that a write that
is cut off leaves the one before.

Layout, little-endian: CRC-32C of the rest (4), how many pairs (4), counter (8), `position` (8), and the
pairs, each 8 and 8: number and length.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tidemq.errors import StoreError
from tidemq.store.checksums import crc32c

_SLOT = 4096
_HEAD = struct.Struct("<IIQQ")
_PAIR = struct.Struct("<QQ")
_PAIRS_MAX = (_SLOT - _HEAD.size) // _PAIR.size
FORCE_S = 1.0  # between two times that the note itself is forced to the disk


@dataclass
class Synced:
    """What was on the disk: lengths by number of a log, and `position`, whose meaning is the engine's."""

    position: int = 0
    lengths: dict[int, int] = field(default_factory=dict)


class SyncNote:
    """The note of one store; `open` before anything is written, `close` at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._counter = 0
        self._forced = 0.0

    def read(self) -> Synced:
        """What the file says; nothing where there is none. StoreError where neither place can be read."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return Synced()
        found = [each for each in map(_parse, (text[:_SLOT], text[_SLOT : 2 * _SLOT])) if each]
        if not found:
            raise StoreError(f"{self._path} cannot be read: it is not known how far the log was on the disk")
        self._counter, synced = max(found, key=lambda each: each[0])
        return synced

    def open(self, position: int = 0, lengths: Mapping[int, int] | None = None) -> None:
        """Begins anew: no more than this is known to be on the disk."""
        self.close()
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.write(position, lengths or {})

    def write(self, position: int, lengths: Mapping[int, int]) -> None:
        """Replaces the note. Where it cannot be written there is an older one, and that is true as well."""
        pairs = sorted(lengths.items())[-_PAIRS_MAX:]
        self._counter += 1
        rest = _HEAD.pack(0, len(pairs), self._counter, position)[4:]
        rest += b"".join(_PAIR.pack(number, length) for number, length in pairs)
        now = time.monotonic()
        with suppress(OSError):
            os.pwrite(self._file, struct.pack("<I", crc32c(rest)) + rest, self._counter % 2 * _SLOT)
            if now - self._forced >= FORCE_S:
                self._forced = now
                os.fdatasync(self._file)

    def remove(self) -> None:
        """Until it is opened again nothing is known to be on the disk, or to have been there."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """May be called twice."""
        if self._file >= 0:
            with suppress(OSError):
                os.fdatasync(self._file)
            os.close(self._file)
            self._file = -1


def _parse(slot: bytes) -> tuple[int, Synced] | None:
    """The counter and what is said; None where it cannot be read."""
    if len(slot) < _HEAD.size:
        return None
    checksum, count, counter, position = _HEAD.unpack_from(slot)
    end = _HEAD.size + count * _PAIR.size
    if end > len(slot) or crc32c(slot[4:end]) != checksum:
        return None
    return counter, Synced(position, dict(_PAIR.iter_unpack(slot[_HEAD.size : end])))
