"""Figures of a rule's rows, by window, topic and client: a function of the rule's decoded table.

Whenever that table has got further, the windows of its new rows are counted again, whole, and take the place
of what they were, in one transaction that says how far the decoded table was taken into account. So nothing
is kept between batches, a batch that comes again changes nothing, and a late row mends its window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from tidemq.pipeline.decode.payload_rules import Gold, Rule
from tidemq.pipeline.lake.progress import Progress
from tidemq.pipeline.lake.table import Table, TableError, day_of

Stretch = tuple[datetime, datetime]
"""From a time up to another."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = day_of("window")
SPANS_MAX = 100  # that are replaced one by one


def refresh(
    spark: SparkSession, rule: Rule, silver: Table, table: Table, progress: Progress, rows_max: int
) -> None:
    """Brings the figures up to the decoded table, which has this progress; the messages of at most `rows_max`
    offsets at a time.

    TableError when the table was made by other settings, or another driver has committed meanwhile.
    """
    assert rule.gold is not None
    assert progress.working is not None
    end = silver.reached(progress)
    progress = replace(progress, working=replace(progress.working, digest=rule.gold.digest))
    log = table.log()
    if log and _made_by_others(progress, log):
        raise TableError(f"the table {table.uri} was made with other settings; removed, it is made anew")
    reached = progress.reached(log) if log else 0
    if end and not reached:  # what an earlier working has left is removed even if this one has no rows
        columns = _figures(spark, rule, rule.gold, silver, []).schema
        table.begin(progress, to_arrow_schema(columns, timezone="UTC"))
    while reached < end:
        start, reached = reached, min(reached + rows_max, end)
        spans = _touched(spark, rule, rule.gold, silver, progress.epoch, start, reached)
        if spans:
            figures = _figures(spark, rule, rule.gold, silver, spans)
            table.replace(figures, "window", spans, progress, reached)


def _made_by_others(progress: Progress, log: DeltaTable) -> bool:
    """Whether gold of this working has other settings; that of an earlier one is made anew."""
    assert progress.working is not None
    same = progress.generation_of(log) == progress.working.generation
    return same and progress.digest_of(log) != progress.working.digest


def _touched(
    spark: SparkSession, rule: Rule, gold: Gold, silver: Table, epoch: int, start: int, end: int
) -> list[Stretch]:
    """The spans of the windows that messages of these offsets change; whole windows."""
    bounds = {"epoch": (epoch, epoch), "offset": (start, end - 1)}
    new = silver.read(spark, ["epoch", "offset", rule.time_column], bounds)
    new = new.where((F.col("epoch") == epoch) & F.col("offset").between(start, end - 1))
    numbers = new.select(_window_number(rule, gold).alias("number")).distinct().collect()
    behind = -(-_lookback(gold) // gold.window) if gold.gap else 0  # windows whose first silence it may end
    changed = gold.window * (1 + behind)
    return merged([(_EPOCH + row.number * gold.window, changed) for row in numbers])


def merged(spans: Iterable[tuple[datetime, timedelta]]) -> list[Stretch]:
    """Spans, given by beginning and length, as ones that do not touch; where these are too many, one."""
    found: list[Stretch] = []
    for start, length in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], start + length))
        else:
            found.append((start, start + length))
    return found if len(found) <= SPANS_MAX else [(found[0][0], found[-1][1])]


def _lookback(gold: Gold) -> timedelta:
    """How far before a window the silence before its first message is followed."""
    return max(gold.window, gold.gap or gold.window)


def _window_number(rule: Rule, gold: Gold) -> Column:
    """Of a row's window, in the order of time."""
    return F.expr(f"cast(floor(unix_micros({rule.time_column}) / {gold.window // _MICROSECOND}) as bigint)")


