"""Spark's data source `tidemq`: a stream of a broker as rows, for `spark.read` and `spark.readStream`; as a
sink, rows as messages (`sink`).

    register(spark)
    frame = spark.readStream.format("tidemq").option("url", url).option("stream", "readings").load()

The driver asks the broker only what there is and plans ranges of offsets; executors read these by URL. An
offset in Spark's checkpoint is {"stream": .., "epoch": .., "offset": ..}: the offset of the next message, in
the stream of this name that had this epoch. Spark keeps the reader of a streaming query in one process and
has its ranges read in others, so a reader holds nothing that `read` needs but its options.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidemq.client.streams import ChangedEpochError, StreamError, StreamState
from tidemq.errors import UsageError
from tidemq.pipeline.decode.publish_time import TIME_TYPE, published_times
from tidemq.pipeline.sources.sink import BatchSink, SinkOptions, StreamSink
from tidemq.pipeline.sources.stream_options import SourceOptions
from tidemq.pipeline.spark.session import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

COLUMNS = (
    "epoch bigint, offset bigint, topic string, payload binary, qos tinyint, retain boolean, dup boolean, "
    "packet_id int, client_id string, received timestamp, message_id binary, content_type string, "
    "response_topic string, correlation_data binary, "
    "user_properties array<struct<name: string, value: string>>"
)
PUBLISHED = ", published timestamp"  # with the option timeProperty
RANGES = "epoch bigint, start bigint, end bigint"  # with the option ranges, instead of messages
WAIT_S = 0.5  # for a first new message: Spark asks again at once where a query has no trigger interval
BATCH_ROWS = 16_384  # what is read is handed to Spark in batches of about so many rows,
BATCH_BYTES = 16 << 20  # or so many bytes

Offset = dict[str, Any]  # as Spark keeps it in the checkpoint

_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Makes `format("tidemq")` known to a session. UsageError where its workers run another Python, without
    TideMQ.
    """
    check_workers(spark)
    spark.dataSource.register(TideMQSource)


@dataclass(frozen=True)
class Range(InputPartition):
    """What one task reads: the messages from `start` up to `end`."""

    epoch: int
    start: int
    end: int


