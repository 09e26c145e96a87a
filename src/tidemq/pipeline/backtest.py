"""What alert rules would have found in messages that bronze has: the same as live, and faster.

Each rule and topic is stepped through by the same code as live (`alerts.states`), in the order of offsets, so
the alerts are the same. What is known at the end can be kept: from there a live job goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from tidemq.errors import UsageError
from tidemq.pipeline.alerts.alert_rules import AlertRule
from tidemq.pipeline.alerts.handover import Handover, refuse_taken
from tidemq.pipeline.alerts.states import Alert, Condition, Reading, State, expire, step
from tidemq.pipeline.alerts.watching import FOUND, UNREADABLE, found_row, readings
from tidemq.pipeline.lake.messages import columns_of
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.table_log import TableError
from tidemq.pipeline.places import place_uri
from tidemq.pipeline.sources.ranges import COLUMNS
from tidemq.pipeline.sources.stream_options import Position
from tidemq.pipeline.spark.parquet_tasks import write_files

EARLIEST, LATEST = Position(), Position(latest=True)
KNOWN = "known"  # in place of an alert's state: what is known at the end
_READING = ("epoch", "offset", "time_us", "topic", "client_id", "value")
_ROWS = 10_000  # of a batch that a task gives


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """Which messages are looked at, and by which rules. An offset is one of the newest epoch."""

    lake: Lake
    rules: tuple[AlertRule, ...]
    start: Position = EARLIEST
    end: Position = LATEST
    handover: str = ""  # a folder, or its URI, that is made: what is known at the end

    def check(self) -> None:
        """UsageError where there is a handover already."""
        if self.start.latest or self.end == EARLIEST:
            raise UsageError("there is no message between these places; accepted: from an earlier to a later")
        refuse_taken(self.handover, self.lake.storage)


@dataclass(slots=True)
class Outcome:
    """What was looked at, and found."""

    messages: int
    next_offset: int  # of the newest epoch: a live job goes on with it
    alerts: int = 0
    unreadable: int = 0


def run_backtest(spark: SparkSession, job: Backtest, show: Callable[[AlertRule, Row], None]) -> Outcome:
    """Shows each alert, in the order of their times.

    TableError where there is no table; UsageError as `Backtest.check`.
    """
    job.check()
    epochs = job.lake.bronze.epochs()
    if not epochs:
        raise TableError(f"there is no table {job.lake.bronze.uri} with messages")
    messages = _selected(spark, job, epochs)
    end = messages.agg(
        F.count("*").alias("messages"),
        F.max(F.when(F.col("epoch") == epochs[-1], F.col("offset"))).alias("offset"),
        F.max(F.unix_micros("received")).alias("time_us"),
    ).first()
    assert end is not None
    next_offset = (job.start.offset or 0) if end.offset is None else end.offset + 1
    until_us = end.time_us if job.end.time is None else round(job.end.time.timestamp() * 1e6)
    outcome = Outcome(end.messages, next_offset)
    found = _walked(messages, job.rules, epochs, until_us or 0).persist()
    try:
        rules = {rule.name: rule for rule in job.rules}
        alerts = found.where(F.col("state") != KNOWN).orderBy("time_us", "offset", "rule", "key", "state")
        for row in alerts.toLocalIterator():
            if row.state == UNREADABLE:
                outcome.unreadable += int(row.value)
            else:
                outcome.alerts += 1
                show(rules[row.rule], row)
        if job.handover:
            known = found.where(F.col("state") == KNOWN).select("rule", "key", "json")
            names = write_files(known, job.lake.storage, place_uri(job.handover))
            handover = Handover(job.lake.stream, epochs[-1], next_offset, tuple(names))
            handover.write(job.handover, job.lake.storage)
    finally:
        found.unpersist()
    return outcome


def _selected(spark: SparkSession, job: Backtest, epochs: list[int]) -> DataFrame:
    """The messages from the start up to the end."""
    start, end, newest = job.start, job.end, epochs[-1]
    bounds: dict[str, tuple[Any, Any]] = {"received": (start.time, end.time)}
    wanted = F.lit(True)
    if start.offset is not None:
        bounds |= {"epoch": (newest, newest), "offset": (start.offset, None)}
        wanted &= (F.col("epoch") == newest) & (F.col("offset") >= start.offset)
    if start.time is not None:
        wanted &= F.col("received") >= F.lit(start.time)
    if end.offset is not None:
        wanted &= (F.col("epoch") != newest) | (F.col("offset") < end.offset)
    if end.time is not None:
        wanted &= F.col("received") < F.lit(end.time)
    return job.lake.bronze.read(spark, columns_of(COLUMNS).names, bounds).where(wanted)


def _walked(messages: DataFrame, rules: Sequence[AlertRule], epochs: list[int], until_us: int) -> DataFrame:
    """What is found, and at the end known, of each rule and topic or client."""
    ordered = readings(messages, rules).withColumn(
        "place", F.array_position(F.array(*map(F.lit, epochs)), F.col("epoch"))
    )
    ordered = ordered.repartition("rule", "key").sortWithinPartitions("rule", "key", "place", "offset")
    columns = columns_of(f"{FOUND}, json string")
    walker = Walker({rule.name: rule.condition for rule in rules}, until_us, to_arrow_schema(columns))
    return ordered.mapInArrow(walker, columns)


@dataclass(frozen=True, slots=True)
class Walker:
    """A task: takes readings in the order of their keys and then of offsets. Holds one state at a time."""

    conditions: Mapping[str, Condition]
    until_us: int
    columns: pa.Schema  # of what it gives

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        found = (row for key, of_key in groupby(rows, _key) for row in self._of_key(key, of_key))
        while some := list(islice(found, _ROWS)):
            yield pa.RecordBatch.from_pylist(some, self.columns)

    def _of_key(self, key: tuple[str, str], rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        condition, state, unread = self.conditions[key[0]], State(), 0
        first: Reading | None = None  # of those that cannot be read
        for row in rows:
            reading = Reading(*(row[name] for name in _READING))
            if math.isnan(reading.value or 0.0):
                unread, first = unread + 1, first or reading
                continue
            state, alerts = step(condition, state, reading)
            yield from (found_row(key, alert).asDict() for alert in alerts)
        if first:
            yield found_row(key, Alert(UNREADABLE, unread, 0, first.time_us, first)).asDict()
        state, alerts = expire(condition, state, self.until_us)
        yield from (found_row(key, alert).asDict() for alert in alerts)
        if state.last is not None:
            yield {"rule": key[0], "key": key[1], "state": KNOWN, "json": state.to_json()}


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["rule"], row["key"]
