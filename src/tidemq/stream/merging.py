"""Many small batches of a closed segment become few large ones, in a file that takes its place.

At low rates a batch holds what came between two commits, perhaps a single message: that is slow to read,
takes a kilobyte, and a row of the store and of memory each. A segment that is not written to any more is
read and written again by a thread of its own; the store then takes the one for the other in one commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tidemq.store.directory import sync_directory
from tidemq.stream.log import REWRITTEN, Extent, StreamLog
from tidemq.stream.schema import END, HEAD, SCHEMA, checksum, serialized_batch

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
        if len(segment) > 1 and rows < len(segment) * SMALL_ROWS and segment[0].segment < REWRITTEN:
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
    segment = extents[0].segment | REWRITTEN
    path = log.segment_path(segment)
    try:
        batches = _large(_batches(log, extents))
        merged = list(_write(path, segment, batches, log.compression))
        sync_directory(log.folder)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return merged


def _write(path: Path, segment: int, batches: Iterator[pa.RecordBatch], compression: str) -> Iterator[Extent]:
    position = len(HEAD)
    with path.open("wb") as file:
        os.chmod(path, 0o600)
        file.write(HEAD)
        for batch in batches:
            data = serialized_batch(batch, compression)
            came = pc.min_max(batch.column("received").cast(pa.int64())).as_py()
            yield Extent(
                batch.column("offset")[0].as_py(),
                batch.num_rows,
                segment,
                position,
                len(data),
                checksum(data),
                came["min"],
                came["max"],
            )
            file.write(data)
            position += len(data)
        file.flush()
        os.fsync(file.fileno())


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


def _large(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most ROWS, unless one was larger. A gap in the offsets ends a batch."""
    gathered: list[pa.RecordBatch] = []
    rows = size = following = 0
    for batch in batches:
        first: int = batch.column("offset")[0].as_py()
        if gathered and (rows + batch.num_rows > ROWS or size + batch.nbytes > BYTES or first != following):
            yield _combined(gathered)
            gathered, rows, size = [], 0, 0
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        following = first + batch.num_rows
    if gathered:
        yield _combined(gathered)


def _combined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    [combined] = pa.Table.from_batches(batches, SCHEMA).combine_chunks().to_batches()
    return combined
