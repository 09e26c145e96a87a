"""Tables that Spark's executors fill and the driver commits: each message once, by its offset.

Executors write Parquet files into a new folder below the table for each attempt, and say which; then the
driver commits these in one transaction of the table's log (`table_log`), which says, too, how far in the
stream the table has got (`progress`). So a batch that is tried again, after a driver was killed or by one
that does not know that another has taken over, adds only what is behind that offset, and two that commit at
once exclude one another. Files of an attempt that was not committed belong to no table; `maintain` removes
them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidemq.pipeline.lake.day_files import DayFiles, Written
from tidemq.pipeline.lake.delta_log import DELTA
from tidemq.pipeline.lake.progress import Progress, Span, said_of
from tidemq.pipeline.lake.stale import Stale
from tidemq.pipeline.lake.table_log import (
    PARTITION,
    ConflictError,
    File,
    Numbers,
    Snapshot,
    TableError,
    TableFormat,
    without_date,
)
from tidemq.pipeline.places import ENVIRONMENT, Storage, place_uri
from tidemq.pipeline.spark.parquet_tasks import read_files, with_columns

RETAINED_H = 7 * 24  # files that no version of the table needs are kept so long for its readers
_HELD_BYTES = 64 << 20  # of rows that are written again
_READ_ROWS = 10_000


def day_of(column: str) -> str:
    """Of a time the day in UTC, whatever the session's zone: in Spark's language."""
    return f"date_add(DATE'1970-01-01', cast(floor(unix_micros({column}) / 86400000000) as int))"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Rows that are to be added to a table: those of messages from the offset `reached` on, as Parquet files
    with these columns below `folder`; in a folder `date=DAY` for each day, which they have not.
    """

    table: Table
    snapshot: Snapshot
    columns: pa.Schema
    progress: Progress
    span: Span | None
    reached: int
    name: str = field(default_factory=lambda: f"batch-{uuid.uuid4()}")

    @property
    def folder(self) -> str:
        """Its URI."""
        return f"{self.table.uri}/{self.name}"

    def commit(self, written: Iterable[Written]) -> int:
        """Makes those of these files the table's that are the attempt's; gives the number of their rows.

        TableError for messages of another epoch, ConflictError when another driver has committed meanwhile.
        """
        return self.table.commit(self, [each for each in written if each.path.startswith(f"{self.name}/")])


