"""Rows as messages, for streaming queries from Spark 4.1 on, which hands them over as Arrow batches."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from tidemq.pipeline.sources.sink import RowSink


class StreamSink(RowSink, DataSourceStreamArrowWriter):
    """What `frame.writeStream` does."""
