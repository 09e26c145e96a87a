"""One stream on the disk: segments, which are files of Arrow record batches, and the extents in them.

A segment begins with the schema and then holds one record batch after the other, so any run of batches behind
the schema is an Arrow IPC stream. An extent says where a batch is and has its checksum, for Arrow has none;
extents are rows of the store, committed together with whatever else the messages led to. So a batch that the
store does not know does not exist: what a crash left behind it in the file is written over.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from tidemq.errors import StoreError
from tidemq.store import Write
from tidemq.store.directory import sync_directory

if TYPE_CHECKING:
    from tidemq.stream.packing import Buffers, Packer, Piece

_log = logging.getLogger("tidemq.streams")

FAMILY = "stream"
SEGMENT_BYTES = 256 << 20  # a segment that has grown to this is followed by another
SEGMENT_EXTENTS = 20_000  # or to so many batches
REWRITTEN = 1 << 63  # in a segment's number: it took the place of the one without
COMPACTED = 1 << 62  # in a segment's number: those with it have at most one message of each topic, together
SEGMENTS = 8  # at least so many make up a stream that retention bounds, so that it can forget the oldest

_VALUE = struct.Struct(">QQQIIqq")
_REMOVED = struct.Struct(">Q")  # behind it where compaction has removed messages
EXTENT = b"\x01"  # in a key, between the stream's name and the offset
VERIFIED_BYTES = 64 << 20  # so much of a stream's end is read at the start

Rows = tuple[int, int, "Buffers", int]
"""When the first and the last message came (µs), the buffers of each column, how many messages."""


class Extent(NamedTuple):
    """A record batch: its messages and where it lies. Times in µs of the wall clock. One without messages
    has no bytes: it stands for those that compaction has removed.
    """

    first: int  # offset of its first message, or of one that compaction has removed before it
    rows: int
    segment: int  # named by the offset that it began with, or the next name that was free
    position: int  # in the segment's file, bytes
    length: int
    checksum: int  # CRC-32C
    first_us: int
    last_us: int
    latest_us: int = 0  # when the last message came of all up to its end; in no row
    removed: int = 0  # messages from `first` up to `end` that compaction has removed

    @property
    def end(self) -> int:
        """The offset after its last message, and after those that compaction has removed behind it."""
        return self.first + self.rows + self.removed

    def write(self, name: str) -> Write:
        """The row of the store that holds it."""
        value = _VALUE.pack(
            self.segment, self.position, self.length, self.rows, self.checksum, self.first_us, self.last_us
        )
        if self.removed:
            value += _REMOVED.pack(self.removed)
        return FAMILY, self._key(name), value

    def removal(self, name: str) -> Write:
        """What takes that row out of the store."""
        return FAMILY, self._key(name), None

    def _key(self, name: str) -> bytes:
        return extent_prefix(name) + self.first.to_bytes(8)


def extent_prefix(name: str) -> bytes:
    """What the keys of all extents of a stream begin with."""
    return name.encode() + EXTENT


def read_extent(key: bytes, value: bytes) -> Extent:
    """An extent from its row; ValueError when it is none."""
    if len(value) not in (_VALUE.size, _VALUE.size + _REMOVED.size) or len(key) < 9:
        raise ValueError("the row is not an extent")
    segment, position, length, rows, checksum, first_us, last_us = _VALUE.unpack_from(value)
    first, removed = int.from_bytes(key[-8:]), int.from_bytes(value[_VALUE.size :])
    return Extent(first, rows, segment, position, length, checksum, first_us, last_us, last_us, removed)


class StreamLog:
    """The messages of one stream. Written by the thread that uses the store; read from any.

    `write` puts batches into files, `sync` makes them durable, `publish` shows them to readers once the store
    has their extents, `discard` forgets them instead.
    """

    def __init__(self, name: str, folder: Path, extents: Sequence[Extent], next_offset: int) -> None:
        self.name = name
        self.folder = folder
        self.extents: list[Extent] = list(_with_latest(extents, 0))  # published; a reader takes the list once
        self.segment_bytes = SEGMENT_BYTES
        self.compacted_bytes = (
            SEGMENT_BYTES  # up to so many, segments are put together when they are compacted
        )
        self.segment_us = 0  # a segment holds messages of no longer a time; 0: of any
        self.compression = "lz4"  # of new batches
        self._packer: Packer | None = None
        self._floor = next_offset  # no message gets a lower offset, also when none is left
        self._pending: list[Extent] = []
        self._file: int | None = None  # of the last segment, if it was written to
        self.size_bytes = sum(each.length for each in self.extents)  # of its messages on disk
        # the next batch goes behind the last: what a crash left there is in nobody's way
        self._segment: int | None = None  # the last
        self._position = 0  # where it ends
        self._ended = True  # the next batch begins another
        last = self.extents[-1] if self.extents else None
        if last and last.end >= self._floor and not last.segment & COMPACTED:
            self._segment, self._position, self._ended = last.segment, last.position + last.length, False
        self._synced = self._position  # so much of it is durable
        self._sync_failed = False  # since then
        compacted = (each.segment & ~COMPACTED for each in self.extents if each.segment & COMPACTED)
        self._compacted = itertools.count(max(compacted, default=0) + 1)
        current = [each for each in self.extents if each.segment == self._segment]
        self._extents = len(current)
        self._began_us = current[0].first_us if current else 0

    @property
    def first_offset(self) -> int:
        """Of the oldest message that is kept; the next one's where there is none."""
        extents = self.extents
        return extents[0].first if extents else self._floor

    @property
    def next_offset(self) -> int:
        """Of the message that will come next."""
        extents = self.extents
        return max(extents[-1].end, self._floor) if extents else self._floor

    # --- writing -----------------------------------------------------------------------------------

    def write(self, batches: Iterable[Rows]) -> list[Write]:
        """Writes batches and gives the rows that make them known; StoreError when they cannot be written."""
        before = len(self._pending)
        try:
            for first_us, last_us, buffers, rows in batches:
                self._write_one(self._pack(rows, buffers), rows, first_us, last_us)
        except OSError as error:
            raise StoreError(f"the stream {self.name} cannot be written: {error.strerror}") from error
        return [each.write(self.name) for each in self._pending[before:]]

    def _pack(self, rows: int, buffers: Buffers) -> list[Piece]:
        if self._packer is None or self._packer.compression != self.compression:
            from tidemq.stream.packing import Packer

            self._packer = Packer(self.compression)
        return self._packer.pack(rows, buffers)

    @property
    def written_offset(self) -> int:
        """The offset after all that was written, published or not."""
        return self._pending[-1].end if self._pending else self.next_offset

    def _write_one(self, pieces: list[Piece], rows: int, first_us: int, last_us: int) -> None:
        first = self.written_offset
        late = self._extents and self.segment_us and first_us - self._began_us >= self.segment_us
        if self._position >= self.segment_bytes or self._extents >= SEGMENT_EXTENTS or late:
            self._ended = True
        if self._file is None and not self._ended:
            self._open_segment()
        if self._ended:
            self._begin_segment(first)
        assert self._file is not None
        assert self._segment is not None
        if not self._extents:
            self._began_us = first_us
        checksum = length = 0
        for piece in pieces:
            checksum = _schema().checksum(piece, checksum)
            length += len(piece)
        _write_pieces(self._file, pieces, length, self._position)
        self._pending.append(
            Extent(first, rows, self._segment, self._position, length, checksum, first_us, last_us)
        )
        self._position += length
        self._extents += 1

    def _open_segment(self) -> None:
        """Opens the last segment, as the start found it; where somebody has removed it, it has ended."""
        assert self._segment is not None
        try:
            self._file = os.open(self.segment_path(self._segment), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            self._ended = True

    def _begin_segment(self, first: int) -> None:
        """Closes the last segment, durable, and makes the file of the next, its name durable. Where that
        fails nothing of it is left.
        """
        self._sync_file()
        self.close()
        segment, file = self._make_file(first)
        head = _schema().HEAD
        try:
            _write_all(file, head, 0)
            sync_directory(self.folder)
        except OSError:
            os.close(file)
            with suppress(OSError):
                self.segment_path(segment).unlink()
            raise
        self._segment, self._file, self._position, self._extents = segment, file, len(head), 0
        self._synced, self._ended = 0, False

    def _make_file(self, first: int) -> tuple[int, int]:
        """A file that was not there, by the segment's number, and its descriptor. A segment may have begun
        with this offset before: when its messages were taken back, others got their offsets.
        """
        for segment in itertools.count(first):
            if self.segment_path(segment | REWRITTEN).exists():  # to be merged would be to write over that
                continue
            with suppress(FileExistsError):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                return segment, os.open(self.segment_path(segment), flags, 0o600)
        raise AssertionError("unreachable")

    def sync(self) -> None:
        """Makes all that was written durable; StoreError when that fails."""
        try:
            self._sync_file()
        except OSError as error:
            raise StoreError(f"the stream {self.name} cannot be synced: {error.strerror}") from error

    def _sync_file(self) -> None:
        """Makes the last segment durable. OSError: then it is in doubt until it is written again."""
        if self._file is None or self._synced >= self._position:
            return
        if self._sync_failed:
            self._write_again(self._file)
        self._sync_failed = True
        os.fdatasync(self._file)
        self._synced, self._sync_failed = self._position, False

    def _write_again(self, file: int) -> None:
        """Writes again what the last segment has of messages since its last sync, of what was not taken back.

        The bytes of a sync that failed are in the system's memory, where they look as if they were on the
        disk: a later sync that succeeds does not bring them there (Rebello et al., "Can Applications Recover
        from fsync Failures?", USENIX ATC 2020).
        """
        if not self._synced:
            _write_all(file, _schema().HEAD, 0)
        for each in itertools.chain(reversed(self._pending), reversed(self.extents)):
            if each.segment != self._segment or each.position < self._synced:
                break
            _write_all(file, os.pread(file, each.length, each.position), each.position)

    def publish(self) -> int:
        """The store has what was written: readers may have it. Gives the number of these messages."""
        self.extents.extend(_with_latest(self._pending, self._latest_us(len(self.extents))))
        messages = sum(each.rows for each in self._pending)
        self.size_bytes += sum(each.length for each in self._pending)
        self._pending.clear()
        return messages

    def discard(self) -> list[Write]:
        """Forgets what was not published; gives the rows to be removed from the store, which may have them.

        As long as it does, they name what is in the file: so that is not written over before the next start.
        """
        gone = [each.removal(self.name) for each in self._pending]
        self._pending.clear()
        return gone

    def close(self) -> None:
        """Closes its file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    # --- forgetting --------------------------------------------------------------------------------

    def expired(self, *, before_us: int, bytes_max: int) -> list[Extent]:
        """The extents of the oldest segments that retention gives up: those whose messages all came before a
        time, and those beyond a size. The last segment stays until it is followed by another.
        """
        extents = self.extents
        total = self.size_bytes
        gone: list[Extent] = []
        for segment in segments_of(extents):
            last_us = max(each.last_us for each in segment)
            if segment[0].segment == self._segment:
                if last_us < before_us:
                    self._ended = True  # with its last message
                break
            size = sum(each.length for each in segment)
            if last_us >= before_us and not (bytes_max and total > bytes_max):
                break
            total -= size
            gone += segment
        return gone

    def forget(self, gone: Sequence[Extent]) -> None:
        """Removes segments, all of whose extents are among the oldest; the store knows them no more."""
        self._floor = max(self._floor, gone[-1].end)
        self.extents = _without_older(self.extents[len(gone) :])
        self.size_bytes -= sum(each.length for each in gone)
        self.remove_segments(gone)

    @property
    def last_segment(self) -> int | None:
        """The one that is written to; None where there is none yet."""
        return self._segment

    def closed_segments(self, start: int) -> Iterator[list[Extent]]:
        """The extents of each segment that is not written to any more, from the one at an offset on."""
        extents = self.extents
        at = bisect.bisect_left(extents, start, key=lambda each: each.first)
        from_there = (extents[place] for place in range(at, len(extents)))
        yield from segments_of(itertools.takewhile(lambda each: each.segment != self._segment, from_there))

    def has(self, extent: Extent) -> bool:
        """Whether this is one of its extents."""
        at, extents = self._place(extent), self.extents
        return (
            at < len(extents) and extents[at].first == extent.first and extents[at].segment == extent.segment
        )

    def replace(self, old: Sequence[Extent], new: Sequence[Extent]) -> None:
        """Puts extents of a new segment, which the store has by now, in the place of those of old ones."""
        self._floor = max(self._floor, self.next_offset)  # the last ones may have no successor
        at = self._place(old[0])
        changed = _with_latest(new, self._latest_us(at))
        self.extents = [*self.extents[:at], *changed, *self.extents[at + len(old) :]]
        self.size_bytes += sum(each.length for each in new) - sum(each.length for each in old)
        self.remove_segments(old)

    def _place(self, extent: Extent) -> int:
        return bisect.bisect_left(self.extents, extent.first, key=lambda each: each.first)

    def _latest_us(self, count: int) -> int:
        """When the last message came of so many extents."""
        return self.extents[count - 1].latest_us if count else 0

    def remove_segments(self, extents: Iterable[Extent]) -> None:
        """Removes the files of extents, in which no message is any more; what cannot be removed, the next
        start removes."""
        for path in {self.segment_path(each.segment) for each in extents}:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.error("%s is not needed any more, and cannot be removed: %s", path, error)

    def name_compacted(self) -> int:
        """A number for a compacted segment, which none has had since the start: a reader that is about to
        open one that has gone meanwhile must find no other in its place.
        """
        return COMPACTED | next(self._compacted)

    def remove_leftovers(self) -> None:
        """Removes files in which no message is: what was being written or merged when the broker ended."""
        known = {self.segment_path(segment) for segment in {each.segment for each in self.extents}}
        for path in self.folder.glob("*.arrow"):
            if path not in known:
                path.unlink()

    # --- reading -----------------------------------------------------------------------------------

    def segment_path(self, segment: int) -> Path:
        """The file of a segment."""
        return self.folder / f"{segment:020}.arrow"

    def find(self, start: int, end: int, bytes_max: int = 0) -> list[Extent]:
        """The extents that hold messages from `start` up to `end`, as many as `bytes_max` takes (0: all), and
        at least one where there is one. They adjoin: where messages are missing between two, the second is
        for who asks again.
        """
        extents = self.extents
        at = bisect.bisect_right(extents, start, key=lambda each: each.first) - 1
        found: list[Extent] = []
        total = 0
        for place in range(max(at, 0), len(extents)):
            each = extents[place]
            total += each.length
            if each.first >= end or (bytes_max and found and total > bytes_max):
                break
            if found and each.first != found[-1].end:
                break
            if each.end > start:
                found.append(each)
        return found

    def offset_at(self, time_us: int) -> int:
        """The offset of a message from which on all came at this time or later: a batch's first, so some that
        came a moment earlier may be among them.
        """
        extents = self.extents
        at = bisect.bisect_left(extents, time_us, key=lambda each: each.latest_us)
        return extents[at].first if at < len(extents) else self.next_offset

    def damaged(self, *, verified_bytes: int = VERIFIED_BYTES) -> list[Extent]:
        """The extents whose bytes are not there, or not as they were written. Of so many
        of the last bytes checksums are looked at: a machine that lost its power with `durability` other than
        `sync` leaves such.
        """
        sizes = {
            segment: path.stat().st_size if (path := self.segment_path(segment)).exists() else 0
            for segment in {each.segment for each in self.extents}
        }
        read = 0
        bad: list[Extent] = []
        for each in reversed(self.extents):
            whole = each.position + each.length <= sizes[each.segment]
            if whole and read < verified_bytes:
                read += each.length
                whole = _schema().checksum(self.read(each)) == each.checksum
            if not whole:
                bad.append(each)
        return bad[::-1]

    def read(self, extent: Extent) -> bytes:
        """The bytes of a batch; fewer where the file ends. OSError."""
        with self.segment_path(extent.segment).open("rb") as file:
            return os.pread(file.fileno(), extent.length, extent.position)


def _with_latest(extents: Iterable[Extent], latest_us: int) -> Iterator[Extent]:
    """Extents that stand behind others, the last message of which came then. Batches overlap a little in
    time, for what a reactor had stands together.
    """
    for each in extents:
        latest_us = max(latest_us, each.last_us)
        yield each if each.latest_us == latest_us else each._replace(latest_us=latest_us)


def _without_older(extents: list[Extent]) -> list[Extent]:
    """The same list, when those before it are no more."""
    latest_us = 0
    for at, each in enumerate(extents):
        latest_us = max(latest_us, each.last_us)
        if each.latest_us == latest_us:
            break  # so it is from here on
        extents[at] = each._replace(latest_us=latest_us)
    return extents


def segments_of(extents: Iterable[Extent]) -> Iterator[list[Extent]]:
    """The extents of each segment."""
    group: list[Extent] = []
    for each in extents:
        if group and group[0].segment != each.segment:
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _schema() -> ModuleType:
    """Loaded when there is a stream: Arrow takes a third of a second, and is not installed everywhere."""
    from tidemq.stream import schema

    return schema


def _write_pieces(file: int, pieces: Sequence[Piece], length: int, position: int) -> None:
    """All of them, one after the other, from where they are."""
    count = os.pwritev(file, pieces, position)
    if count < length:  # a disk that is nearly full, or a signal
        _write_all(file, b"".join(pieces)[count:], position + count)


def _write_all(file: int, data: memoryview | bytes, position: int) -> None:
    left = memoryview(data)
    while len(left):
        count = os.pwrite(file, left, position)
        position += count
        left = left[count:]