class Table:
    """One table, at a folder's path or URI; partitioned by its last column, `date`.

    Every row has the columns `epoch` and `offset` of the message that it came from.
    """

    def __init__(self, uri: str, storage: Storage = ENVIRONMENT, table_format: TableFormat = DELTA) -> None:
        self.uri = place_uri(uri)
        self.storage = storage
        self._log = table_format.open(self.uri, storage)

    def now(self) -> Snapshot | None:
        """None where there is no table."""
        return self._log.now()

    def files(self) -> list[File]:
        """That the table has now; none where there is no table."""
        found = self.now()
        return found.files() if found else []

    def schema(self) -> StructType | None:
        """The columns; None where there is no table yet."""
        found = self.now()
        return from_arrow_schema(found.columns) if found else None

    def reached(self, progress: Progress) -> int:
        """The offset after the last message of the stream that the table has."""
        found = self.now()
        return progress.reached(found) if found else 0

    def epochs(self) -> list[int]:
        """Those of which the table has messages, in the order in which they came."""
        first: dict[int, datetime] = {}
        for each in self.files():
            epoch, received = each.low.get("epoch"), each.low.get("received")
            if epoch is not None and received is not None:  # or somebody else has written it
                first[epoch] = min(first.get(epoch, received), received)
        return sorted(first, key=lambda epoch: first[epoch])

    # --- rows of several streams at once ------------------------------------------------------------

    def opened(self, columns: pa.Schema) -> Snapshot:
        """The table, made if there is none, and with these columns at least. TableError when it has them of
        other types.
        """
        return self._open(columns, widen=True)

    def add(self, snapshot: Snapshot, ends: Mapping[Progress, int], written: Sequence[Written]) -> int:
        """Adds files, and says how far the table has got with them in each stream; gives the number of rows.

        ConflictError when another driver has brought one of those elsewhere of which the snapshot was asked.
        """
        self._log.commit(snapshot, said_of(ends), written)
        return sum(each.rows for each in written)

    # --- rows that are added -----------------------------------------------------------------------

    def attempt(
        self,
        columns: pa.Schema,
        progress: Progress,
        span: Span | None = None,
        *,
        stale: Callable[[], Stale] = Stale,
        widen: bool = False,
    ) -> Attempt:
        """To add rows with these columns, of the messages of a span, that the table has not got to; without a
        span, of all messages up to the highest offset among them. Rows that an earlier working has left are
        removed before, see `begin`. With `widen`, columns that the table has not are added to it.

        TableError when the table has other columns, ConflictError when another driver has brought it
        elsewhere.
        """
        snapshot = self._ready(columns, progress, stale, widen)
        reached = progress.reached(snapshot)
        if span is not None and span.whole and reached != span.start:
            raise ConflictError(f"somebody else has brought {self.uri} to the offset {reached} meanwhile")
        return Attempt(self, snapshot, columns, progress, span, reached)

    def commit(self, attempt: Attempt, written: Sequence[Written]) -> int:
        """See `Attempt.commit`; all of these files are the attempt's."""
        span, progress = attempt.span, attempt.progress
        if not written and (span is None or not span.whole):
            return 0
        epoch = progress.epoch
        if any((each.low["epoch"], each.high["epoch"]) != (epoch, epoch) for each in written):
            raise TableError(
                f"the stream {progress.stream} was made anew while its messages were written to {self.uri}"
            )
        end = span.end if span else max(each.high["offset"] for each in written) + 1
        self._log.commit(attempt.snapshot, progress.said(end), written)
        return sum(each.rows for each in written)

    def _ready(
        self, columns: pa.Schema, progress: Progress, stale: Callable[[], Stale] = Stale, widen: bool = False
    ) -> Snapshot:
        """The table with these columns, in this working."""
        self.begin(progress, columns, stale)
        snapshot = self._open(columns, widen)
        self._is_behind(snapshot, progress)
        return snapshot

    def _open(self, columns: pa.Schema, widen: bool = False) -> Snapshot:
        """The table, made if there is none. TableError where it has not these columns."""
        wanted = self._log.normal(columns)
        if (snapshot := self.now()) is None:
            return self._log.make(columns)
        there = {each.name: each.type for each in snapshot.columns}
        if widen and (new := [each for each in columns if each.name not in there]):
            snapshot = self._log.widen(snapshot, pa.schema(new))
            there |= {each.name: wanted.field(each.name).type for each in new}
        for each in wanted:
            if there.pop(each.name, None) != each.type:
                kind = columns.field(each.name).type
                raise TableError(f"the table {self.uri} has no column {each.name} of {kind}")
        # further columns are its owner's, and stay empty
        if required := sorted(snapshot.required & there.keys()):
            raise TableError(f"the table {self.uri} has a column {required[0]} that must have a value")
        return snapshot

    # --- another working ---------------------------------------------------------------------------

    def begin(self, progress: Progress, columns: pa.Schema, stale: Callable[[], Stale] = Stale) -> None:
        """Makes the table ready for a working, if it has rows of an earlier one: removes those that are
        stale, or all, and gives the table these columns then.

        ConflictError when the table has begun a later one.
        """
        snapshot = self.now()
        if snapshot and self._is_behind(snapshot, progress):
            self.begin_again(snapshot, columns, stale(), progress.said(0))

    def begin_again(self, snapshot: Snapshot, columns: pa.Schema, stale: Stale, numbers: Numbers) -> None:
        """The same, in one transaction that says how far the table is now; `snapshot` is what `now` gave."""
        if stale.whole:
            self._log.empty(snapshot, columns, numbers)
            return
        columns = without_date(snapshot.columns)

        def has_some(file: File) -> bool:
            return stale.may_be_in(file) and self._has_any(file, columns, stale)

        removed = [each for each in snapshot.files() if has_some(each)]
        written = self._written(removed, columns, lambda rows: pc.invert(stale.marks(rows)))
        self._log.commit(snapshot, numbers, written, removed, without=has_some)

    def _has_any(self, file: File, all_columns: pa.Schema, stale: Stale) -> bool:
        columns = pa.schema([all_columns.field(name) for name in stale.columns])
        return any(pc.any(stale.marks(batch)).as_py() for batch in self.batches(file, columns))

    def _is_behind(self, snapshot: Snapshot, progress: Progress) -> bool:
        """Whether the table has only begun an earlier working. ConflictError when it has a later one."""
        if progress.working is None:
            return False
        there, mine = progress.generation_of(snapshot), progress.working.generation
        if there > mine:
            raise ConflictError(f"somebody else works the messages of {self.uri} again")
        return there < mine

    # --- rows that are replaced --------------------------------------------------------------------

    def before(self, columns: pa.Schema, progress: Progress, start: int) -> Snapshot:
        """What `replace` is to change, which has come to the offset `start`; made if there is no table.

        TableError when the table has other columns, ConflictError when another driver has brought it
        elsewhere.
        """
        snapshot = self._ready(columns, progress)
        if progress.reached(snapshot) != start:
            raise ConflictError(f"somebody else has brought {self.uri} elsewhere than to the offset {start}")
        return snapshot

    def replace(
        self,
        snapshot: Snapshot,
        rows: pa.Table,
        column: str,
        spans: Sequence[tuple[datetime, datetime]],
        numbers: Numbers,
        known: Sequence[tuple[datetime, datetime]],
    ) -> None:
        """Puts these rows in the place of all of a snapshot whose `column` lies in a span, which is from a
        time up to another, and says numbers. They were made of rows of the spans `known`.

        ConflictError when another driver has committed rows of one of these meanwhile.
        """

        def outside(batch: pa.RecordBatch) -> pa.Array:
            return pc.fill_null(pc.invert(within(batch.column(column), spans)), True)

        columns = without_date(snapshot.columns)  # among them those that the table's owner has added
        removed = [each for each in snapshot.files() if _meets(each, column, spans)]
        written = self._written(removed, columns, outside, rows)
        without = partial(_meets, column=column, spans=[*spans, *known])
        self._log.commit(snapshot, numbers, written, removed, without=without)

    def _written(
        self,
        files: Sequence[File],
        columns: pa.Schema,
        stay: Callable[[pa.RecordBatch], pa.Array],
        more: pa.Table | None = None,
    ) -> list[Written]:
        """The rows that stay of files, and more, in new files: a day after the other."""
        folder, found = f"{self.uri}/batch-{uuid.uuid4()}", []
        days = {each.date for each in files}
        dates = pc.cast(more[PARTITION], pa.string()) if more else None
        days |= set(pc.unique(dates).to_pylist()) if more else set()
        for day in sorted(days):
            with DayFiles(self.storage, _HELD_BYTES) as written:
                for file in (each for each in files if each.date == day):
                    for batch in self.batches(file, columns):
                        _add(written, folder, batch.filter(stay(batch)), day)
                if more:
                    for batch in more.filter(pc.equal(dates, day)).combine_chunks().to_batches():
                        _add(written, folder, with_columns(batch, columns), day)
            found += written.written
        return found

    def swap(self, snapshot: Snapshot, files: Sequence[File], written: Sequence[Written]) -> int:
        """Puts new files in the place of others with the same rows; gives their bytes.

        `snapshot` is what `now` gave, `files` are some of it. ConflictError when one of them is not the
        table's any more.
        """
        self._log.commit(snapshot, {}, written, files, rearranged=True)
        return sum(each.size for each in written)

    def remove(self, snapshot: Snapshot, files: Sequence[File], numbers: Numbers) -> None:
        """Gives up the rows of these files, which are some of a snapshot's, and says numbers. ConflictError
        when one of them is not the table's any more.
        """
        self._log.commit(snapshot, numbers, (), files)

    def clean(self, keep_h: int = RETAINED_H) -> None:
        """Removes files that no version of the table of the last hours needs, those of attempts among them,
        and their folders.
        """
        self._log.clean(keep_h)

    # --- rows that are read ------------------------------------------------------------------------

    def read(
        self, spark: SparkSession, columns: Sequence[str], bounds: Mapping[str, tuple[Any, Any]] = {}
    ) -> DataFrame:
        """These columns of the files that may have rows within all bounds; their other rows are among them.

        `bounds` are inclusive, of `epoch`, `offset`, `received` or `event_time`; None: no bound.
        """
        snapshot = self.now()
        if snapshot is None:
            raise TableError(f"there is no table {self.uri}")
        schema = from_arrow_schema(snapshot.columns)
        wanted = StructType([schema[name] for name in columns])
        sizes = {self._uri_of(each.path): each.size for each in snapshot.files() if each.overlaps(bounds)}
        return read_files(spark, self.storage, sizes, wanted)

    def rows(self, snapshot: Snapshot, columns: pa.Schema, bounds: Mapping[str, tuple[Any, Any]]) -> pa.Table:
        """The same of a snapshot in memory, without Spark."""
        found = (each for each in snapshot.files() if each.overlaps(bounds))
        batches = [batch for each in found for batch in self.batches(each, columns)]
        return pa.Table.from_batches(batches, columns)

    def batches(self, file: File, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Of a file, with these columns: those that it has not are null."""
        with self.open_file(file.path) as source:
            parquet = pq.ParquetFile(source)
            names = [name for name in columns.names if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(_READ_ROWS, columns=names):
                yield with_columns(batch, columns)

    def open_file(self, path: str) -> pa.NativeFile:
        """One of the table's."""
        files, place = self.storage.open(self._uri_of(path))
        return files.open_input_file(place)

    def _uri_of(self, path: str) -> str:
        return path if "://" in path else f"{self.uri}/{path}"


def _add(files: DayFiles, folder: str, rows: pa.RecordBatch, day: str) -> None:
    if rows.num_rows:
        files.add(folder, rows, pa.repeat(day, rows.num_rows))


def _meets(file: File, column: str, spans: Iterable[tuple[datetime, datetime]]) -> bool:
    """Whether a file may have rows in a span, which does not have its end."""
    return any(file.overlaps({column: (start, end - timedelta.resolution)}) for start, end in spans)


def within(times: pa.Array, spans: Sequence[tuple[datetime, datetime]]) -> pa.Array:
    """Whether each lies in a span, which is from a time up to another; null of null."""
    kind = times.type
    each = (
        pc.and_(pc.greater_equal(times, pa.scalar(start, kind)), pc.less(times, pa.scalar(end, kind)))
        for start, end in spans
    )
    return reduce(pc.or_, each, pa.repeat(pa.scalar(False), len(times)))
