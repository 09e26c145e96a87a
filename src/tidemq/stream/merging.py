"""Many small batches of a closed segment become few large ones, in a file that takes its place. `compaction`
writes its segments by the same means.

At low rates a batch holds what came between two commits, perhaps a single message: that is slow to read,
takes a kilobyte, and a row of the store and of memory each. A segment that is not written to any more is
read and written again by a thread of its own; the store then takes the one for the other in one commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidemq.store.directory import sync_directory
from tidemq.stream.log import COMPACTED, REWRITTEN, Extent, StreamLog
from tidemq.stream.schema import END, HEAD, checksum, serialized_batch

ROWS = 65_536  # of a large batch
BYTES = 16 << 20  # of its columns in memory, about
LOOKED_EXTENTS = 10_000  # at a time, for a segment that is worth it: some milliseconds, of the keeper
SMALL_ROWS = 1024  # a segment whose batches have fewer, on average, is merged


def find_small(log: StreamLog, start: int) -> tuple[list[Extent], int]:
    """The extents of the oldest segment from an offset on that is worth it, none where there is no such; and
    the offset up to which none is, to begin there the next time.
    """
    looked = 0
    for segment in log.closed_segments(start):
        rows = sum(each.rows for each in segment)
        if len(segment) > 1 and rows < len(segment) * SMALL_ROWS and segment[0].segment < COMPACTED:
            return segment, start
        start = segment[-1].end
        looked += len(segment)
        if looked >= LOOKED_EXTENTS:
            break
    return [], start


def merge(log: StreamLog, extents: Sequence[Extent]) -> list[Extent]:
    """Writes what the extents hold into a new segment, durable; gives the extents there. OSError when that
    fails, and nothing of it is left; pa.ArrowInvalid where the old ones cannot be read.
    """
    covers = (Cover.of(batch) for batch in large(_batches(log, extents)))
    return write_segment(log, extents[0].segment | REWRITTEN, covers)


class Cover(NamedTuple):
    """A batch to be written and the offsets that it stands for; times in µs. Without rows it has no bytes."""

    first: int
    end: int
    batch: pa.RecordBatch
    first_us: int
    last_us: int

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Cover:
        """The offsets from that of its first row up to its last's."""
        offsets = batch.column("offset")
        came = pc.min_max(batch.column("received").cast(pa.int64())).as_py()
        return cls(offsets[0].as_py(), offsets[-1].as_py() + 1, batch, came["min"], came["max"])


def write_segment(log: StreamLog, segment: int, covers: Iterator[Cover]) -> list[Extent]:
    """Writes a segment's file, durable, with its name; gives its extents. OSError when that fails: then, and
    with any error of `covers`, nothing of it is left.
    """
    path = log.segment_path(segment)
    written: list[Extent] = []
    position = len(HEAD)
    try:
        with path.open("wb") as file:
            os.chmod(path, 0o600)
            file.write(HEAD)
            for first, end, batch, first_us, last_us in covers:
                rows = batch.num_rows
                data = serialized_batch(batch, log.compression) if rows else b""
                extent = Extent(first, rows, segment, position, len(data), checksum(data), first_us, last_us)
                written.append(extent._replace(removed=end - first - rows))
                file.write(data)
                position += len(data)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(log.folder)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return written


def _batches(log: StreamLog, extents: Sequence[Extent]) -> Iterator[pa.RecordBatch]:
    """What is in the extents, as it was written; a few at a time, so that no segment is in memory whole."""
    for each in extents:
        try:
            data = log.read(each)
        except OSError as error:
            raise pa.ArrowInvalid(f"the batch at {each.position} cannot be read: {error.strerror}") from error
        if checksum(data) != each.checksum:
            raise pa.ArrowInvalid(f"the batch at {each.position} is not as it was written")
        yield from pa.ipc.open_stream(HEAD + data + END)


def large(batches: Iterator[pa.RecordBatch], *, sparse: bool = False) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most ROWS, unless one was larger. A gap in the offsets ends a batch,
    unless they are `sparse`: then they need have no column of that name.
    """
    gathered: list[pa.RecordBatch] = []
    rows = size = following = 0
    for batch in batches:
        first = following if sparse else batch.column("offset")[0].as_py()
        full = rows + batch.num_rows > ROWS or size + batch.nbytes > BYTES
        if gathered and (full or first != following):
            yield combined(gathered)
            gathered, rows, size = [], 0, 0
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        following = first + batch.num_rows
    if gathered:
        yield combined(gathered)


def combined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The same rows in one."""
    if len(batches) == 1:
        return batches[0]
    [combined] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return combined
