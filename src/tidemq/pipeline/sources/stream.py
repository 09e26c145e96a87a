"""Spark's data source `tidemq`: a stream of a broker as rows, for `spark.read` and `spark.readStream`; as a
sink, rows as messages (`sink`).

    register(spark)
    frame = spark.readStream.format("tidemq").option("url", url).option("stream", "readings").load()

The driver asks the broker only what there is and plans ranges of offsets; executors read these by URL. For
Spark 4.0 and newer, with nothing but pyarrow beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyspark.sql.datasource as api
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from tidemq.client.streams import StreamError
from tidemq.errors import UsageError
from tidemq.pipeline.sources.ranges import Range, RangeRows, schema_of
from tidemq.pipeline.sources.sink import BatchSink, RowStreamSink, SinkOptions
from tidemq.pipeline.sources.stream_options import SourceOptions
from tidemq.pipeline.sources.tail import PlainTailReader
from tidemq.pipeline.spark.workers import check_workers, make_active

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None  # Spark 4.2
_ARROW_STREAMS = hasattr(api, "DataSourceStreamArrowWriter")  # Spark 4.1


def register(spark: SparkSession) -> None:
    """Makes `format("tidemq")` known to a session, and the session active in this thread. UsageError where
    its workers run another Python, without TideMQ.
    """
    check_workers(spark)
    spark.dataSource.register(TideMQSource)
    make_active(spark)


class TideMQSource(DataSource):
    """`format("tidemq")`. UsageError on an unknown option or a wrong value."""

    @classmethod
    def name(cls) -> str:
        return "tidemq"

    def schema(self) -> str:
        return schema_of(self._parsed())

    def reader(self, schema: StructType) -> DataSourceReader:
        self._refuse_other(schema)
        options = self._parsed()
        if options.nodes:
            _need_limits()
            from tidemq.pipeline.sources.node_tail import NodeRangeReader

            return NodeRangeReader(options)
        return RangeReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        self._refuse_other(schema)
        if self._parsed().last:
            raise UsageError("the option last is for spark.read: a table is that of a moment")
        if self._parsed().nodes:
            _need_limits()
            from tidemq.pipeline.sources.node_tail import NodeTailReader

            return NodeTailReader(self._parsed())
        if not _LIMITS:
            return PlainTailReader(self._parsed())
        from tidemq.pipeline.sources.bounded_tail import TailReader

        return TailReader(self._parsed())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchSink(self._checked(schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = self._checked(schema, streaming=True)
        if not _ARROW_STREAMS:
            return RowStreamSink(options, schema)
        from tidemq.pipeline.sources.arrow_sink import StreamSink

        return StreamSink(options)

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


def _need_limits() -> None:
    if not _LIMITS:
        raise UsageError("the option url with several nodes needs Spark 4.2 or newer")


class RangeReader(RangeRows, DataSourceReader):
    """What `spark.read` gives: the messages from `start` up to `end`, or with `last` a table, by one task."""

    def partitions(self) -> Sequence[Range]:
        reader = self.options.open()
        state = reader.describe()
        if self.options.last:
            return [Range(state.epoch, state.first_offset, state.next_offset)]
        start = self.options.start.resolve(reader, state)
        end = min(self.options.end.resolve(reader, state), state.next_offset)
        wanted = self.options.end.offset
        if wanted is not None and end < wanted:
            raise StreamError(f"the stream {state.name} ends before offset {wanted}: the next one is {end}")
        # at least one: without any, Spark reads a partition that is None
        return self.planned(state.epoch, start, end) or [Range(state.epoch, end, end)]