def _figures(
    spark: SparkSession, rule: Rule, gold: Gold, silver: Table, spans: Sequence[Stretch]
) -> DataFrame:
    """The rows of these spans' windows."""
    rows = _readings(spark, rule, gold, silver, spans)
    if gold.gap:
        rows = _with_silence(rows, gold, gold.gap)
    keys = [F.col("_window").alias("window"), *map(F.col, ("topic", "client_id", *gold.by))]
    rows = rows.where(_within("_window", spans))
    figures = rows.groupBy(*keys).agg(*_aggregates(gold))
    percentiles = [
        F.col(f"_{name}").getItem(number).alias(f"{name}_p{_shown(each)}")
        for name in gold.values
        for number, each in enumerate(gold.percentiles)
    ]
    names = [name for name in figures.columns if not name.startswith("_")]
    return figures.select(*names, *percentiles, F.expr(_DAY).alias("date"))


def _readings(
    spark: SparkSession, rule: Rule, gold: Gold, silver: Table, spans: Sequence[Stretch]
) -> DataFrame:
    """The rows of these spans, and of the time before in which silences begin; with `_at`, in microseconds,
    and `_window`.
    """
    schema, time = silver.schema(), rule.time_column
    assert schema is not None
    wanted = {**dict.fromkeys(gold.values, "double"), **dict.fromkeys(gold.by, "string")}
    there = [name for name in wanted if name in schema.names]  # an inferred column may still come
    earlier = _lookback(gold) if gold.gap else timedelta(0)
    columns = list(dict.fromkeys(["epoch", "offset", "topic", "client_id", time, *there]))
    bounds = {time: (spans[0][0] - earlier, spans[-1][1])} if spans else {}
    rows = silver.read(spark, columns, bounds)
    rows = rows.where(_within(time, [(start - earlier, end) for start, end in spans]))
    width_us = gold.window // _MICROSECOND
    rows = rows.withColumn("_at", F.unix_micros(time))
    rows = rows.withColumn("_window", F.timestamp_micros(_window_number(rule, gold) * width_us))
    for name, kind in wanted.items():
        if name not in there:
            rows = rows.withColumn(name, F.lit(None).cast(kind))
        elif kind == "double":
            number = F.col(name).try_cast(kind)  # an inferred one may be text
            rows = rows.withColumn(name, F.when(~F.isnan(number), number))  # of Sparkplug, it may be NaN
    return rows


def _with_silence(rows: DataFrame, gold: Gold, gap: timedelta) -> DataFrame:
    """With the seconds before each message without one, `_silence`, and whether these are a gap.

    Where none came in the time that is looked at, it is at least that much: so that the figures of a window
    depend on its rows and on those of a time before it, which is always the same.
    """
    order = Window.partitionBy("topic", "client_id", *gold.by).orderBy("_at", "epoch", "offset")
    horizon = F.unix_micros("_window") - _lookback(gold) // _MICROSECOND
    before = F.lag("_at").over(order)
    rows = rows.withColumn("_known", F.coalesce(before >= horizon, F.lit(False)))
    rows = rows.withColumn("_silence", (F.col("_at") - F.greatest(before, horizon)) / 1e6)
    return rows.withColumn("_gap", ~F.col("_known") | (F.col("_silence") > gap.total_seconds()))


def _aggregates(gold: Gold) -> list[Column]:
    count = F.count("*")
    found = [count.alias("count"), (count / gold.window.total_seconds()).alias("rate")]
    if gold.gap:
        found += [F.count_if("_gap").alias("gaps"), F.max("_silence").alias("longest_gap")]
    limits = {name: (low, high) for name, low, high in gold.limits}
    for name in gold.values:
        found += [each(name).alias(f"{name}_{each.__name__}") for each in (F.min, F.mean, F.max)]
        if name in limits:
            low, high = limits[name]
            outside = (F.col(name) < low) | (F.col(name) > high)
            found.append(F.count_if(outside).alias(f"{name}_out_of_range"))
        if gold.percentiles:
            parts = F.array(*(F.lit(each / 100) for each in gold.percentiles))
            found.append(F.percentile(name, parts).alias(f"_{name}"))
    return found


def _within(column: str, spans: Sequence[Stretch]) -> Column:
    found = F.lit(False)
    for start, end in spans:
        found |= (F.col(column) >= F.lit(start)) & (F.col(column) < F.lit(end))
    return found


def _shown(percentile: float) -> str:
    """As a part of a column's name: 50, 99_9."""
    return f"{percentile:g}".replace(".", "_")
