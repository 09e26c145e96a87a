"""Delta Lake tables that Spark's executors fill and the driver commits: each message once, by its offset.

Executors write Parquet files into a new folder below the table for each attempt, and say which; then the
driver commits these in one transaction of Delta's log, by `deltalake`, without Delta's Java parts. The
transaction has how far in the stream the table has got (`progress`). So a batch that is tried again, after a
driver was killed or by one that does not know that another has taken over, adds only what is behind that
offset, and two that commit at once exclude one another. Files of an attempt that was not committed belong to
no table; `maintain` removes them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidemq.errors import TideMQError
from tidemq.pipeline.lake.day_files import Written, utc
from tidemq.pipeline.lake.progress import Progress, Span
from tidemq.pipeline.places import ENVIRONMENT, Storage, in_object_store, place_uri
from tidemq.pipeline.spark.parquet_tasks import read_files

RETAINED_H = 7 * 24  # files that no version of the table needs are kept so long for its readers
_CONFIGURATION = {  # a log has a file for each batch
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 1 day",  # a month of seconds would be millions
}


def day_of(column: str) -> str:
    """Of a time the day in UTC, whatever the session's zone: in Spark's language."""
    return f"date_add(DATE'1970-01-01', cast(floor(unix_micros({column}) / 86400000000) as int))"


class TableError(TideMQError):
    """A table is not what is to be written to, or somebody else writes to it. Caught by who started the
    job."""


class ConflictError(TableError):
    """Somebody else has written to a table meanwhile: what was to be done is looked at again."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Rows that are to be added to a table: those of messages from the offset `reached` on, as Parquet files
    with these columns below `folder`; in a folder `name=value` for each value of a partition's column, which
    they have not.
    """

    table: Table
    log: DeltaTable
    version: int  # of the log
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
    """One table, at a folder's path or URI; partitioned by columns that come last in its rows.

    Every row has the columns `epoch` and `offset` of the message that it came from.
    """

    def __init__(
        self, uri: str, partition_by: tuple[str, ...] = ("date",), storage: Storage = ENVIRONMENT
    ) -> None:
        self.uri = place_uri(uri)
        self.partition_by = partition_by
        self.storage = storage
        self._files, self._root = storage.open(self.uri)
        self._log: DeltaTable | None = None  # as it was when it was looked at last

    def attempt(
        self,
        columns: pa.Schema,
        progress: Progress,
        span: Span | None = None,
        *,
        stale: Callable[[], str] = str,
        widen: bool = False,
    ) -> Attempt:
        """To add rows with these columns, of the messages of a span, that the table has not got to; without a
        span, of all messages up to the highest offset among them. Rows that an earlier working has left are
        removed before, see `begin`. With `widen`, columns that the table has not are added to it.

        TableError when the table has other columns, ConflictError when another driver has brought it
        elsewhere.
        """
        self.begin(progress, columns, stale)
        log = self._open(columns, widen)
        self._is_behind(log, progress)
        reached = progress.reached(log)  # what is committed later than this is noticed
        if span is not None and span.whole and reached != span.start:
            raise ConflictError(f"somebody else has brought {self.uri} to the offset {reached} meanwhile")
        return Attempt(self, log, log.version(), columns, progress, span, reached)

    def begin(self, progress: Progress, columns: pa.Schema, stale: Callable[[], str] = str) -> None:
        """Makes the table ready for a working, if it has rows of an earlier one: removes those for which
        `stale`, a predicate, is true; where it is empty all, and gives the table these columns.

        ConflictError when the table has begun a later one.
        """
        table = self.log()
        if table and self._is_behind(table, progress):
            self.begin_again(table, columns, stale(), progress.said(0))

    def begin_again(self, table: DeltaTable, columns: pa.Schema, stale: str, said: CommitProperties) -> None:
        """The same, in one transaction that says how far the table is now; `table` is what `log` gave."""
        with self._alone():
            if not stale:
                # at once or not at all: deltalake lets files stay that were put together meanwhile
                at_once = CommitProperties(app_transactions=said.app_transactions, max_commit_retries=0)
                write_deltalake(
                    table,
                    columns.empty_table(),
                    mode="overwrite",
                    schema_mode="overwrite",
                    commit_properties=at_once,
                )
                return
            version = table.version()
            table.delete(stale, commit_properties=said)
            if table.version() == version:  # no row was
                self._commit(table, [], pa.schema(table.schema().to_arrow()), said)

    def replace(
        self,
        rows: pa.Table,
        column: str,
        spans: Sequence[tuple[datetime, datetime]],
        progress: Progress,
        end: int,
    ) -> None:
        """Puts these rows in the place of all whose `column` lies in a span, which is from a time up to
        another: what is to be said of the stream's messages up to the offset `end`. Without spans, only that
        is said.

        TableError when the table has other columns, ConflictError when another driver has committed
        meanwhile.
        """
        self.begin(progress, rows.schema)
        table = self._open(rows.schema)
        self._is_behind(table, progress)
        if not spans:
            self._commit(table, [], rows.schema, progress.said(end))
            return
        within = (f"({column} >= '{utc(start)}' and {column} < '{utc(end)}')" for start, end in spans)
        for each in pa.schema(table.schema().to_arrow()):  # that the table's owner has added
            if each.name not in rows.column_names:
                rows = rows.append_column(each, pa.nulls(len(rows), each.type))
        with self._alone():
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                predicate=" or ".join(within),
                commit_properties=progress.said(end),
            )

    def files(self) -> list[dict[str, Any]]:
        """What the log says of each file that the table has now; none where there is no table."""
        table = self.log()
        return pa.table(table.get_add_actions(flatten=True)).to_pylist() if table else []

    def swap(self, table: DeltaTable, files: Sequence[Mapping[str, Any]], written: Sequence[Written]) -> int:
        """Puts new files in the place of others with the same rows; gives their bytes.

        `table` is what `log` gave, `files` are some of `files`. ConflictError when one of them is not the
        table's any more.
        """
        now_ms = time.time_ns() // 1_000_000
        removed = (self._removal(each, now_ms, data_change=False) for each in files)
        added = [replace(_added(each), data_change=False) for each in written]
        with self._alone():
            table.create_write_transaction(
                [*removed, *added], "append", table.schema(), list(self.partition_by)
            )
        return sum(each.size for each in written)

    def remove(self, table: DeltaTable, files: Sequence[Mapping[str, Any]], said: CommitProperties) -> None:
        """Gives up the rows of these files, which are some of `files`; `table` is what `log` gave.
        ConflictError when one of them is not the table's any more.
        """
        now_ms = time.time_ns() // 1_000_000
        removed = (self._removal(each, now_ms, data_change=True) for each in files)
        with self._alone():
            table.create_write_transaction(
                [*removed], "append", table.schema(), list(self.partition_by), commit_properties=said
            )

    def _removal(self, file: Mapping[str, Any], now_ms: int, *, data_change: bool) -> RemoveAction:
        return RemoveAction(
            file["path"],
            data_change=data_change,
            deletion_timestamp=now_ms,
            size=file["size_bytes"],
            partition_values={name: str(file[f"partition.{name}"]) for name in self.partition_by},
        )

    def open_file(self, path: str) -> pa.NativeFile:
        """One of the table's."""
        return self._files.open_input_file(f"{self._root}/{path}")

    def clean(self, keep_h: int = RETAINED_H) -> None:
        """Removes files that no version of the table of the last hours needs, those of attempts among them,
        and their folders.
        """
        table = self.log()
        if table is None:
            return
        table.vacuum(retention_hours=keep_h, dry_run=False, full=True, enforce_retention_duration=False)
        if in_object_store(self.uri):  # which knows no folders
            return
        old = datetime.now(UTC) - timedelta(hours=keep_h)
        for info in self._files.get_file_info(pafs.FileSelector(self._root)):
            if _is_attempt(info, old):
                inside = self._files.get_file_info(pafs.FileSelector(info.path, recursive=True))
                if not any(each.is_file for each in inside):
                    self._files.delete_dir(info.path)

    def read(
        self, spark: SparkSession, columns: Sequence[str], bounds: Mapping[str, tuple[Any, Any]] = {}
    ) -> DataFrame:
        """These columns of the files that may have rows within all bounds; their other rows are among them.

        `bounds` are inclusive, of `epoch`, `offset`, `received` or `event_time`; None: no bound.
        """
        table = self.log()
        if table is None:
            raise TableError(f"there is no table {self.uri}")
        schema = from_arrow_schema(pa.schema(table.schema().to_arrow()))
        wanted = StructType([schema[name] for name in columns])
        found = (each for each in self.files() if _overlaps(each, bounds))
        sizes = {f"{self.uri}/{each['path']}": each["size_bytes"] for each in found}
        return read_files(spark, self.storage, sizes, wanted)

    def schema(self) -> StructType | None:
        """The columns; None where there is no table yet."""
        table = self.log()
        return from_arrow_schema(pa.schema(table.schema().to_arrow())) if table else None

    def reached(self, progress: Progress) -> int:
        """The offset after the last message of the stream that the table has."""
        table = self.log()
        return progress.reached(table) if table else 0

    def epochs(self) -> list[int]:
        """Those of which the table has messages, in the order in which they came."""
        first: dict[int, datetime] = {}
        for each in self.files():
            epoch, received = each.get("min.epoch"), each.get("min.received")
            if epoch is not None and received is not None:  # or somebody else has written it
                first[epoch] = min(first.get(epoch, received), received)
        return sorted(first, key=lambda epoch: first[epoch])

    def log(self) -> DeltaTable | None:
        """As it is now; None where there is no table."""
        if self._log is None or not self._is_current(self._log.version()):
            try:
                # lists the log: that takes longer, the more versions there are
                self._log = DeltaTable(self.uri, storage_options=self.storage.of_tables)
            except TableNotFoundError:
                self._log = None
        return self._log

    def _is_current(self, version: int) -> bool:
        """Whether the table is there, in this version."""
        names = [f"{self._root}/_delta_log/{number:020}.json" for number in (version, version + 1)]
        there = [info.type == pafs.FileType.File for info in self._files.get_file_info(names)]
        return there == [True, False]

    def _open(self, schema: pa.Schema, widen: bool = False) -> Any:
        """The table, made if there is none: what `_commit` needs."""
        schema = Schema.from_arrow(schema)
        if (table := self.log()) is None:
            columns = list(self.partition_by)
            self._log = DeltaTable.create(
                self.uri,
                schema,
                partition_by=columns,
                mode="ignore",
                configuration=_CONFIGURATION,
                storage_options=self.storage.of_tables,
            )
            return self._log
        there = {each.name: each.type for each in table.schema().fields}
        nullable = {each.name: each.nullable for each in table.schema().fields}
        if widen and (new := [each for each in schema.fields if each.name not in there]):
            table.alter.add_columns(new)
            there |= {each.name: each.type for each in new}
        for each in schema.fields:
            if there.pop(each.name, None) != each.type:
                raise TableError(f"the table {self.uri} has no column {each.name} of {each.type}")
        # further columns are its owner's, and stay empty
        if required := sorted(name for name in there if not nullable[name]):
            raise TableError(f"the table {self.uri} has a column {required[0]} that must have a value")
        return table

    def _is_behind(self, table: DeltaTable, progress: Progress) -> bool:
        """Whether the table has only begun an earlier working. ConflictError when it has a later one."""
        if progress.working is None:
            return False
        there, mine = progress.generation_of(table), progress.working.generation
        if there > mine:
            raise ConflictError(f"somebody else works the messages of {self.uri} again")
        return there < mine

    def commit(self, attempt: Attempt, written: Sequence[Written]) -> int:
        """See `Attempt.commit`; all of these files are the attempt's."""
        span, progress = attempt.span, attempt.progress
        if attempt.log.version() != attempt.version and self._has_moved(attempt):
            raise ConflictError(f"somebody else has brought {self.uri} elsewhere meanwhile")
        if not written and (span is None or not span.whole):
            return 0
        epoch = progress.epoch
        if any((each.low["epoch"], each.high["epoch"]) != (epoch, epoch) for each in written):
            raise TableError(
                f"the stream {progress.stream} was made anew while its messages were written to {self.uri}"
            )
        end = span.end if span else max(each.high["offset"] for each in written) + 1
        self._commit(attempt.log, written, attempt.columns, progress.said(end))
        return sum(each.rows for each in written)

    @staticmethod
    def _has_moved(attempt: Attempt) -> bool:
        """Whether the progress is another one since: a commit would not notice what its log knows."""
        log, progress = attempt.log, attempt.progress
        begun = progress.working is None or progress.generation_of(log) == progress.working.generation
        return not begun or progress.reached(log) != attempt.reached

    def _commit(
        self, table: DeltaTable, written: Sequence[Written], schema: pa.Schema, said: CommitProperties
    ) -> None:
        """Makes the files of an attempt the table's; `table` is what `_open` gave."""
        with self._alone():
            table.create_write_transaction(
                [_added(each) for each in written],
                "append",
                schema,
                list(self.partition_by),
                commit_properties=said,
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """ConflictError where another driver has committed since the table was opened."""
        try:
            yield
        except CommitFailedError as error:
            raise ConflictError(f"somebody else has written to {self.uri} meanwhile: {error}") from error


def _added(written: Written) -> AddAction:
    """What the log says of a file."""
    parts = (part.split("=", 1) for part in written.path.split("/") if "=" in part)
    stats = {
        "numRecords": written.rows,
        "minValues": written.low,
        "maxValues": written.high,
        "nullCount": dict.fromkeys(written.low, 0),
    }
    return AddAction(
        path=written.path,
        size=written.size,
        partition_values=dict(parts),
        modification_time=written.modified_ms,
        data_change=True,
        stats=json.dumps(stats),
    )


def _is_attempt(info: pafs.FileInfo, before: datetime) -> bool:
    """Whether it is the folder of an attempt, or of files put together, that is older."""
    ours = info.type == pafs.FileType.Directory and info.base_name.startswith(("batch-", "compact-"))
    return ours and info.mtime is not None and info.mtime < before


def _overlaps(file: Mapping[str, Any], bounds: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether a file may have rows within the bounds; one whose own are not known may."""
    for column, (low, high) in bounds.items():
        least, greatest = file.get(f"min.{column}"), file.get(f"max.{column}")
        if low is not None and greatest is not None and greatest < low:
            return False
        if high is not None and least is not None and least > high:
            return False
    return True
