"""Figures of a rule's rows, by window, topic and client: a function of the rule's decoded table.

Each row of gold keeps what is needed to add further rows to it (`partials`). So a
batch reads what is new, and the rows of gold that it changes, but not the rows that these were made of; in
one transaction it replaces them and says how far the decoded table was taken into account. Where a gap is to
be counted and a row comes before others that were counted already, the gaps of its window are counted again,
whole, from the decoded table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from tidemq.pipeline.decode.decoding import readings
from tidemq.pipeline.decode.payload_rules import Gold, Rule
from tidemq.pipeline.lake.filing import FILED, Counter, gathered
from tidemq.pipeline.lake.partials import (
    MICROSECOND,
    before,
    keys_of,
    numbered,
    of_readings,
    one,
    seconds,
    together,
    with_names,
)
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, Span
from tidemq.pipeline.lake.sketches import KINDS, Sketches, percentiles
from tidemq.pipeline.lake.table import within
from tidemq.pipeline.lake.table_log import Snapshot, TableError, without_date

Stretch = tuple[datetime, datetime]
"""From a time up to another."""

SPANS_MAX = 100  # that are replaced one by one
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", "UTC")
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Fresh:
    """The parts of rows that were just added to a decoded table."""

    progress: Progress
    span: Span
    parts: pa.Table | None  # None: there was no row


def refresh(spark: SparkSession, lake: Lake, rule: Rule, progress: Progress, fresh: Fresh | None) -> None:
    """Brings the figures up to the decoded table, which has this progress. Reads that table where `fresh` is
    not what comes next; at most `rows_max` offsets at a time.

    TableError when the table was made by other settings, or another driver has committed meanwhile.
    """
    assert progress.working is not None
    _Refresh(spark, lake, rule, progress).run(fresh)


class _Refresh:
    """Of a rule's gold, in an epoch."""

    def __init__(self, spark: SparkSession, lake: Lake, rule: Rule, decoded: Progress) -> None:
        assert rule.gold is not None
        assert decoded.working is not None
        self._spark = spark
        self._rule = rule
        self._gold = rule.gold
        self._rows_max = lake.rows_max
        self._silver, self._table = lake.silver(rule), lake.gold(rule)
        self._decoded = decoded
        self._progress = replace(decoded, working=replace(decoded.working, digest=rule.gold.digest))

    def run(self, fresh: Fresh | None) -> None:
        snapshot = self._table.now()
        if snapshot and _made_by_others(self._progress, snapshot):
            raise TableError(
                f"the table {self._table.uri} was made with other settings; removed, it is made anew"
            )
        end = self._silver.reached(self._decoded)
        reached = self._progress.reached(snapshot) if snapshot else 0
        if end and not reached:  # what an earlier working has left is removed even if this one has no rows
            self._table.begin(self._progress, figures(self._gold, self._none()).schema)
        while reached < end:
            start = reached
            if fresh and fresh.progress == self._decoded and fresh.span.start == start:
                parts, reached = fresh.parts, fresh.span.end
            else:
                reached = min(start + self._rows_max, end)
                parts = self._parts_of_offsets(start, reached)
            self._add(self._none() if parts is None else parts, start, reached)

    def _none(self) -> pa.Table:
        """No parts, with their columns."""
        schema = self._silver.schema()
        assert schema is not None
        kinds = {name: to_arrow_type(schema[name].dataType) for name in self._gold.by if name in schema.names}
        text = pa.string()
        columns = {name: pa.array([], kinds.get(name, text)) for name in keys_of(self._gold)[1:]}
        values = [pa.array([], pa.float64()) for _ in self._gold.values]
        return of_readings(self._gold, pa.array([], pa.int64()), columns, values)

    def _add(self, parts: pa.Table, start: int, reached: int) -> None:
        """Replaces the rows that parts of messages from one offset up to another change."""
        gold = self._gold
        before = self._table.before(figures(gold, self._none()).schema, self._progress, start)
        # windows whose first silence it may end
        behind = -(-_lookback(gold) // gold.window) if gold.gap else 0
        changed = gold.window * (1 + behind)
        spans = merged((_time(start), changed) for start in pc.unique(parts["window"]).to_pylist())
        known = [(start - gold.window * behind, end) for start, end in spans]
        there = self._stored(before, known).select(parts.column_names).cast(parts.schema)
        whole = together(gold, pa.concat_tables([there, parts]))
        if gold.gap and pc.any(whole["disordered"]).as_py():
            windows = pc.unique(whole.filter(whole["disordered"])["window"])
            whole = whole.filter(pc.invert(pc.is_in(whole["window"], windows)))
            again = self._parts_of_windows(
                merged((_time(each), gold.window) for each in windows.to_pylist()), reached
            )
            whole = pa.concat_tables([whole, again]) if again else whole
        found = figures(gold, whole)
        found = found.filter(within(found["window"], spans))
        self._table.replace(before, found, "window", spans, self._progress.said(reached), known)

    def _stored(self, snapshot: Snapshot, spans: Sequence[Stretch]) -> pa.Table:
        """The parts that the rows of these spans were made of."""
        bounds = (spans[0][0], spans[-1][1]) if spans else (datetime.max.replace(tzinfo=UTC), None)
        rows = self._table.rows(snapshot, without_date(snapshot.columns), {"window": bounds})
        return stored(self._gold, rows.filter(within(rows["window"], spans)))

    def _parts_of_offsets(self, start: int, end: int) -> pa.Table | None:
        """Of the rows of messages of these offsets."""
        epoch = self._progress.epoch
        rows = self._read({"epoch": (epoch, epoch), "offset": (start, end - 1)})
        return self._counted(rows.where((F.col("epoch") == epoch) & F.col("offset").between(start, end - 1)))

    def _parts_of_windows(self, spans: Sequence[Stretch], reached: int) -> pa.Table | None:
        """Of all rows of these spans that are counted when those of messages up to `reached` are."""
        counted, within, time = F.lit(False), F.lit(False), self._rule.time_column
        for epoch in self._silver.epochs():
            end = self._table.reached(replace(self._progress, epoch=epoch))
            end = reached if epoch == self._progress.epoch else end
            counted |= (F.col("epoch") == epoch) & (F.col("offset") < end)
        for since, until in spans:
            within |= (F.col(time) >= F.lit(since)) & (F.col(time) < F.lit(until))
        rows = self._read({time: (spans[0][0], spans[-1][1])})
        return self._counted(rows.where(counted & within))

    def _read(self, bounds: Mapping[str, tuple[Any, Any]]) -> DataFrame:
        """Of the decoded table, what gold needs."""
        schema = self._silver.schema()
        assert schema is not None
        wanted = ("epoch", "offset", "topic", "client_id", self._rule.time_column)
        more = (name for name in (*self._gold.values, *self._gold.by) if name in schema.names)
        return self._silver.read(self._spark, list(dict.fromkeys((*wanted, *more))), bounds)

    def _counted(self, rows: DataFrame) -> pa.Table | None:
        found = readings(rows, self._rule)
        if self._gold.gap:  # each in its order: none comes between others that were put together before
            found = found.repartition("row").sortWithinPartitions("reading.at")
        return gathered(
            found.mapInArrow(Counter(self._rule.name, self._gold), FILED).collect(), self._gold
        ).parts


def _made_by_others(progress: Progress, gold: Snapshot) -> bool:
    """Whether gold of this working has other settings; that of an earlier one is made anew."""
    assert progress.working is not None
    same = progress.generation_of(gold) == progress.working.generation
    return same and progress.digest_of(gold) != progress.working.digest


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


def _time(microseconds: int) -> datetime:
    return _EPOCH + microseconds * MICROSECOND


# --- rows of the table -------------------------------------------------------------------------


def figures(gold: Gold, parts: pa.Table) -> pa.Table:
    """The rows of gold, of whole parts; of windows whose earlier ones are among them, as far as silences are
    followed.
    """
    window = parts["window"]
    found = {"window": window.cast(_TIME), **{name: parts[name] for name in keys_of(gold)[1:]}}
    count = parts["count"]
    found |= {"count": count, "rate": pc.divide(count.cast(pa.float64()), gold.window.total_seconds())}
    if gold.gap:
        found |= _gaps(gold, gold.gap, parts)
    for name in gold.values:
        of_value = {
            each: parts[f"{name}.{each}"]
            for each in ("count", "sum", "min", "max", "out_of_range", *Sketches._fields)
            if f"{name}.{each}" in parts.column_names
        }
        found |= {f"{name}_{what}": column for what, column in _of_value(gold, of_value).items()}
    found["date"] = pa.array(np.asarray(window) // _DAY_US).cast(pa.int32()).cast(pa.date32())
    return pa.table(found)


def _of_value(gold: Gold, part: Mapping[str, pa.ChunkedArray]) -> dict[str, pa.Array]:
    """The columns of one of the values."""
    found = {name: part[name] for name in ("count", "sum", "min")}
    found["mean"] = pc.divide(part["sum"], part["count"].cast(pa.float64()))
    found["max"] = part["max"]
    if "out_of_range" in part:
        found["out_of_range"] = part["out_of_range"]
    if gold.percentiles:
        sketches = Sketches(*(one(part[name]) for name in Sketches._fields))
        for percentile, values in zip(gold.percentiles, percentiles(sketches, gold.percentiles), strict=True):
            value = pa.array(values, pa.float64(), from_pandas=True)  # NaN is null
            inside = pc.min_element_wise(pc.max_element_wise(value, part["min"]), part["max"])
            found[f"p{_shown(percentile)}"] = inside
        found["sketch"] = pa.StructArray.from_arrays(sketches, Sketches._fields)
    return found


def _gaps(gold: Gold, gap: timedelta, parts: pa.Table) -> dict[str, pa.Array]:
    """The silence before the first row of a part is followed for `_lookback` before its window; where there
    was no row in that time, it is a gap of at least that.
    """
    _, others = numbered(parts, keys_of(gold)[1:])
    ordered = parts.append_column("of", others).append_column("place", pa.array(np.arange(len(parts))))
    ordered = ordered.sort_by([("of", "ascending"), ("window", "ascending")])
    last = pc.if_else(pc.equal(ordered["of"], before(ordered["of"])), before(ordered["last"]), None)
    horizon = pc.subtract(ordered["window"], _lookback(gold) // MICROSECOND)
    silence = seconds(pc.subtract(ordered["first"], pc.max_element_wise(last, horizon)))
    known = pc.fill_null(pc.greater_equal(last, horizon), False)
    ended = pc.or_(pc.invert(known), pc.greater(silence, gap.total_seconds()))
    back = pc.sort_indices(ordered["place"])
    silence, ended = (each.take(back) for each in (silence, ended.cast(pa.int64())))
    return {
        "gaps": pc.add(parts["gaps"], ended),
        "longest_gap": pc.max_element_wise(parts["longest_gap"], silence),
        "first": parts["first"].cast(_TIME),
        "last": parts["last"].cast(_TIME),
        "gaps_within": parts["gaps"],
        "longest_gap_within": parts["longest_gap"],
    }


def stored(gold: Gold, rows: pa.Table) -> pa.Table:
    """The parts that rows of the table were made of."""
    found = {"window": rows["window"].cast(pa.int64()), **{name: rows[name] for name in keys_of(gold)[1:]}}
    found["count"] = rows["count"]
    if gold.gap:
        found |= {name: rows[name].cast(pa.int64()) for name in ("first", "last")}
        found |= {name: rows[f"{name}_within"] for name in ("gaps", "longest_gap")}
        found["disordered"] = pa.repeat(pa.scalar(False), len(rows))
    limited = [name for name, *_ in gold.limits]
    for name in gold.values:
        for what in ("count", "sum", "min", "max", *(["out_of_range"] if name in limited else [])):
            found[f"{name}.{what}"] = rows[f"{name}_{what}"]
        if gold.percentiles:
            columns = zip(KINDS, one(rows[f"{name}_sketch"]).flatten(), strict=True)
            found |= with_names(name, Sketches(*(column.cast(kind) for kind, column in columns)))
    return pa.table(found)


def _shown(percentile: float) -> str:
    """As a part of a column's name: 50, 99_9."""
    return f"{percentile:g}".replace(".", "_")
