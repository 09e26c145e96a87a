"""Messages from the broker into Parquet files, within a task: from Arrow to Arrow, past Spark's rows.

Spark makes rows of a source's Arrow batches, and columns of them again to write Parquet, which costs several
times what reading and writing the batches themselves does. So ingest has Spark plan which offsets a batch has
and who reads them (`option("ranges", "true")`), and its tasks write the files of bronze.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidemq.pipeline.sources.stream import Range, messages_of
from tidemq.pipeline.sources.stream_options import SourceOptions

GROUP_ROWS = 1 << 17
DISTINCT = ("payload", "message_id", "offset", "received", "correlation_data")  # a dictionary saves nothing
_DAY_US = 86_400_000_000

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def copier(options: SourceOptions, folder: str, reached: int, bytes_max: int) -> Task:
    """What a task does with ranges: writes their messages from offset `reached` on below `folder`, a URI, a
    file for each range and day. A file has its name once it is whole, and the same rows whoever wrote it, so
    a task that is tried again leaves nothing twice. It holds messages of some `bytes_max` bytes at a time.
    Gives the ranges back.
    """

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                _copy(options, Range(row["epoch"], max(row["start"], reached), row["end"]), folder, bytes_max)
            yield batch

    return copy


def _copy(options: SourceOptions, wanted: Range, folder: str, bytes_max: int) -> None:
    if wanted.start >= wanted.end:
        return
    files, root = pafs.FileSystem.from_uri(folder)
    days: dict[str, _Day] = {}
    for batch in messages_of(options, wanted):
        passed = pc.divide(batch.column("received").cast(pa.int64()), _DAY_US)
        dates = passed.cast(pa.int32()).cast(pa.date32())
        of_batch = pc.unique(dates)
        for day in of_batch:
            name = f"date={day}"
            if name not in days:
                days[name] = _Day(files, f"{root}/{name}", f"{wanted.start:020}.parquet", batch.schema)
            days[name].add(batch if len(of_batch) == 1 else batch.filter(pc.equal(dates, day)))
        if sum(each.bytes for each in days.values()) >= bytes_max:
            for each in days.values():
                each.flush()
    for each in days.values():
        each.close()


class _Day:
    """A file while it is written."""

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
