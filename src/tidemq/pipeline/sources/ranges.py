"""Ranges of offsets of a stream: planned by the driver, read by executors as rows of the source.

Spark keeps a reader in one process and has its ranges read in others, so a reader holds nothing that `read`
needs but its options.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidemq.client.streams import ChangedEpochError
from tidemq.pipeline.decode.publish_time import published_times
from tidemq.pipeline.sources.stream_options import SourceOptions

TYPES = {  # of a row's columns, in Spark's own language
    "epoch": "bigint",
    "offset": "bigint",
    "topic": "string",
    "payload": "binary",
    "qos": "tinyint",
    "retain": "boolean",
    "dup": "boolean",
    "packet_id": "int",
    "client_id": "string",
    "received": "timestamp",
    "message_id": "binary",
    "content_type": "string",
    "response_topic": "string",
    "correlation_data": "binary",
    "user_properties": "array<struct<name: string, value: string>>",
}
COLUMNS = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
NODE = "string"  # the type of the column that tells several nodes apart
PUBLISHED = "timestamp"  # the type of the column that the option timeProperty makes
RANGES = "epoch bigint, start bigint, end bigint"  # with the option ranges, instead of messages
BATCH_ROWS = 16_384  # what is read is handed to Spark in batches of about so many rows,
BATCH_BYTES = 16 << 20  # or so many bytes


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Range(InputPartition):
    """What one task reads: the messages from `start` up to `end`; of several nodes, one's, at its URL."""

    epoch: int
    start: int
    end: int
    node: str = ""
    url: str = ""


class RangeRows:
    """Reads ranges of offsets; what all kinds of reader do."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In an executor."""
        assert isinstance(partition, Range)
        if self.options.ranges:
            row = {name: [getattr(partition, name)] for name in ("epoch", "start", "end")}
            yield pa.RecordBatch.from_pydict(row)
        else:
            yield from messages_of(self.options, partition)

    def planned(self, epoch: int, start: int, end: int, *, node: str = "", url: str = "") -> Sequence[Range]:
        """The messages of a batch, for tasks of about equal size."""
        rows = self.options.partition_rows or max(end - start, 1)  # 0: all in one
        count = max(-(-(end - start) // rows), 0)
        bounds = [start + (end - start) * number // count for number in range(count)] + [end]
        return [Range(epoch, first, last, node, url) for first, last in pairwise(bounds)]


def messages_of(options: SourceOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The messages of a range, as rows of the source."""

    def warn(start: int, end: int) -> None:
        text = "the stream %s has lost the %d messages of offsets %d to %d"
        _log.warning(text, options.stream, end - start, start, end - 1)

    on_missing = None if options.fail_on_data_loss else warn
    reader, columns = options.open(wanted.url), columns_read(options.columns)
    if options.last:
        read = reader.read_last(epoch=wanted.epoch, columns=columns)
    else:
        read = reader.read(
            wanted.start, wanted.end, epoch=wanted.epoch, on_missing=on_missing, columns=columns
        )
    try:
        for batch in gathered(read):
            yield with_columns(batch, wanted, options)
    except ChangedEpochError:  # between planning and reading: at the first batch, or at none
        if options.fail_on_data_loss:
            raise
        warn(wanted.start, wanted.end)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: those of a slow publisher have a row each."""
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        kept.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _joined(kept)
            kept, rows, size = [], 0, 0
    if kept:
        yield _joined(kept)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def schema_of(options: SourceOptions) -> str:
    """What rows have, in Spark's own language."""
    if options.ranges:
        return RANGES
    kinds = TYPES | {"node": NODE, "published": PUBLISHED}
    return ", ".join(f"{name} {kinds[name]}" for name in options.columns)


def columns_read(columns: Sequence[str]) -> list[str]:
    """Those of the stream that make up these of the source; one at least, that rows can be counted by."""
    made = {"node": (), "epoch": (), "published": ("user_properties",)}
    found = dict.fromkeys(name for each in columns for name in made.get(each, (each,)))
    return list(found) or ["offset"]


def with_columns(batch: pa.RecordBatch, wanted: Range, options: SourceOptions) -> pa.RecordBatch:
    """A stream's batch as rows of the source."""
    arrays = []
    for name in options.columns:
        if name == "epoch":
            arrays.append(pa.repeat(pa.scalar(wanted.epoch, pa.int64()), batch.num_rows))
        elif name == "node":
            arrays.append(pa.repeat(wanted.node, batch.num_rows))
        elif name == "published":
            arrays.append(published_times(batch.column("user_properties"), options.time_property))
        else:
            arrays.append(batch.column(name))
    return pa.RecordBatch.from_arrays(arrays, names=list(options.columns))
