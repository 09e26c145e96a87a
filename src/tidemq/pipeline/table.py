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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its name everywhere
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidemq.errors import TideMQError

RETAINED_H = 7 * 24  # files that no version of the table needs are kept so long for its readers
Write = Callable[[str, int], None]  # into a folder, from an offset on
_COUNTED = ("epoch", "offset")  # columns whose least and greatest value the log has for each file


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
    low: dict[str, int]  # by column
    high: dict[str, int]

    def action(self) -> AddAction:
        """What the log says of it."""
        parts = (part.split("=", 1) for part in self.path.split("/") if "=" in part)
        stats = {
            "numRecords": self.rows,
            "minValues": self.low,
            "maxValues": self.high,
            "nullCount": dict.fromkeys(_COUNTED, 0),
        }
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values=dict(parts),
            modification_time=self.modified_ms,
            data_change=True,
            stats=json.dumps(stats),
        )


class Table:
    """One table, at a folder's path or URI; partitioned by columns that come last in its rows.

    Every row has the columns `epoch` and `offset` of the message that it came from.
    """

    def __init__(self, uri: str, partition_by: tuple[str, ...] = ("date",)) -> None:
        self.uri = uri if urlsplit(uri).scheme else Path(uri).absolute().as_uri()
        self._partition_by = partition_by
        self._files, self._root = pafs.FileSystem.from_uri(self.uri)

    def append(self, frame: DataFrame, stream: str, epoch: int) -> int:
        """Adds the rows of messages that the table has not got to; gives their number.

        `frame` has rows of one stream and epoch, and of all messages up to its highest offset.
        TableError when the table has other columns, or another driver has committed meanwhile.
        """
        columns = to_arrow_schema(frame.schema, timezone="UTC")
        frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

        def write(folder: str, reached: int) -> None:
            rows = frame.where(F.col("offset") >= reached).write.partitionBy(*self._partition_by)
            rows = rows.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            rows.parquet(folder, compression="zstd")

        return self.append_by(write, columns, stream, epoch)

    def append_by(self, write: Write, columns: pa.Schema, stream: str, epoch: int) -> int:
        """The same, where `write` puts Parquet files with these columns below a folder: of the rows from an
        offset on, in a folder `name=value` for each value of a partition's column, which they have not.
        """
        schema = Schema.from_arrow(columns)
        table = self._open(schema)
        writer = f"tidemq/{stream}/{epoch}"
        reached = table.transaction_version(writer) or 0
        attempt = f"batch-{uuid.uuid4()}"
        write(f"{self.uri}/{attempt}", reached)
        written = list(self._written(attempt))
        if not written:
            return 0
        if any((each.low["epoch"], each.high["epoch"]) != (epoch, epoch) for each in written):
            raise TableError(
                f"the stream {stream} was made anew while its messages were written to {self.uri}"
            )
        end = max(each.high["offset"] for each in written) + 1
        try:
            table.create_write_transaction(
                [each.action() for each in written],
                "append",
                schema,
                list(self._partition_by),
                commit_properties=CommitProperties(app_transactions=[Transaction(writer, end)]),
            )
        except CommitFailedError as error:
            raise TableError(f"somebody else has written to {self.uri} meanwhile: {error}") from error
        return sum(each.rows for each in written)

    def maintain(self) -> None:
        """Puts small files together, and removes files that no reader needs any more, after a week."""
        table = DeltaTable(self.uri)
        table.optimize.compact()
        table.vacuum(retention_hours=RETAINED_H, dry_run=False, full=True)

    def recent(self, spark: SparkSession, since: datetime, columns: Sequence[str]) -> DataFrame:
        """These columns of all files that were written since then; their other rows are among them."""
        table = DeltaTable(self.uri)
        actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "modification_time"])
        since_ms = since.timestamp() * 1000
        paths = [each["path"] for each in actions.to_pylist() if each["modification_time"] >= since_ms]
        schema = from_arrow_schema(pa.schema(table.schema().to_arrow()))
        wanted = StructType([schema[name] for name in columns])
        if not paths:
            return spark.createDataFrame([], wanted)
        return spark.read.schema(wanted).parquet(*(f"{self.uri}/{path}" for path in paths))

    def reached(self, stream: str, epoch: int) -> int:
        """The offset after the last message of the stream that the table has."""
        try:
            return DeltaTable(self.uri).transaction_version(f"tidemq/{stream}/{epoch}") or 0
        except TableNotFoundError:
            return 0

    def _open(self, schema: Schema) -> DeltaTable:
        """The table, made if there is none."""
        try:
            table = DeltaTable(self.uri)
        except TableNotFoundError:
            return DeltaTable.create(self.uri, schema, partition_by=list(self._partition_by), mode="ignore")
        there = {field.name: field.type for field in table.schema().fields}
        for field in schema.fields:
            if there.pop(field.name, None) != field.type:
                raise TableError(f"the table {self.uri} has no column {field.name} of {field.type}")
        if there:
            raise TableError(f"the table {self.uri} has a column {min(there)}, which is unknown here")
        return table

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


def _bounds(metadata: pq.FileMetaData) -> tuple[dict[str, int], dict[str, int]]:
    """The least and the greatest value of the counted columns."""
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for column in _columns(metadata.row_group(group)):
            name, statistics = column.path_in_schema, column.statistics
            low[name] = min(low.get(name, statistics.min), statistics.min)
            high[name] = max(high.get(name, statistics.max), statistics.max)
    return low, high


def _columns(group: pq.RowGroupMetaData) -> Iterable[pq.ColumnChunkMetaData]:
    columns = (group.column(number) for number in range(group.num_columns))
    return [column for column in columns if column.path_in_schema in _COUNTED]
