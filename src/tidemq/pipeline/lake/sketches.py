"""Sketches of values, for percentiles: how many lie in each bucket (DDSketch: Masson, Rim, Lee, VLDB 2019).

Buckets grow with the value, so a percentile is within `ACCURACY` of it, and two sketches are put together by
adding their counts: in whatever order values came, the sketch is the same. As columns of Arrow, and not by a
library, whose sketches are an object for each device and window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ACCURACY = 0.001  # of the value
LEAST, GREATEST = 1e-9, 1e15  # what is nearer to zero counts as zero, what is farther away as this
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_LOG = math.log(_GAMMA)
_FIRST = math.ceil(math.log(LEAST) / _LOG) - 1  # of positive values; its bucket has the number 1


def bucket_of(values: pa.Array) -> pa.Array:
    """Numbers in the order of the values; null of null."""
    size = pc.abs(values)
    clipped = pc.min_element_wise(
        pc.max_element_wise(size, LEAST, skip_nulls=False), GREATEST, skip_nulls=False
    )
    number = pc.subtract(pc.ceil(pc.divide(pc.ln(clipped), _LOG)), _FIRST)
    signed = pc.multiply(number, pc.sign(values))
    return pc.if_else(pc.less(size, LEAST), 0.0, signed).cast(pa.int32())


def values_of(buckets: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """What stands for the values of each bucket."""
    middle = 2 * np.exp((np.abs(buckets) + _FIRST) * _LOG) / (_GAMMA + 1)
    found: npt.NDArray[np.float64] = np.sign(buckets) * middle
    return found


def summed(
    numbers: pa.Array, buckets: pa.ListArray, counts: pa.ListArray, end: int
) -> tuple[pa.ListArray, pa.ListArray]:
    """Puts sketches together, those of the same number (0 up to `end`), and gives one for each number."""
    of = pc.take(numbers, pc.list_parent_indices(buckets))
    flat = pa.table({"of": of, "bucket": pc.list_flatten(buckets), "count": pc.list_flatten(counts)})
    flat = flat.group_by(["of", "bucket"], use_threads=False).aggregate([("count", "sum")])
    flat = flat.sort_by([("of", "ascending"), ("bucket", "ascending")])
    ends = np.searchsorted(np.asarray(flat["of"]), np.arange(end), side="right")
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    made = [pa.ListArray.from_arrays(offsets, pa.array(np.asarray(flat[name]), kind)) for name, kind in _FLAT]
    return made[0], made[1]


_FLAT = (("bucket", pa.int32()), ("count_sum", pa.int64()))


def percentiles(
    buckets: pa.ListArray, counts: pa.ListArray, wanted: Sequence[float]
) -> list[npt.NDArray[np.float64]]:
    """Of each sketch these percentiles (0 to 100), between the values of neighbouring ranks in proportion;
    NaN of an empty one.
    """
    flat = np.asarray(pc.list_flatten(buckets), np.int32)
    total = np.concatenate([[0], np.cumsum(np.asarray(pc.list_flatten(counts), np.int64))])
    ends = np.cumsum(np.asarray(pc.list_value_length(buckets), np.int64))
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    number = total[ends] - total[starts]
    values = np.concatenate([values_of(flat), [np.nan]])

    def at(rank: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        place = np.searchsorted(total[1:], total[starts] + rank, side="right")
        return np.where(number > 0, values[np.minimum(place, len(values) - 1)], np.nan)

    found = []
    for each in wanted:
        rank = np.maximum(number - 1, 0) * (each / 100)
        low, high = at(np.floor(rank)), at(np.ceil(rank))
        found.append(low + (high - low) * (rank - np.floor(rank)))
    return found
