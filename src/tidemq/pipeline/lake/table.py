"""Delta Lake tables that Spark's executors fill and the driver commits: each message once, by its offset.

Executors write Parquet files into a new folder below the table for each attempt; then the driver commits
these files in one transaction of Delta's log, by `deltalake`, without Delta's Java parts. The transaction has
how far in the stream (its name and epoch) the table has got. So a batch that is tried again, after a driver
was killed or by one that does not know that another has taken over, adds only what is behind that offset, and
two that commit at once exclude one another. Files of an attempt that was not committed belong to no table;
`maintain` removes them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its name everywhere
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidemq.errors import TideMQError

RETAINED_H = 7 * 24  # files that no version of the table needs are kept so long for its readers
Write = Callable[[str, int], None]  # into a folder, from an offset on
_COUNTED = ("epoch", "offset", "received", "event_time")  # the log has their bounds of each file


def day_of(column: str) -> str:
    """Of a time the day in UTC, whatever the session's zone: in Spark's language."""
    return f"date_add(DATE'1970-01-01', cast(floor(unix_micros({column}) / 86400000000) as int))"


class TableError(TideMQError):
    """A table is not what is to be written to, or somebody else writes to it. Caught by who started the
    job."""


@dataclass(frozen=True, slots=True)
class Written:
    """A Parquet file of an attempt, not committed yet. `path` is relative to the table."""

    path: str
    size: int
    modified_ms: int
    rows: int
    low: dict[str, Any]  # by column
    high: dict[str, Any]

    def action(self) -> AddAction:
        """What the log says of it."""
        parts = (part.split("=", 1) for part in self.path.split("/") if "=" in part)
        stats = {
            "numRecords": self.rows,
            "minValues": self.low,
            "maxValues": self.high,
            "nullCount": dict.fromkeys(self.low, 0),
        }
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values=dict(parts),
            modification_time=self.modified_ms,
            data_change=True,
            stats=json.dumps(stats, default=_utc),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far in a stream a table gets by a commit: from an offset to another."""

    stream: str
    epoch: int
    start: int = 0
    end: int = 0

    @property
    def writer(self) -> str:
        """Whose transactions in Delta's log say so."""
        return f"tidemq/{self.stream}/{self.epoch}"

    @property
    def beginning(self) -> str:
        """Whose transactions say where the last batch began, which may not be in all tables yet."""
        return f"{self.writer}/from"

    def properties(self) -> CommitProperties:
        said = [Transaction(self.writer, self.end), Transaction(self.beginning, self.start)]
        return CommitProperties(app_transactions=said)


