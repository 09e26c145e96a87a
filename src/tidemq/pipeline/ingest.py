"""From a stream into tables, each message once: `bronze` has them as they came, by the day (UTC); with rules,
they are decoded into further tables.

    run_ingest(spark, Ingest(url="http://broker:8883", stream="readings", tables="lake"), once=True)

The tables are in TABLES/STREAM, and Spark's checkpoint is beside them. How far a table has got stands in the
table itself (`table`), so even who has lost the checkpoint gets no message twice, and a batch that has come
into one table and not into the next comes into that when it is tried again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tidemq.client.streams import StreamReader
from tidemq.errors import TideMQError
from tidemq.pipeline.copying import copier
from tidemq.pipeline.options import RETRY_S, SourceOptions
from tidemq.pipeline.redelivery import first_deliveries
from tidemq.pipeline.rules import Rule
from tidemq.pipeline.source import COLUMNS, RANGES, register
from tidemq.pipeline.table import Table

FAILURES_MAX = 3  # of batches in a row, without a batch between them, before a job gives up
RESTART_PAUSE_S = 1.0
_DAY = "date_add(DATE'1970-01-01', cast(floor(unix_micros(received) / 86400000000) as int))"  # in any zone
_FINAL = (  # what no restart mends, as it stands in a message of Spark's
    "tidemq.client.streams.",
    "tidemq.errors.UsageError",
    "tidemq.pipeline.table.TableError: the table",
)

_log = logging.getLogger(__name__)


class IngestError(TideMQError):
    """A job cannot go on. Caught by who started it; the cause is Spark's exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """What is to be brought where. `tables` is a folder, or its URI, that all executors reach."""

    url: str  # of the broker's admin listener
    stream: str
    tables: str
    start: str = "earliest"  # of a new checkpoint: latest, an offset, a time
    fail_on_data_loss: bool = True
    rows_max: int = 1_000_000  # of a batch
    trigger_s: float = 1.0  # from the beginning of one batch to that of the next
    maintain_batches: int = 200  # so often files are put together; 0: never
    rules: tuple[Rule, ...] = ()  # how payloads are decoded; none: bronze is all

    @property
    def folder(self) -> str:
        """Of the stream's tables, as a URI."""
        root = self.tables if urlsplit(self.tables).scheme else Path(self.tables).absolute().as_uri()
        return f"{root.rstrip('/')}/{self.stream}"

    @property
    def source(self) -> dict[str, str]:
        """Options of the source that hold for every read of the stream."""
        fail = str(self.fail_on_data_loss).lower()
        return {"url": self.url, "stream": self.stream, "failOnDataLoss": fail}

    @property
    def bronze(self) -> Table:
        """What came, as it came."""
        return Table(f"{self.folder}/bronze")

    @property
    def dead_letters(self) -> Table:
        """What could not be decoded, with the reason."""
        return Table(f"{self.folder}/dead_letters")

    def silver(self, rule: Rule) -> Table:
        """What a rule has decoded."""
        return Table(f"{self.folder}/silver/{rule.name}")

    @property
    def all_tables(self) -> list[Table]:
        return [self.bronze, *([self.dead_letters] if self.rules else []), *map(self.silver, self.rules)]


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
        epoch = StreamReader(ingest.url, ingest.stream, retry_s=RETRY_S).describe().epoch
        spark, options = ranges.sparkSession, SourceOptions.parse(ingest.source)
        copied: list[Row] = []

        def write(folder: str, reached: int) -> None:
            copied.extend(ranges.mapInArrow(copier(options, folder, reached), RANGES).collect())

        columns = StructType.fromDDL(f"{COLUMNS}, date date")
        assert isinstance(columns, StructType)
        ingest.bronze.append_by(write, to_arrow_schema(columns, timezone="UTC"), ingest.stream, epoch)
        if ingest.rules and copied:
            start, end = min(row.start for row in copied), max(row.end for row in copied)
            read = spark.read.format("tidemq").options(**ingest.source, start=str(start), end=str(end))
            messages = with_day(read.load())
            messages.persist()  # each table's job would read it from the broker again
            try:
                refine(messages, ingest, epoch)
            finally:
                messages.unpersist()
        if ingest.maintain_batches and batch % ingest.maintain_batches == ingest.maintain_batches - 1:
            for table in ingest.all_tables:
                table.maintain()

    return commit


def refine(messages: DataFrame, ingest: Ingest, epoch: int) -> None:
    """Brings a batch that bronze has into the tables of the rules, and of dead letters."""
    kept = first_deliveries(messages, ingest.bronze)
    dead = []
    for rule in ingest.rules:
        decoded = rule.decode(kept)
        ingest.silver(rule).append(rule.rows(decoded), ingest.stream, epoch)
        dead.append(rule.dead_letters(decoded))
    ingest.dead_letters.append(reduce(DataFrame.unionAll, dead), ingest.stream, epoch)


def with_day(frame: DataFrame) -> DataFrame:
    """With the day in UTC on which the message came, as the last column."""
    return frame.withColumn("date", F.expr(_DAY))


def run_ingest(spark: SparkSession, ingest: Ingest, *, once: bool = False) -> None:
    """Ingests until all is done (`once`) or for ever, and restarts from the checkpoint after a failure.

    ConfigError for a rule that cannot be. IngestError after a failure that no restart mends, such as expired
    offsets, and after several in a row.
    """
    for rule in ingest.rules:
        rule.check()
    failures = 0
    while True:
        query = start_ingest(spark, ingest, once=once)
        try:
            query.awaitTermination()
            return
        except StreamingQueryException as error:
            failures = 0 if query.lastProgress else failures + 1
            text = str(error)
            if failures >= FAILURES_MAX or any(each in text for each in _FINAL):
                raise IngestError(reason(text)) from error
            _log.warning("begun again from the checkpoint: %s", reason(text))
            time.sleep(RESTART_PAUSE_S)
        finally:
            query.stop()


def reason(text: str) -> str:
    """The line of a message of Spark's, often two stacks of calls, that says what the matter was: that of the
    last exception of Python's, or else the first.
    """
    raised = re.findall(r"^(?!java|scala|org|py4j)([\w.]+): (.+)$", text, re.MULTILINE)
    errors = [(name, said) for name, said in raised if name.endswith(("Error", "Exception"))]
    if not errors:
        return next(iter(text.strip().splitlines()), "no reason was given")
    name, said = errors[-1]
    return said if name.startswith("tidemq.") else f"{name}: {said}"
