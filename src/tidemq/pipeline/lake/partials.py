"""What is known of the rows of a window, topic and client, in a form that can be put together: counts, sums,
least and greatest values, sketches. In Arrow, within tasks and in the driver.

A *part* is a row with the columns `window` (its beginning, in microseconds since 1970), `topic`, `client_id`
and those of `gold.by`; then

- `count`;
- with `gold.gap`: `first` and `last`, the times of its first and last row, `gaps` and `longest_gap` between
  them, and `disordered`: whether rows came between others that were put together before, so that the gaps
  are not known;
- for each value `x.count`, `x.sum`, `x.min`, `x.max`, `x.out_of_range`, and with `gold.percentiles`
  `x.levels`, `x.buckets` and `x.counts`: a sketch of its values (`sketches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemq.pipeline.decode.payload_rules import Gold
from tidemq.pipeline.lake import sketches
from tidemq.pipeline.lake.sketches import Sketches

MICROSECOND = timedelta(microseconds=1)


def keys_of(gold: Gold) -> list[str]:
    """What parts are told apart by."""
    return ["window", "topic", "client_id", *gold.by]


def of_readings(
    gold: Gold, at: pa.Array, columns: dict[str, pa.Array], values: Sequence[pa.Array]
) -> pa.Table:
    """Parts of rows: each with its time `at`, in microseconds since 1970, its `columns` topic, client_id and
    `gold.by`, and its `values`, doubles that may be null.
    """
    width = gold.window // MICROSECOND
    since = pc.subtract(at, pc.multiply(pc.divide(at, width), width))
    since = pc.if_else(pc.less(since, 0), pc.add(since, width), since)  # division rounds towards zero
    ones = pa.repeat(pa.scalar(1, pa.int64()), len(at))
    found = {"window": pc.subtract(at, since), **columns, "count": ones}
    if gold.gap:
        found |= {"first": at, "last": at, "gaps": pc.subtract(ones, ones)}
        found["longest_gap"] = pa.nulls(len(at), pa.float64())
        found["disordered"] = pa.repeat(pa.scalar(False), len(at))
    limits = {name: (low, high) for name, low, high in gold.limits}
    for name, value in zip(gold.values, values, strict=True):
        found[f"{name}.count"] = pc.is_valid(value).cast(pa.int64())
        found |= {f"{name}.{what}": value for what in ("sum", "min", "max")}
        if name in limits:
            low, high = limits[name]
            outside = pc.or_(pc.less(value, low), pc.greater(value, high))
            found[f"{name}.out_of_range"] = pc.fill_null(outside, False).cast(pa.int64())
        if gold.percentiles:
            found |= with_names(name, sketches.of_values(value))
    return together(gold, pa.table(found))


def with_names(value: str, found: Sketches) -> dict[str, pa.Array]:
    """Sketches of a value as columns of parts."""
    return {f"{value}.{what}": column for what, column in found._asdict().items()}


def sketches_of(value: str, parts: pa.Table) -> Sketches:
    """The reverse."""
    return Sketches(*(one(parts[f"{value}.{what}"]) for what in Sketches._fields))


def together(gold: Gold, parts: pa.Table) -> pa.Table:
    """One part for each key, of all of that key."""
    parts = parts.combine_chunks()
    found, numbers = numbered(parts, keys_of(gold))
    parts = parts.append_column("key", numbers)
    how = [("count", "sum")]
    if gold.gap:
        parts = _with_silences(gold.gap, parts)
        how += [("first", "min"), ("last", "max"), ("gaps", "sum"), ("longest_gap", "max")]
        how += [("disordered", "max"), ("ended", "sum"), ("silence", "max")]
    for name in gold.values:
        of_value = [("count", "sum"), ("sum", "sum"), ("min", "min"), ("max", "max")]
        of_value += [("out_of_range", "sum")] if f"{name}.out_of_range" in parts.column_names else []
        how += [(f"{name}.{column}", function) for column, function in of_value]
    sums = parts.group_by("key", use_threads=False).aggregate(how).sort_by("key")
    columns = dict(zip((name for name, _ in how), sums.drop_columns(["key"]).columns, strict=True))
    if gold.gap:
        columns["gaps"] = pc.add(columns["gaps"], columns.pop("ended"))
        columns["longest_gap"] = pc.max_element_wise(columns["longest_gap"], columns.pop("silence"))
    if gold.percentiles:
        for name in gold.values:
            whole = sketches.together(sketches_of(name, parts), one(parts["key"]), len(found))
            columns |= with_names(name, whole)
    for name, column in columns.items():
        found = found.append_column(name, column)
    return found


def _with_silences(gap: timedelta, parts: pa.Table) -> pa.Table:
    """With the silence before each part in seconds where an earlier one of its key is known, and whether it
    was a gap that has `ended`.
    """
    parts = parts.sort_by([(name, "ascending") for name in ("key", "first", "last")])
    last = pc.if_else(pc.equal(parts["key"], before(parts["key"])), before(parts["last"]), None)
    silence = seconds(pc.subtract(parts["first"], last))
    mixed = pc.fill_null(pc.less(silence, 0), False)
    place = parts.column_names.index("disordered")
    parts = parts.set_column(place, "disordered", pc.or_(parts["disordered"], mixed))
    ended = pc.fill_null(pc.greater(silence, gap.total_seconds()), False).cast(pa.int64())
    return parts.append_column("silence", silence).append_column("ended", ended)


def numbered(rows: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, pa.Array]:
    """The keys that rows have, each once, and of each row the number of its own. Null is a key, too."""
    places = pa.array(np.arange(len(rows)))
    found = rows.select(list(keys)).append_column("_places", places)
    found = found.group_by(list(keys), use_threads=False).aggregate([("_places", "list")])
    lists = one(found["_places_list"])
    numbers = np.empty(len(rows), np.int64)
    numbers[np.asarray(pc.list_flatten(lists))] = np.asarray(pc.list_parent_indices(lists))
    return found.select(list(keys)), pa.array(numbers)


def before(column: pa.ChunkedArray) -> pa.Array:
    """Of each row what the one before has; null for the first."""
    whole = one(column)
    return one(pa.chunked_array([pa.nulls(min(len(whole), 1), whole.type), whole[:-1]]))


def seconds(microseconds: pa.Array) -> pa.Array:
    """As double."""
    return pc.divide(pc.cast(microseconds, pa.float64()), 1e6)


def one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """As an array in one piece."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no piece, or of several that are too long for one
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column
