"""Messages from the broker into Parquet files, within a task: from Arrow to Arrow, past Spark's rows.

Spark makes rows of a source's Arrow batches, and columns of them again to write Parquet, which costs several
times what reading and writing the batches themselves does. So ingest has Spark plan which offsets a batch has
and who reads them (`option("ranges", "true")`), and its tasks write the files of bronze.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidemq.pipeline.lake.day_files import DayFiles
from tidemq.pipeline.places import Storage
from tidemq.pipeline.sources.ranges import RANGES, Range, messages_of
from tidemq.pipeline.sources.stream_options import SourceOptions

COPIED = f"{RANGES}, repeated boolean, files array<string>"
_DAY_US = 86_400_000_000

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def copier(options: SourceOptions, storage: Storage, folder: str, reached: int, bytes_max: int) -> Task:
    """What a task does with ranges: writes their messages from offset `reached` on below `folder`, a URI, a
    file for each range and day. Holds messages of some `bytes_max` bytes at a time. Gives the ranges back,
    whether one of their messages was marked as sent again, and the files (`Written`).
    """

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            done = []
            for row in batch.to_pylist():
                wanted = Range(row["epoch"], max(row["start"], reached), row["end"])
                with DayFiles(storage, bytes_max) as files:
                    repeated = copied(options, wanted, folder, files)
                done.append((repeated, [each.to_json() for each in files.written]))
            batch = batch.append_column("repeated", pa.array([repeated for repeated, _ in done], pa.bool_()))
            texts = pa.array([written for _, written in done], pa.list_(pa.string()))
            yield batch.append_column("files", texts)

    return copy


def copied(options: SourceOptions, wanted: Range, folder: str, files: DayFiles) -> bool:
    """Whether one of the messages of a range was marked as sent again; all are in the files then."""
    repeated = False
    if wanted.start >= wanted.end:
        return repeated
    for batch in messages_of(options, wanted):
        passed = pc.divide(batch.column("received").cast(pa.int64()), _DAY_US)
        files.add(folder, batch, passed.cast(pa.int32()).cast(pa.date32()))
        repeated = repeated or bool(pc.any(batch.column("dup")).as_py())
    return repeated