class TideMQSource(DataSource):
    """`format("tidemq")`. UsageError on an unknown option or a wrong value."""

    @classmethod
    def name(cls) -> str:
        return "tidemq"

    def schema(self) -> str:
        options = self._parsed()
        return RANGES if options.ranges else COLUMNS + (PUBLISHED if options.time_property else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        self._refuse_other(schema)
        return RangeReader(self._parsed())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        self._refuse_other(schema)
        return TailReader(self._parsed())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchSink(self._checked(schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamSink(self._checked(schema, streaming=True))

    def _refuse_other(self, schema: StructType) -> None:
        """Spark takes a user's `.schema()` for that of the source."""
        own = self.schema().replace(": ", ":").replace("string, value", "string,value").split(", ")
        if [f"{field.name} {field.dataType.simpleString()}" for field in schema.fields] != own:
            raise UsageError("a stream has its own columns; accepted: no .schema(), and a select of some")

    def _parsed(self) -> SourceOptions:
        return SourceOptions.parse(self.options)

    def _checked(self, schema: StructType, *, streaming: bool) -> SinkOptions:
        options = SinkOptions.parse(self.options)
        options.check(schema, streaming=streaming)
        return options


class _Rows:
    """Reads ranges of offsets; what both kinds of reader do."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In an executor."""
        assert isinstance(partition, Range)
        if self._options.ranges:
            row = {name: [getattr(partition, name)] for name in ("epoch", "start", "end")}
            yield pa.RecordBatch.from_pydict(row)
        else:
            yield from messages_of(self._options, partition)

    def _planned(self, epoch: int, start: int, end: int) -> Sequence[Range]:
        """The messages of a batch, for tasks of about equal size."""
        rows = self._options.partition_rows or max(end - start, 1)  # 0: all in one
        count = max(-(-(end - start) // rows), 0)
        bounds = [start + (end - start) * number // count for number in range(count)] + [end]
        return [Range(epoch, first, last) for first, last in pairwise(bounds)]


def messages_of(options: SourceOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The messages of a range, as rows of the source."""

    def warn(start: int, end: int) -> None:
        text = "the stream %s has lost the %d messages of offsets %d to %d"
        _log.warning(text, options.stream, end - start, start, end - 1)

    on_missing = None if options.fail_on_data_loss else warn
    read = options.open().read(wanted.start, wanted.end, epoch=wanted.epoch, on_missing=on_missing)
    try:
        for batch in gathered(read):
            yield with_columns(batch, wanted.epoch, options.time_property)
    except ChangedEpochError:  # between planning and reading: at the first batch, or at none
        if options.fail_on_data_loss:
            raise
        warn(wanted.start, wanted.end)


class RangeReader(_Rows, DataSourceReader):
    """What `spark.read` gives: the messages from `start` up to `end`."""

    def partitions(self) -> Sequence[Range]:
        reader = self._options.open()
        state = reader.describe()
        start = self._options.start.resolve(reader, state)
        end = min(self._options.end.resolve(reader, state), state.next_offset)
        wanted = self._options.end.offset
        if wanted is not None and end < wanted:
            raise StreamError(f"the stream {state.name} ends before offset {wanted}: the next one is {end}")
        # at least one: without any, Spark reads a partition that is None
        return self._planned(state.epoch, start, end) or [Range(state.epoch, end, end)]


class TailReader(_Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What `spark.readStream` gives: the messages from `start` on, batch after batch."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._target: StreamState | None = None  # of Trigger.AvailableNow: no message behind it is read

    def initialOffset(self) -> Offset:  # noqa: N802
        reader = self._options.open()
        state = reader.describe()
        return self._offset(state.epoch, self._options.start.resolve(reader, state))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._options.open().describe()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.rows_max:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        state = self._options.open().describe()
        return self._offset(state.epoch, state.next_offset)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the batch that begins with `start` ends."""
        self._refuse_foreign(start)
        reader = self._options.open()
        state = self._target or reader.wait(start["offset"], WAIT_S)
        at = self._present(start, state)
        end = state.next_offset
        if isinstance(limit, ReadMaxRows):
            end = min(end, at + limit.max_rows)
        elif isinstance(limit, ReadMaxBytes) and at < end:
            end = reader.end_within(at, end, limit.max_bytes)
        return self._offset(state.epoch, end)

    def _offset(self, epoch: int, offset: int) -> Offset:
        return {"stream": self._options.stream, "epoch": epoch, "offset": offset}

    def _refuse_foreign(self, known: Offset) -> None:
        """A checkpoint of another query."""
        own = isinstance(known.get("epoch"), int) and isinstance(known.get("offset"), int)
        stream = known.get("stream", self._options.stream)  # of earlier versions, that did not say it
        if not own or stream != self._options.stream:
            whose = f"the stream {stream}" if own else f"another source, which is at {known}"
            raise StreamError(f"the checkpoint is that of {whose}; each query needs one of its own")

    def _present(self, start: Offset, state: StreamState) -> int:
        """The offset to read from: that of `start`, or of the first message there is where data is lost."""
        offset: int = start["offset"]
        if start["epoch"] != state.epoch:
            self._lose(
                f"the stream {state.name} was made anew: the messages behind offset {offset} are lost; "
                f"its epoch is {state.epoch}, and the checkpoint has {start['epoch']}"
            )
            return state.first_offset
        if offset > state.next_offset:
            self._lose(
                f"the stream {state.name} ends before offset {offset}, where this query has got to: "
                f"its next one is {state.next_offset}; the broker's disk lost what it had not synced"
            )
            return state.next_offset
        if offset < state.first_offset:
            self._lose(
                f"the messages of offsets {offset} to {state.first_offset - 1} of the stream {state.name} "
                "are older than its retention allows"
            )
            return state.first_offset
        return offset

    def _lose(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise StreamError(f"{text}. With failOnDataLoss=false a query goes on with what is there")
        _log.warning(text)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        self._refuse_foreign(end)
        begin = start["offset"] if start["epoch"] == end["epoch"] else 0
        return self._planned(end["epoch"], begin, end["offset"])


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


def with_columns(batch: pa.RecordBatch, epoch: int, time_property: str) -> pa.RecordBatch:
    """A stream's batch as rows of the source: its columns, between the epoch and the publisher's time."""
    epochs = pa.repeat(pa.scalar(epoch, pa.int64()), batch.num_rows)
    arrays, fields = [epochs, *batch.columns], [pa.field("epoch", pa.int64()), *batch.schema]
    if time_property:
        arrays.append(published_times(batch.column("user_properties"), time_property))
        fields.append(pa.field("published", TIME_TYPE))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
