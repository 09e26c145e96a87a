"""From a stream into tables, each message once: `bronze` has them as they came, by the day (UTC); with rules,
they are decoded into further tables.

    run_ingest(spark, Ingest(url="http://broker:8883", stream="readings", tables="lake"), once=True)

The tables are in TABLES/STREAM, and Spark's checkpoint is beside them. How far a table has got stands in the
table itself (`table`), so even who has lost the checkpoint gets no message twice, and a batch that has come
into one table and not into the next comes into that when it is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import cast

import pyarrow.fs as pafs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tidemq.pipeline.lake.copying import copier
from tidemq.pipeline.lake.gold import refresh
from tidemq.pipeline.lake.plan import Ingest
from tidemq.pipeline.lake.refine import refine
from tidemq.pipeline.lake.table import Table, day_of
from tidemq.pipeline.sources.stream import COLUMNS, RANGES, register
from tidemq.pipeline.sources.stream_options import Position, SourceOptions
from tidemq.pipeline.spark.jobs import run_job

_log = logging.getLogger(__name__)

__all__ = ["Ingest", "run_ingest", "start_ingest", "with_day"]


def start_ingest(spark: SparkSession, ingest: Ingest, *, once: bool = False) -> StreamingQuery:
    """Begins, or goes on from the checkpoint; with `once`, it ends with the last message of now."""
    register(spark)
    checkpoint = f"{ingest.folder}/checkpoint"
    start = ingest.start if has_begun(checkpoint) else _begin(ingest)
    read = spark.readStream.format("tidemq").options(
        **ingest.source, **ingest.limits, start=start, ranges="true"
    )
    write = read.load().writeStream.foreachBatch(_committer(ingest))
    write = write.option("checkpointLocation", checkpoint).queryName(ingest.stream)
    if once:
        return write.trigger(availableNow=True).start()
    return write.trigger(processingTime=f"{ingest.trigger_s} seconds").start()


def _begin(ingest: Ingest) -> str:
    """Where a new checkpoint begins; no later than where the table is, if there is one. Its checkpoint was
    lost, and who begins with the latest would skip what came meanwhile without a word.
    """
    reader = ingest.open()
    state = reader.describe()
    known = ingest.bronze.resumes_at(ingest.stream, state.epoch)
    wanted = Position.parse("start", ingest.start)
    if known is None or wanted.resolve(reader, state) <= known:
        return ingest.start
    _log.warning("%s has no checkpoint: it goes on from offset %d, where its table is", ingest.folder, known)
    return str(known)


def has_begun(checkpoint: str) -> bool:
    """Whether a query has written where it began."""
    files, root = pafs.FileSystem.from_uri(checkpoint)
    return bool(files.get_file_info(pafs.FileSelector(f"{root}/offsets", allow_not_found=True)))


def _committer(ingest: Ingest) -> Callable[[DataFrame, int], None]:
    """What is done with each batch; called by Spark in the driver."""

    def commit(ranges: DataFrame, batch: int) -> None:
        epoch = ingest.open().describe().epoch
        spark, options = ranges.sparkSession, SourceOptions.parse(ingest.source)
        copied: list[Row] = []

        def write(folder: str, reached: int) -> None:
            copied.extend(
                ranges.mapInArrow(copier(options, folder, reached, ingest.bytes_max), RANGES).collect()
            )

        columns = to_arrow_schema(_columns(f"{COLUMNS}, date date"), timezone="UTC")
        ingest.bronze.append_by(write, columns, ingest.stream, epoch)
        if ingest.rules and copied:
            start, end = min(row.start for row in copied), max(row.end for row in copied)
            messages = _kept(spark, ingest.bronze, epoch, start, end).persist()  # for several tables
            try:
                refine(messages, ingest, epoch)
                for rule in ingest.rules:
                    if rule.gold:
                        tables = ingest.silver(rule), ingest.gold(rule)
                        refresh(spark, rule, *tables, ingest.stream, epoch, ingest.rows_max)
            finally:
                messages.unpersist()
        if ingest.maintain_batches and batch % ingest.maintain_batches == ingest.maintain_batches - 1:
            for table in ingest.all_tables:
                table.maintain()

    return commit


def _kept(spark: SparkSession, bronze: Table, epoch: int, start: int, end: int) -> DataFrame:
    """The messages from offset `start` up to `end`. The stream may have given them up by now."""
    bounds = {"epoch": (epoch, epoch), "offset": (start, end - 1)}
    found = bronze.read(spark, _columns(COLUMNS).names, bounds)
    return with_day(found.where((F.col("epoch") == epoch) & F.col("offset").between(start, end - 1)))


def _columns(text: str) -> StructType:
    return cast(StructType, StructType.fromDDL(text))


def with_day(frame: DataFrame) -> DataFrame:
    """With the day in UTC on which the message came, as the last column."""
    return frame.withColumn("date", F.expr(day_of("received")))


def run_ingest(spark: SparkSession, ingest: Ingest, *, once: bool = False) -> None:
    """Ingests until all is done (`once`) or for ever, and restarts from the checkpoint after a failure.

    ConfigError for a rule that cannot be. ConnectError where the broker cannot be reached at the
    start, StreamError where it does not have the stream. JobError after a failure that no restart mends, such
    as expired offsets, and after several in a row.
    """
    ingest.check()
    ingest.open().describe()  # a wrong URL needs no restarts
    run_job(partial(start_ingest, spark, ingest, once=once))
