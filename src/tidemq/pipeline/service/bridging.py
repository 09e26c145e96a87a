"""Messages of a stream that go on to another broker, each once, as they came."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from tidemq.client import sync
from tidemq.pipeline.decode.payload_rules import filter_pattern
from tidemq.pipeline.lake.plan import Ingest
from tidemq.pipeline.sources.mqtt_target import Target
from tidemq.pipeline.sources.stream import register
from tidemq.pipeline.spark.jobs import run_job

_PROPERTIES = ("content_type", "response_topic", "correlation_data", "user_properties")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """Which messages of a stream go where. `checkpoint` is a folder, or its URI, that all executors reach."""

    ingest: Ingest  # of the same stream: where it is
    name: str
    target: Target
    filter: str
    topic_prefix: str
    checkpoint: str
    start: str
    rows_max: int
    trigger_s: float

    @property
    def publisher(self) -> str:
        """By which the broker knows what has been published."""
        return f"{self.ingest.stream}-{self.name}"

    def check(self) -> None:
        """ConnectError or ServerRefusedError where the broker cannot be reached."""
        with sync.Client(self.target.url, **self.target.options()):
            pass


def start_bridge(spark: SparkSession, bridge: Bridge) -> StreamingQuery:
    """Begins, or goes on from the checkpoint."""
    register(spark)
    limits = {"maxRowsPerBatch": str(bridge.rows_max)}
    read = spark.readStream.format("tidemq").options(**bridge.ingest.source, **limits, start=bridge.start)
    topic = F.concat(F.lit(bridge.topic_prefix), F.col("topic")).alias("topic")
    found = read.load().where(F.col("topic").rlike(filter_pattern(bridge.filter)))
    write = found.select(topic, "payload", "retain", *_PROPERTIES).writeStream.format("tidemq")
    write = write.options(**bridge.target.given(), publisherId=bridge.publisher)
    write = write.option("checkpointLocation", bridge.checkpoint).queryName(bridge.publisher)
    return write.trigger(processingTime=f"{bridge.trigger_s} seconds").start()


def run_bridge(spark: SparkSession, bridge: Bridge) -> None:
    """For ever, and again from the checkpoint after a failure; JobError after one that no restart mends."""
    run_job(partial(start_bridge, spark, bridge))
