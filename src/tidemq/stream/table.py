"""The newest message of each topic of a stream with `last`, as a table: all of one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from tidemq.errors import RefusedError, StoreError
from tidemq.stream.compaction import Newest, check, count_clean, is_tombstone, judge, read_runs, release
from tidemq.stream.log import Extent, StreamLog
from tidemq.stream.merging import large
from tidemq.stream.ranges import Run, open_all


class TooManyTopicsError(RefusedError):
    """A table takes more memory than it may. Caught by who answers its reader."""


@dataclass(frozen=True, slots=True)
class Table:
    """What the stream had at a moment. Holds a bit for each message that there was, and the files open."""

    next_offset: int  # of the first message that came after that moment
    rows: int
    _parts: list[tuple[Run, pa.BooleanArray]]  # of a batch each

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Its messages, by offset, with these columns, in the stream's order. OSError; StoreError for a batch
        that is not as it was written.
        """
        yield from large(self._filtered(columns), sparse=True)

    def _filtered(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        found = read_runs((run for run, _ in self._parts), columns)
        for (extent, batch), (_, kept) in zip(found, self._parts, strict=True):
            yield _whole(extent, batch).filter(kept)


def read_table(
    log: StreamLog, topics_bytes_max: int, stack: ExitStack, stopped: Callable[[], bool] = lambda: False
) -> Table:
    """The table of now. `stack` closes its files. TooManyTopicsError where the topics of what is not yet
    compacted take more than `topics_bytes_max`; StoreError where a batch is not as it was written, or a file
    is missing. `stopped` is asked now and then; when it says so, StoppedError.
    """

    def goes(batch: pa.RecordBatch) -> pa.BooleanArray:
        check(stopped)
        return is_tombstone(batch)

    next_offset = log.next_offset
    runs: list[Run] = [(file, [each]) for file, run in open_all(log, stack) for each in run]
    extents = [each for _, [each] in runs]
    end = extents[-1].end if extents else next_offset
    newest = Newest()
    for extent, batch in read_runs(runs[count_clean(extents) :], ["offset", "topic"]):
        check(stopped)
        newest.add(_whole(extent, batch), extent.length)
        if newest.exceeds(topics_bytes_max):
            raise TooManyTopicsError(
                f"the topics of the stream {log.name} that are not yet compacted take more than "
                f"compaction_bytes_max: {topics_bytes_max}"
            )
    parts: list[tuple[Run, pa.BooleanArray]] = []
    for run, (extent, kept) in zip(runs, judge(runs, newest, goes), strict=True):
        if kept is None:
            raise _damaged(extent)
        if kept.true_count:
            parts.append((run, kept))
    del newest
    release()
    return Table(end, sum(kept.true_count for _, kept in parts), parts)


def _whole(extent: Extent, batch: pa.RecordBatch | None) -> pa.RecordBatch:
    if batch is None:
        raise _damaged(extent)
    return batch


def _damaged(extent: Extent) -> StoreError:
    return StoreError(
        f"the messages of offsets {extent.first} to {extent.end - 1} are not as they were written"
    )
