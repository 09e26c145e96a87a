"""From a stream into tables, each message once: `bronze` has them as they came, by the day (UTC); with rules,
they are decoded into further tables.

    run_ingest(spark, Ingest(url="http://broker:8883", stream="readings", tables="lake"), once=True)

The tables are in TABLES/STREAM, and Spark's checkpoint is beside them. How far a table has got stands in the
table itself (`table`), so even who has lost the checkpoint gets no message twice, and a batch that has come
into one table and not into the next comes into that when it is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow.fs as pafs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from tidemq.pipeline.lake.copying import COPIED, copier
from tidemq.pipeline.lake.day_files import files_of
from tidemq.pipeline.lake.maintenance import maintain
from tidemq.pipeline.lake.measures import Measures
from tidemq.pipeline.lake.messages import columns_of
from tidemq.pipeline.lake.node_ingest import NodeCommitter
from tidemq.pipeline.lake.plan import Ingest
from tidemq.pipeline.lake.progress import Progress, Span
from tidemq.pipeline.lake.refine import Refiner
from tidemq.pipeline.lake.table_log import TableError
from tidemq.pipeline.places import Storage, spark_uri
from tidemq.pipeline.sources.ranges import COLUMNS
from tidemq.pipeline.sources.stream import register
from tidemq.pipeline.sources.stream_options import Position, SourceOptions
from tidemq.pipeline.spark.jobs import JobError, run_job
from tidemq.pipeline.spark.session import check_checkpoint

SPANS_A_BATCH = 2  # of each rule, where it is behind: so it catches up, and bronze does not wait for long

_log = logging.getLogger(__name__)

__all__ = ["Ingest", "run_ingest", "start_ingest"]


def start_ingest(
    spark: SparkSession, ingest: Ingest, *, once: bool = False, measures: Measures | None = None
) -> StreamingQuery:
    """Begins, or goes on from the checkpoint; with `once`, it ends with the last message of now. Its progress
    says under `observedMetrics` how many messages a batch has; `numInputRows` counts ranges of them.
    """
    register(spark)
    measures = measures or Measures(ingest.stream)
    refiner = Refiner(spark, ingest, measures)
    refiner.catch_up()
    nodes = NodeCommitter(spark, ingest, refiner, measures) if ingest.has_nodes else None
    if has_begun(ingest.storage, ingest.checkpoint_uri):
        start = _going_on(ingest)
    elif nodes:
        nodes.begin()
        start = ingest.start
    else:
        start = _begin(ingest)
    read = spark.readStream.format("tidemq").options(
        **ingest.source, **ingest.limits, start=start, ranges="true"
    )
    ranges = read.load().observe("tidemq", F.expr("sum(end - start)").alias("messages"))
    write = ranges.writeStream.foreachBatch(nodes or _committer(ingest, refiner, measures))
    write = write.option("checkpointLocation", spark_uri(ingest.checkpoint_uri)).queryName(ingest.stream)
    if once:
        return write.trigger(availableNow=True).start()
    return write.trigger(processingTime=f"{ingest.trigger_s} seconds").start()


def _going_on(ingest: Ingest) -> str:
    """Of a checkpoint that has begun; TableError where its table is gone, or it is another table's."""
    if ingest.bronze.now() is None and has_begun(ingest.storage, ingest.checkpoint_uri, "commits"):
        raise TableError(
            f"there is no table {ingest.bronze.uri}, and the checkpoint {ingest.checkpoint_uri} is beyond "
            "messages that were committed; without the checkpoint the job begins at --start"
        )
    return ingest.start


def _begin(ingest: Ingest) -> str:
    """Where a new checkpoint begins; no later than where the table is, if there is one. Its checkpoint was
    lost, and who begins with the latest would skip what came meanwhile without a word.
    """
    reader = ingest.open()
    state = reader.describe()
    known = ingest.bronze.reached(Progress(ingest.stream, state.epoch))
    wanted = Position.parse("start", ingest.start)
    if not known or wanted.resolve(reader, state) <= known:
        return ingest.start
    _log.warning("%s has no checkpoint: it goes on from offset %d, where its table is", ingest.folder, known)
    return str(known)


def has_begun(storage: Storage, checkpoint: str, what: str = "offsets") -> bool:
    """Whether a query has written where a batch begins; with `commits`, whether it has done one."""
    files, root = storage.open(checkpoint)
    return bool(files.get_file_info(pafs.FileSelector(f"{root}/{what}", allow_not_found=True)))


def _committer(ingest: Ingest, refiner: Refiner, measures: Measures) -> Callable[[DataFrame, int], None]:
    """What is done with each batch; called by Spark in the driver."""
    columns = to_arrow_schema(columns_of(f"{COLUMNS}, date date"), timezone="UTC")

    def commit(ranges: DataFrame, batch: int) -> None:
        state = ingest.open().describe()
        progress = Progress(ingest.stream, state.epoch)
        options = SourceOptions.parse(ingest.source)
        with measures.part("bronze"):
            attempt = ingest.bronze.attempt(columns, progress)
            task = copier(options, ingest.storage, attempt.folder, attempt.reached, ingest.bytes_max)
            copied = ranges.mapInArrow(task, COPIED).collect()
            measures.added("bronze", attempt.commit(files_of(copied)))
        refiner.advance(state.epoch, SPANS_A_BATCH, _single(copied, attempt.reached))
        if ingest.maintain_batches and batch % ingest.maintain_batches == ingest.maintain_batches - 1:
            with measures.part("maintenance"):
                for table in ingest.all_tables:
                    maintain(table)
        measures.batch(max(state.next_offset - ingest.bronze.reached(progress), 0))

    return commit


def _single(copied: Sequence[Row], reached: int) -> Span | None:
    """The span of which it is known that no message in it has come before; None: of none."""
    if not copied or any(row.repeated for row in copied):
        return None
    return Span(max(min(row.start for row in copied), reached), max(row.end for row in copied))


def run_ingest(
    spark: SparkSession, ingest: Ingest, *, once: bool = False, measures: Measures | None = None
) -> None:
    """Ingests until all is done (`once`) or for ever, and restarts from the checkpoint after a failure.
    Counts in `measures` what it does, and logs it.

    A rule that cannot go on, because its tables were made by other settings, is held back and logged; all
    else goes on. With `once`, the job fails when it has done all else.

    ConfigError for a rule that cannot be. ConnectError where the broker cannot be reached at the
    start, StreamError where it does not have the stream. JobError after a failure that no restart mends, such
    as expired offsets, and after several in a row.
    """
    ingest.check()
    check_checkpoint(spark, ingest.checkpoint_uri)
    ingest.describe()  # a wrong URL needs no restarts
    measures = measures or Measures(ingest.stream)
    run_job(partial(start_ingest, spark, ingest, once=once, measures=measures))
    refiner = Refiner(spark, ingest, measures)
    if ingest.has_nodes:  # one may have been away while Spark read it
        NodeCommitter(spark, ingest, refiner, measures).catch_up()
    refiner.catch_up()
    measures.log(behind=0)
    if refiner.held:
        raise JobError("; ".join(refiner.said()))