class Table:
    """One table, at a folder's path or URI; partitioned by columns that come last in its rows.

    Every row has the columns `epoch` and `offset` of the message that it came from.
    """

    def __init__(self, uri: str, partition_by: tuple[str, ...] = ("date",)) -> None:
        self.uri = uri if urlsplit(uri).scheme else Path(uri).absolute().as_uri()
        self._partition_by = partition_by
        self._files, self._root = pafs.FileSystem.from_uri(self.uri)

    def append(self, frame: DataFrame, stream: str, epoch: int, *, widen: bool = False) -> int:
        """Adds the rows of messages that the table has not got to; gives their number.

        `frame` has rows of one stream and epoch, and of all messages up to its highest offset. With `widen`,
        columns that the table has not are added to it. TableError when the table has other columns, or
        another driver has committed meanwhile.
        """
        columns = to_arrow_schema(frame.schema, timezone="UTC")
        frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

        def write(folder: str, reached: int) -> None:
            rows = frame.where(F.col("offset") >= reached).write.partitionBy(*self._partition_by)
            rows = rows.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            rows.parquet(folder, compression="zstd")

        return self.append_by(write, columns, stream, epoch, widen=widen)

    def append_by(
        self, write: Write, columns: pa.Schema, stream: str, epoch: int, *, widen: bool = False
    ) -> int:
        """The same, where `write` puts Parquet files with these columns below a folder: of the rows from an
        offset on, in a folder `name=value` for each value of a partition's column, which they have not.
        """
        table = self._open(columns, widen)
        reached = self.reached(stream, epoch)  # what is committed later than this is noticed
        attempt = f"batch-{uuid.uuid4()}"
        write(f"{self.uri}/{attempt}", reached)
        written = list(self._written(attempt))
        if not written:
            with suppress(FileNotFoundError):
                self._files.delete_dir(f"{self._root}/{attempt}")
            return 0
        if any((each.low["epoch"], each.high["epoch"]) != (epoch, epoch) for each in written):
            raise TableError(
                f"the stream {stream} was made anew while its messages were written to {self.uri}"
            )
        end = max(each.high["offset"] for each in written) + 1
        self._commit(table, attempt, written, columns, Progress(stream, epoch, reached, end))
        return sum(each.rows for each in written)

    def replace(
        self,
        frame: DataFrame,
        column: str,
        spans: Sequence[tuple[datetime, datetime]],
        stream: str,
        epoch: int,
        end: int,
        settings: str,
    ) -> None:
        """Puts these rows in the place of all whose `column` lies in a span, which is from a time up to
        another: what is to be said of the stream's messages up to the offset `end`.

        The driver holds the rows. TableError when the table was made with other `settings` or columns, or
        another driver has committed meanwhile.
        """
        arrow = to_arrow_schema(frame.schema, timezone="UTC")
        table = self._open(arrow, description=settings)
        if table.metadata().description != settings:
            raise TableError(f"the table {self.uri} was made with other settings; removed, it is made anew")
        within = (f"({column} >= '{_utc(start)}' and {column} < '{_utc(end)}')" for start, end in spans)
        try:
            write_deltalake(
                table,
                frame.toArrow().cast(arrow),
                mode="overwrite",
                predicate=" or ".join(within),
                commit_properties=Progress(stream, epoch, 0, end).properties(),
            )
        except CommitFailedError as error:
            raise TableError(f"somebody else has written to {self.uri} meanwhile: {error}") from error

    def maintain(self) -> None:
        """Puts small files together, and removes files that no reader needs any more, after a week."""
        try:
            table = DeltaTable(self.uri)
        except TableNotFoundError:
            return
        table.optimize.compact()
        table.vacuum(retention_hours=RETAINED_H, dry_run=False, full=True)

    def read(
        self, spark: SparkSession, columns: Sequence[str], bounds: Mapping[str, tuple[Any, Any]] = {}
    ) -> DataFrame:
        """These columns of the files that may have rows within all bounds; their other rows are among them.

        `bounds` are inclusive, of `epoch`, `offset`, `received` or `event_time`; None: no bound.
        """
        try:
            table = DeltaTable(self.uri)
        except TableNotFoundError as error:
            raise TableError(f"there is no table {self.uri}") from error
        schema = from_arrow_schema(pa.schema(table.schema().to_arrow()))
        wanted = StructType([schema[name] for name in columns])
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        paths = [f"{self.uri}/{each['path']}" for each in files if _overlaps(each, bounds)]
        if not paths:
            return spark.createDataFrame([], wanted)
        return spark.read.schema(wanted).parquet(*paths)

    def schema(self) -> StructType | None:
        """The columns; None where there is no table yet."""
        try:
            return from_arrow_schema(pa.schema(DeltaTable(self.uri).schema().to_arrow()))
        except TableNotFoundError:
            return None

    def reached(self, stream: str, epoch: int) -> int:
        """The offset after the last message of the stream that the table has."""
        try:
            return DeltaTable(self.uri).transaction_version(Progress(stream, epoch).writer) or 0
        except TableNotFoundError:
            return 0

    def resumes_at(self, stream: str, epoch: int) -> int | None:
        """Where who has lost the checkpoint goes on: the offset at which the last batch began, which other
        tables may not have yet. None where the table has nothing of the stream.
        """
        try:
            table = DeltaTable(self.uri)
        except TableNotFoundError:
            return None
        progress = Progress(stream, epoch)
        began = table.transaction_version(progress.beginning)
        return table.transaction_version(progress.writer) if began is None else began

    def _open(self, schema: pa.Schema, widen: bool = False, description: str | None = None) -> Any:
        """The table, made if there is none: what `_commit` needs."""
        schema = Schema.from_arrow(schema)
        try:
            table = DeltaTable(self.uri)
        except TableNotFoundError:
            columns = list(self._partition_by)
            return DeltaTable.create(
                self.uri, schema, partition_by=columns, mode="ignore", description=description
            )
        there = {field.name: field.type for field in table.schema().fields}
        if widen and (new := [field for field in schema.fields if field.name not in there]):
            table.alter.add_columns(new)
            there |= {field.name: field.type for field in new}
        for field in schema.fields:
            if there.pop(field.name, None) != field.type:
                raise TableError(f"the table {self.uri} has no column {field.name} of {field.type}")
        if there:
            raise TableError(f"the table {self.uri} has a column {min(there)}, which is unknown here")
        return table

    def _commit(
        self, table: Any, attempt: str, written: Sequence[Written], schema: pa.Schema, progress: Progress
    ) -> None:
        """Makes the files of an attempt the table's; `table` is what `_open` gave."""
        try:
            table.create_write_transaction(
                [each.action() for each in written],
                "append",
                schema,
                list(self._partition_by),
                commit_properties=progress.properties(),
            )
        except CommitFailedError as error:
            raise TableError(f"somebody else has written to {self.uri} meanwhile: {error}") from error

    def _written(self, attempt: str) -> Iterator[Written]:
        """The files of an attempt that have rows."""
        selector = pafs.FileSelector(f"{self._root}/{attempt}", recursive=True, allow_not_found=True)
        for info in self._files.get_file_info(selector):
            if info.base_name.endswith(".parquet"):
                metadata = pq.read_metadata(info.path, filesystem=self._files)
                if metadata.num_rows:
                    low, high = _bounds(metadata)
                    path = f"{attempt}/{info.path.partition(f'/{attempt}/')[2]}"
                    modified_ms = (info.mtime_ns or 0) // 1_000_000
                    yield Written(path, info.size, modified_ms, metadata.num_rows, low, high)


def _overlaps(file: Mapping[str, Any], bounds: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether a file may have rows within the bounds; one whose own are not known may."""
    for column, (low, high) in bounds.items():
        least, greatest = file.get(f"min.{column}"), file.get(f"max.{column}")
        if low is not None and greatest is not None and greatest < low:
            return False
        if high is not None and least is not None and least > high:
            return False
    return True


def _utc(time: datetime) -> str:
    """As the log writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _bounds(metadata: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any]]:
    """The least and the greatest value of the counted columns."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for group in range(metadata.num_row_groups):
        for column in _columns(metadata.row_group(group)):
            name, statistics = column.path_in_schema, column.statistics
            low[name] = min(low.get(name, statistics.min), statistics.min)
            high[name] = max(high.get(name, statistics.max), statistics.max)
    return low, high


def _columns(group: pq.RowGroupMetaData) -> Iterable[pq.ColumnChunkMetaData]:
    columns = (group.column(number) for number in range(group.num_columns))
    return [column for column in columns if column.path_in_schema in _COUNTED]
