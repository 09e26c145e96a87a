"""Parquet files that a task writes for tables, one for each table's attempt and day.

A file has a name of its own, and belongs to no table until the driver has committed it, which learns of it by
what the task gives. So nothing is renamed or listed, which object stores cannot do or do slowly, and what
a task has left that failed, or that ran twice, is not taken for the table's.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Row

from tidemq.pipeline.places import Storage

GROUP_ROWS = 1 << 17
DISTINCT = ("payload", "message_id", "offset", "received", "correlation_data")  # a dictionary saves nothing
COUNTED = ("epoch", "offset", "received", "event_time", "window")  # the log has their bounds of each file


@dataclass(frozen=True, slots=True)
class Written:
    """A whole file, not committed yet. `path` is relative to the table: the attempt's folder, `date=DAY`, and
    a name. Bounds are numbers, or times as Delta's log has them.
    """

    path: str
    size: int
    modified_ms: int
    rows: int
    low: dict[str, Any]  # by column
    high: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


def files_of(rows: Iterable[Row]) -> list[Written]:
    """Those that tasks give, as JSON in the column `files`."""
    return [Written.from_json(text) for row in rows for text in row.files]


class DayFiles:
    """Files, each in a folder `date=DAY` below that of its rows. Holds rows of some `bytes_max` bytes at a
    time. When it has been left without an error, `written` has them.
    """

    def __init__(self, storage: Storage, bytes_max: int) -> None:
        self.written: list[Written] = []
        self._storage = storage
        self._bytes_max = bytes_max
        self._files: dict[tuple[str, str], _File] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.written = [each.close() for each in self._files.values()]

    def add(self, folder: str, batch: pa.RecordBatch, dates: pa.Array) -> None:
        """Rows for the table whose attempt has this folder, a URI, and their days."""
        of_batch = pc.unique(dates)
        for day in of_batch:
            rows = batch if len(of_batch) == 1 else batch.filter(pc.equal(dates, day))
            self._file(folder, f"date={day}", batch.schema).add(rows)
        if sum(each.bytes for each in self._files.values()) >= self._bytes_max:
            for each in self._files.values():
                each.flush()

    def _file(self, folder: str, day: str, schema: pa.Schema) -> _File:
        if (folder, day) not in self._files:
            self._files[folder, day] = _File(self._storage, folder, day, schema)
        return self._files[folder, day]


class _File:
    """One while it is written."""

    def __init__(self, storage: Storage, folder: str, day: str, schema: pa.Schema) -> None:
        files, root = storage.open(folder)
        files.create_dir(f"{root}/{day}")  # nothing, in an object store
        name = f"{day}/{uuid.uuid4()}.parquet"
        self._path = f"{folder.rpartition('/')[2]}/{name}"
        self._file = files.open_output_stream(f"{root}/{name}")
        plain = [each for each in schema.names if each not in DISTINCT]
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            use_dictionary=plain,
            metadata_collector=self._metadata,
        )
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self.bytes = 0  # that it holds

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self.bytes += batch.nbytes
        if self._rows >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Writes what it holds, as a row group."""
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), GROUP_ROWS)
        self._batches, self._rows, self.bytes = [], 0, 0

    def close(self) -> Written:
        """In an object store, the file is there only now."""
        self.flush()
        self._writer.close()
        size = self._file.tell()
        self._file.close()
        (metadata,) = self._metadata
        return Written(self._path, size, time.time_ns() // 1_000_000, metadata.num_rows, *_bounds(metadata))


def utc(time: datetime) -> str:
    """As Delta's log writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _bounds(metadata: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any]]:
    """The least and the greatest value of the counted columns, as far as they have values."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for group in range(metadata.num_row_groups):
        for name, statistics in _statistics(metadata.row_group(group)):
            low[name] = min(low.get(name, statistics.min), statistics.min)
            high[name] = max(high.get(name, statistics.max), statistics.max)
    return _as_said(low), _as_said(high)


def _statistics(group: pq.RowGroupMetaData) -> Iterable[tuple[str, pq.Statistics]]:
    columns = (group.column(number) for number in range(group.num_columns))
    return [
        (column.path_in_schema, column.statistics)
        for column in columns
        if column.path_in_schema in COUNTED and column.is_stats_set and column.statistics.has_min_max
    ]


def _as_said(bounds: dict[str, Any]) -> dict[str, Any]:
    return {name: utc(value) if isinstance(value, datetime) else value for name, value in bounds.items()}
