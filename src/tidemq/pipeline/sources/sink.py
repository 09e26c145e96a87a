"""Spark's data source `tidemq` as a sink: rows are published to a broker by MQTT, one connection a task.

    messages.writeStream.format("tidemq").option("url", "mqtt://broker").option("publisherId", "alerts")

At least once; with a publisher id, exactly once (`tidemq.client.exactly_once`): the partition is then a
session of the broker, and a task that is tried again goes on where the one before it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from tidemq.client import AnswerTimeoutError, Message
from tidemq.client.exactly_once import ExactlyOncePublisher
from tidemq.errors import TideMQError, UsageError
from tidemq.pipeline.sources.mqtt_target import Target, named
from tidemq.pipeline.sources.row_messages import ahead, check_columns

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

ANSWER_S = 120.0  # for the acknowledgements of some 100,000 rows, a broker's restart included
_ROWS = 10_000  # of a batch that is made of rows
_BATCH_ID = "streaming.sql.batchId"  # of the tasks of a micro-batch, as Spark has it
_NAMES = (*Target.NAMES, "qos", "publisherId", "batchId", "orderBy")


class SinkError(TideMQError):
    """A task could not publish its rows. Caught by Spark, which tries it again."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writer is told; docs/pipeline.md has the meaning of each option."""

    target: Target
    qos: int
    publisher: str  # empty: at least once
    batch: int | None  # of a writer without micro-batches
    order_by: tuple[str, ...]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """UsageError names the option and what would be accepted."""
        values = named(given, _NAMES)
        target = Target.parse(values)
        publisher, batch = values.get("publisherId", ""), values.get("batchId")
        if values.get("qos", "1") not in ("0", "1", "2"):
            raise UsageError(f"the option qos is {values['qos']!r}; accepted: 0, 1, 2")
        if batch is not None and not (batch.isascii() and batch.isdigit()):
            raise UsageError(f"the option batchId is {batch!r}; accepted: a whole number from 0")
        if publisher:
            if "qos" in values:
                raise UsageError("the option qos means nothing beside publisherId: all goes at QoS 2")
            ExactlyOncePublisher(target.url, publisher).close()  # checks the name
        elif batch is not None or "orderBy" in values:
            raise UsageError("the options batchId and orderBy mean nothing without publisherId")
        order_by = tuple(name.strip() for name in values.get("orderBy", "").split(",") if name.strip())
        number = None if batch is None else int(batch)
        return cls(target, int(values.get("qos", "1")), publisher, number, order_by)

    def check(self, schema: StructType, *, streaming: bool) -> None:
        """UsageError where rows of this schema cannot be published so."""
        check_columns(schema, self.order_by)
        if missing := set(self.order_by) - set(schema.fieldNames()):
            raise UsageError(f"the option orderBy has {min(missing)!r}, which is no column")
        if self.publisher and "qos" in schema.fieldNames():
            raise UsageError("the column qos means nothing beside publisherId: all goes at QoS 2")
        if self.publisher and not streaming and self.batch is None:
            raise UsageError("publisherId needs the option batchId here, a number that grows with each batch")
        if self.publisher and streaming and self.batch is not None:
            raise UsageError("the option batchId is of spark.write: a streaming query has its own")


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """How many rows a task has published."""

    rows: int


class RowSink:
    """Publishes the rows of a task; what both kinds of writer do."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In an executor."""
        options = self._options
        if options.publisher:
            iterator = _sorted(iterator, options.order_by) if options.order_by else iterator
            groups = ahead(iterator, 2)
        else:
            groups = ahead(iterator, options.qos)
        first = next(groups, None)
        if first is None:
            return Published(0)  # a task without rows needs no connection
        groups = chain([first], groups)
        return Published(self._once(groups) if options.publisher else self._at_least_once(groups))

    def _at_least_once(self, groups: Iterator[list[Message]]) -> int:
        rows = 0
        with self._options.target.connected(backoff_s_max=1.0) as client:
            for messages in groups:
                try:
                    rows += client.publish_many(messages, timeout_s=ANSWER_S)
                except AnswerTimeoutError as error:
                    raise SinkError(
                        f"{self._options.target.url} did not acknowledge {len(messages)} messages within "
                        f"{ANSWER_S:g} s"
                    ) from error
        return rows

    def _once(self, groups: Iterator[list[Message]]) -> int:
        options, task = self._options, TaskContext.get()
        assert task is not None
        batch = options.batch
        if batch is None:
            number = task.getLocalProperty(_BATCH_ID)
            assert number is not None, "this Spark does not tell tasks their micro-batch"
            batch = int(number)
        target, partition = options.target, task.partitionId()
        with ExactlyOncePublisher(
            target.url,
            options.publisher,
            partition,
            username=target.user,
            password=target.secret(),
            tls=target.tls(),
        ) as publisher:
            return publisher.publish(batch, chain.from_iterable(groups))


def _sorted(batches: Iterator[pa.RecordBatch], order_by: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """All rows in one order: by these columns, then by all others that have one."""
    given = list(batches)
    if not given:
        return iter(())
    table = pa.Table.from_batches(given)
    rest = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
    keys = dict.fromkeys([*order_by, *rest])
    return iter(table.sort_by([(name, "ascending") for name in keys]).to_batches())


class BatchSink(RowSink, DataSourceArrowWriter):
    """What `frame.write` does."""


class RowStreamSink(RowSink, DataSourceStreamWriter):
    """What `frame.writeStream` does before Spark 4.1, which hands over one row after the other."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options)
        self._schema = to_arrow_schema(schema)

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """In an executor."""
        return super().write(_batches(iterator, self._schema))


def _batches(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while some := list(islice(rows, _ROWS)):
        yield pa.RecordBatch.from_pylist([row.asDict(recursive=True) for row in some], schema)
