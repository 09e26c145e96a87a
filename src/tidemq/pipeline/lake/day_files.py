"""Parquet files that a task writes, one for each folder and day."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

GROUP_ROWS = 1 << 17
DISTINCT = ("payload", "message_id", "offset", "received", "correlation_data")  # a dictionary saves nothing


class DayFiles:
    """Files of one name, each in a folder `date=DAY` below that of its rows. Holds rows of some `bytes_max`
    bytes at a time.

    A file has its name once it is whole, and a task that is tried again makes the same ones, so nothing is
    there twice.
    """

    def __init__(self, name: str, bytes_max: int) -> None:
        self._name = name
        self._bytes_max = bytes_max
        self._files: dict[tuple[str, str], _File] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            for each in self._files.values():
                each.close()

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
            files, root = pafs.FileSystem.from_uri(folder)
            self._files[folder, day] = _File(files, f"{root}/{day}", self._name, schema)
        return self._files[folder, day]


class _File:
    """One while it is written."""

    def __init__(self, files: pafs.FileSystem, folder: str, name: str, schema: pa.Schema) -> None:
        files.create_dir(folder)
        self._files = files
        self._path = f"{folder}/{name}"
        self._unfinished = f"{self._path}.{uuid.uuid4()}"
        plain = [each for each in schema.names if each not in DISTINCT]
        self._writer = pq.ParquetWriter(
            self._unfinished, schema, filesystem=files, compression="zstd", use_dictionary=plain
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

    def close(self) -> None:
        """Gives the file its name, unless another attempt at the task was first: its size may be known."""
        self.flush()
        self._writer.close()
        if self._files.get_file_info(self._path).type == pafs.FileType.NotFound:
            self._files.move(self._unfinished, self._path)
        else:
            self._files.delete_file(self._unfinished)
