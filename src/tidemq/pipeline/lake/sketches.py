"""Sketches of values, for percentiles: how many lie in each bucket.

Buckets grow with the value, so a percentile is within a share of it, and two sketches are put together by
adding their counts (DDSketch: Masson, Rim, Lee, VLDB 2019). Where there are too many buckets, each two
neighbours become one, which doubles that share (UDDSketch: Epicoco and others, IEEE Access 2020). In whatever
order values came, the sketch is the same. As columns of Arrow, and not by a library, whose sketches are an
object for each device and window.

A bucket has a number with the sign of its values; that of zero is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ACCURACY = 0.001  # of the value, at level 0; twice that at each further level
BUCKETS_MAX = 256  # of a sketch: if there are more, its level rises
LEAST, GREATEST = 1e-9, 1e15  # what is nearer to zero counts as zero, what is farther away as this
_LOG = math.log((1 + ACCURACY) / (1 - ACCURACY))  # of how much wider the next bucket is, at level 0
_ONE = 1 << 14  # number of the bucket that ends with 1.0, at level 0: so the one of LEAST is above 0

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


class Sketches(NamedTuple):
    """Of several keys, an array with one for each."""

    levels: pa.Array  # int32
    buckets: pa.ListArray  # of int32, in ascending order
    counts: pa.ListArray  # of int64, of these buckets


KINDS = Sketches(pa.int32(), pa.list_(pa.int32()), pa.list_(pa.int64()))


def of_values(values: pa.Array) -> Sketches:
    """One for each value; an empty one of null."""
    valid = pc.is_valid(values)
    offsets = np.concatenate([[0], np.cumsum(np.asarray(valid).astype(np.int32))])
    numbers = _numbers(np.asarray(values.filter(valid), np.float64))
    return Sketches(
        pa.array(np.zeros(len(values), np.int32)),
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(numbers, pa.int32())),
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(np.ones_like(numbers))),
    )


def _numbers(values: Doubles) -> Integers:
    """Of the buckets of values, at level 0."""
    size = np.abs(values)
    number = np.ceil(np.log(np.clip(size, LEAST, GREATEST)) / _LOG) + _ONE
    return np.where(size < LEAST, 0, np.sign(values) * number).astype(np.int64)


def values_of(levels: Integers, numbers: Integers) -> Doubles:
    """What stands for the values of each bucket of a level."""
    wider = _LOG * 2.0**levels
    ends = np.exp((np.abs(numbers) - _ONE / 2.0**levels) * wider)
    found: Doubles = np.sign(numbers) * 2 * ends / (np.exp(wider) + 1)
    return found


def together(sketches: Sketches, keys: pa.Array, end: int) -> Sketches:
    """Puts those of the same key (0 up to `end`) together, and gives one for each key."""
    key = np.asarray(keys, np.int64)
    part_levels = np.asarray(sketches.levels, np.int64)
    levels = np.zeros(end, np.int64)
    np.maximum.at(levels, key, part_levels)
    part = np.asarray(pc.list_parent_indices(sketches.buckets), np.int64)
    of = key[part]
    numbers = np.asarray(pc.list_flatten(sketches.buckets), np.int64)
    numbers = _risen(numbers, levels[of] - part_levels[part])
    of, numbers, counts = _summed(of, numbers, np.asarray(pc.list_flatten(sketches.counts), np.int64))
    while (many := np.bincount(of, minlength=end) > BUCKETS_MAX).any():
        levels += many
        of, numbers, counts = _summed(of, _risen(numbers, many[of].astype(np.int64)), counts)
    offsets = pa.array(np.searchsorted(of, np.arange(end + 1)), pa.int32())
    lists = [
        pa.ListArray.from_arrays(offsets, pa.array(each, kind.value_type))
        for each, kind in ((numbers, KINDS.buckets), (counts, KINDS.counts))
    ]
    return Sketches(pa.array(levels, pa.int32()), *lists)


def _risen(numbers: Integers, by: Integers) -> Integers:
    """Numbers of the same buckets so many levels higher."""
    size: Integers = np.abs(numbers) + (1 << by) - 1 >> by
    return np.where(numbers < 0, -size, size)


def _summed(of: Integers, numbers: Integers, counts: Integers) -> tuple[Integers, Integers, Integers]:
    """One for each bucket of a key, ordered by both."""
    order = np.lexsort((numbers, of))
    of, numbers, counts = of[order], numbers[order], counts[order]
    first = np.flatnonzero(np.diff(of, prepend=-1) | np.diff(numbers, prepend=0))
    return of[first], numbers[first], np.add.reduceat(counts, first) if len(first) else counts


def percentiles(sketches: Sketches, wanted: Sequence[float]) -> list[Doubles]:
    """Of each sketch these percentiles (0 to 100), between the values of neighbouring ranks in proportion;
    NaN of an empty one.
    """
    part = np.asarray(pc.list_parent_indices(sketches.buckets), np.int64)
    numbers = np.asarray(pc.list_flatten(sketches.buckets), np.int64)
    values = np.append(values_of(np.asarray(sketches.levels, np.int64)[part], numbers), np.nan)
    counts = np.asarray(pc.list_flatten(sketches.counts), np.int64)
    total = np.concatenate([[0], np.cumsum(counts)])
    bounds = np.searchsorted(part, np.arange(len(sketches.buckets) + 1))
    before, number = total[bounds[:-1]], np.diff(total[bounds])

    def at(rank: Doubles) -> Doubles:
        place = np.searchsorted(total[1:], before + rank, side="right")
        return np.where(number > 0, values[np.minimum(place, len(values) - 1)], np.nan)

    found = []
    for each in wanted:
        rank = np.maximum(number - 1, 0) * (each / 100)
        low, high = at(np.floor(rank)), at(np.ceil(rank))
        found.append(low + (high - low) * (rank - np.floor(rank)))
    return found
