"""Works messages of bronze again by a rule: one that has changed, or whose past is to be made anew."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from tidemq.pipeline.decode.payload_rules import Rule
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, Working, anything_expired, expired_of, said_of
from tidemq.pipeline.lake.refine import Refiner, current, decoded_columns, retried
from tidemq.pipeline.lake.stale import Stale
from tidemq.pipeline.lake.table_log import TableError
from tidemq.pipeline.sources.stream_options import Position
from tidemq.pipeline.spark.jobs import JobError


def rework(
    spark: SparkSession, lake: Lake, name: str, start: str = "earliest", *, allow_data_loss: bool = False
) -> None:
    """Brings the tables of a rule up to bronze, and before that removes what they have of messages from
    `start` on: an offset (of the newest epoch), a time, `earliest` (all), or `latest` (nothing).

    May run beside an ingest: that works the messages, too, and each gets into a table once. Readers see the
    table grow again meanwhile; gold is made anew, whole.

    UsageError when there is no such rule, or `start` is no place. ConfigError for columns that cannot be.
    TableError when only a part is to be worked again, but the rule has changed; and when rows would be
    removed whose messages have expired in bronze, unless `allow_data_loss`. JobError when the rule's tables
    cannot be written to.
    """
    rule = lake.rule(name)
    rule.check()
    position = Position.parse("from", start)
    if not lake.bronze.epochs():
        raise TableError(f"there is no table {lake.bronze.uri} with messages to be worked")
    if not position.latest:
        retried(partial(_begin, spark, lake, rule, position, allow_data_loss))
    refiner = Refiner(spark, replace(lake, rules=(rule,)))
    refiner.catch_up()
    if refiner.held:
        raise JobError("; ".join(refiner.said()))


def _begin(spark: SparkSession, lake: Lake, rule: Rule, position: Position, allow_data_loss: bool) -> bool:
    """Begins another working of the rule; whether its tables have begun one before."""
    silver = lake.silver(rule)
    snapshot = silver.now()
    if snapshot is None:
        return False
    working = Working(rule.name, time.time_ns() // 1000, rule.digest)
    before = Progress(lake.stream, 0, working).generation_of(snapshot)
    working = replace(working, generation=max(working.generation, before + 1))  # whatever the clock says
    epochs = lake.bronze.epochs()
    ends = dict.fromkeys(epochs, 0)
    stale = Stale()
    if position != Position():
        now = current(lake, rule)
        ends = {epoch: _end(spark, lake, rule, now, epoch, position) for epoch in epochs}
        stale = Stale(ends)
    if not allow_data_loss:
        _refuse_loss(lake, rule, ends)
    columns = to_arrow_schema(decoded_columns(rule), timezone="UTC")
    said = said_of({Progress(lake.stream, epoch, working): end for epoch, end in ends.items()})
    silver.begin_again(snapshot, columns, stale, said)
    return True


def _refuse_loss(lake: Lake, rule: Rule, ends: Mapping[int, int]) -> None:
    """TableError where rows behind these offsets would be removed whose messages bronze has no longer."""
    bronze = lake.bronze.now()
    assert bronze is not None
    gone = {epoch: expired_of(bronze, Progress(lake.stream, epoch)) for epoch in ends}
    whole = not any(ends.values()) and anything_expired(bronze, lake.stream)
    if whole or any(end < gone[epoch] for epoch, end in ends.items()):
        raise TableError(
            f"messages up to offset {list(gone.values())[-1]} have expired in {lake.bronze.uri}: the rule "
            f"{rule.name} would lose the rows that were made of them; accepted: a later --from, or "
            "--allow-data-loss"
        )


def _end(spark: SparkSession, lake: Lake, rule: Rule, before: Working, epoch: int, position: Position) -> int:
    """Up to which offset of an epoch the rows stay that a working has made."""
    reached = lake.silver(rule).reached(Progress(lake.stream, epoch, before))
    if position.time is None:
        newest = epoch == lake.bronze.epochs()[-1]
        return min(reached, position.offset or 0) if newest else reached
    bounds = {"epoch": (epoch, epoch), "received": (position.time, None)}
    found = lake.bronze.read(spark, ["epoch", "offset", "received"], bounds)
    found = found.where((F.col("epoch") == epoch) & (F.col("received") >= F.lit(position.time)))
    first = found.agg(F.min("offset")).first()
    return reached if first is None or first[0] is None else min(reached, int(first[0]))
