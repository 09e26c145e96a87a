"""From a stream into tables, each message once: `bronze` has them as they came, by the day (UTC); with rules,
they are decoded into further tables.

    run_ingest(spark, Ingest(url="http://broker:8883", stream="readings", tables="lake"), once=True)

The tables are in TABLES/STREAM, and Spark's checkpoint is beside them. How far a table has got stands in the
table itself (`table`), so even who has lost the checkpoint gets no message twice, and a batch that has come
into one table and not into the next comes into that when it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tidemq.client.streams import StreamReader, find_token
from tidemq.errors import ConfigError
from tidemq.pipeline.decode.payload_rules import Rule
from tidemq.pipeline.lake.copying import copier
from tidemq.pipeline.lake.gold import refresh
from tidemq.pipeline.lake.plain import PlainTable
from tidemq.pipeline.lake.refine import refine
from tidemq.pipeline.lake.table import Table, day_of
from tidemq.pipeline.sources.stream import COLUMNS, RANGES, register
from tidemq.pipeline.sources.stream_options import RETRY_S, SourceOptions
from tidemq.pipeline.spark.jobs import run_job

FORMATS: Mapping[str, type[Table]] = {"delta": Table, "parquet": PlainTable}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """What is to be brought where. `tables` is a folder, or its URI, that all executors reach."""

    url: str  # of the broker's admin listener
    token_file: str = ""  # with its token, on the driver (see `find_token`)
    stream: str
    tables: str
    start: str = "earliest"  # of a new checkpoint: latest, an offset, a time
    fail_on_data_loss: bool = True
    rows_max: int = 1_000_000  # of a batch
    trigger_s: float = 1.0  # from the beginning of one batch to that of the next
    maintain_batches: int = 200  # so often files are put together; 0: never
    rules: tuple[Rule, ...] = ()  # how payloads are decoded; none: bronze is all
    format: str = "delta"  # of the tables; or parquet, without gold, and files are not put together

    @property
    def folder(self) -> str:
        """Of the stream's tables, as a URI."""
        root = self.tables if urlsplit(self.tables).scheme else Path(self.tables).absolute().as_uri()
        return f"{root.rstrip('/')}/{self.stream}"

    @property
    def source(self) -> dict[str, str]:
        """Options of the source that hold for every read of the stream."""
        fail = str(self.fail_on_data_loss).lower()
        given = {"url": self.url, "stream": self.stream, "failOnDataLoss": fail}
        return given | ({"tokenFile": self.token_file} if self.token_file else {})

    def open(self) -> StreamReader:
        """A reader of the stream, for the driver."""
        return StreamReader(self.url, self.stream, token=find_token(self.token_file), retry_s=RETRY_S)

    @property
    def bronze(self) -> Table:
        """What came, as it came."""
        return self._table("bronze")

    @property
    def dead_letters(self) -> Table:
        """What could not be decoded, with the reason."""
        return self._table("dead_letters")

    def silver(self, rule: Rule) -> Table:
        """What a rule has decoded."""
        return self._table(f"silver/{rule.name}")

    def late(self, rule: Rule) -> Table:
        """What a rule with a watermark has decoded, but came too late."""
        return self._table(f"late/{rule.name}")

    def births(self, rule: Rule) -> Table:
        """What Sparkplug B's birth certificates say of metrics."""
        return self._table(f"births/{rule.name}")

    def gold(self, rule: Rule) -> Table:
        """The figures of a rule's rows."""
        return self._table(f"gold/{rule.name}")

    @property
    def all_tables(self) -> list[Table]:
        """Of these rules, each whether or not there is one yet."""
        found = [self.bronze]
        for rule in self.rules:
            found.append(self.silver(rule))
            if rule.watermark:
                found.append(self.late(rule))
            if rule.gold:
                found.append(self.gold(rule))
            if rule.format == "sparkplug":
                found.append(self.births(rule))
        return [*found, self.dead_letters] if self.rules else found

    def check(self) -> None:
        """ConfigError for what cannot be. Needs a session, for columns are in Spark's own language."""
        if self.format not in FORMATS:
            raise ConfigError(f"the format of tables is {self.format!r}; accepted: {', '.join(FORMATS)}")
        for rule in self.rules:
            rule.check()
            if rule.gold and self.format != "delta":
                raise ConfigError(
                    f"the rule {rule.name} has gold, whose rows are replaced; accepted: format delta"
                )

    def _table(self, name: str) -> Table:
        return FORMATS[self.format](f"{self.folder}/{name}")


def start_ingest(spark: SparkSession, ingest: Ingest, *, once: bool = False) -> StreamingQuery:
    """Begins, or goes on from the checkpoint; with `once`, it ends with the last message of now."""
    register(spark)
    read = spark.readStream.format("tidemq").options(
        **ingest.source, start=ingest.start, maxRowsPerBatch=str(ingest.rows_max), ranges="true"
    )
    write = read.load().writeStream.foreachBatch(_committer(ingest))
    write = write.option("checkpointLocation", f"{ingest.folder}/checkpoint").queryName(ingest.stream)
    if once:
        return write.trigger(availableNow=True).start()
    return write.trigger(processingTime=f"{ingest.trigger_s} seconds").start()


def _committer(ingest: Ingest) -> Callable[[DataFrame, int], None]:
    """What is done with each batch; called by Spark in the driver."""

    def commit(ranges: DataFrame, batch: int) -> None:
        epoch = ingest.open().describe().epoch
        spark, options = ranges.sparkSession, SourceOptions.parse(ingest.source)
        copied: list[Row] = []

        def write(folder: str, reached: int) -> None:
            copied.extend(ranges.mapInArrow(copier(options, folder, reached), RANGES).collect())

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

    ConfigError for a rule or a format that cannot be. ConnectError where the broker cannot be reached at the
    start, StreamError where it does not have the stream. JobError after a failure that no restart mends, such
    as expired offsets, and after several in a row.
    """
    ingest.check()
    ingest.open().describe()  # a wrong URL needs no restarts
    run_job(partial(start_ingest, spark, ingest, once=once))
