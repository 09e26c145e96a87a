"""Parquet files that tasks read and write by themselves where Spark's Java may not reach: in object stores,
for which the Spark of pip has no connector.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidemq.pipeline.places import Storage, in_object_store, spark_uri

TASK_BYTES = 16 << 20  # that a task reads, if it is more than one file
OPEN_BYTES = 4 << 20  # so many bytes can be read while a file is opened
_ROWS = 10_000  # of a batch


def read_files(
    spark: SparkSession, storage: Storage, files: Mapping[str, int], columns: StructType
) -> DataFrame:
    """The rows of files, of these URIs and sizes. A column that a file has not is null."""
    if not files:
        return spark.createDataFrame([], columns)
    if not any(map(in_object_store, files)):
        return spark.read.schema(columns).parquet(*map(spark_uri, files))
    shares = list(_shared(files))
    reader = _Reader(storage, shares, to_arrow_schema(columns, timezone="UTC"))
    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(reader, columns)


def write_files(frame: DataFrame, storage: Storage, folder: str) -> list[str]:
    """Writes all rows into new files below a folder's URI; gives their names."""
    writer = _Writer(storage, folder, to_arrow_schema(frame.schema, timezone="UTC"))
    return [row.name for row in frame.mapInArrow(writer, "name string").collect()]


def with_columns(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The same rows; a column that they have not is null."""
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _shared(files: Mapping[str, int]) -> Iterator[list[str]]:
    """What each task reads."""
    share: list[str] = []
    held = 0
    for uri, size in files.items():
        cost = max(size, OPEN_BYTES)
        if share and held + cost > TASK_BYTES:
            yield share
            share, held = [], 0
        share.append(uri)
        held += cost
    yield share


@dataclass(frozen=True, slots=True)
class _Reader:
    """A task: takes the numbers of shares. Holds a row group at a time."""

    storage: Storage
    shares: list[list[str]]
    columns: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for uri in self.shares[number]:
                    yield from self._batches(uri)

    def _batches(self, uri: str) -> Iterator[pa.RecordBatch]:
        files, path = self.storage.open(uri)
        with files.open_input_file(path) as source:
            file = pq.ParquetFile(source, pre_buffer=True)
            names = [name for name in self.columns.names if name in file.schema_arrow.names]
            for group in range(file.num_row_groups):
                for batch in file.read_row_group(group, columns=names).to_batches(_ROWS):
                    yield with_columns(batch, self.columns)


@dataclass(frozen=True, slots=True)
class _Writer:
    """A task: gives the name of its file, if it has rows."""

    storage: Storage
    folder: str
    columns: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files, root = self.storage.open(self.folder)
        name = f"{uuid.uuid4()}.parquet"
        writer: pq.ParquetWriter | None = None
        files.create_dir(root)
        for batch in batches:
            writer = writer or pq.ParquetWriter(f"{root}/{name}", self.columns, filesystem=files)
            writer.write_batch(batch)
        if writer:
            writer.close()
            yield pa.RecordBatch.from_pydict({"name": [name]})
