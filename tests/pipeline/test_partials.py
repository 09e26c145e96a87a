"""Parts of windows that are put together are what all of their rows give, in whatever portions they came."""

from __future__ import annotations

import math
import random
import statistics
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemq.pipeline.decode.payload_rules import Gold
from tidemq.pipeline.lake.gold import figures
from tidemq.pipeline.lake.partials import keys_of, of_readings, one, together
from tidemq.pipeline.lake.sketches import (
    ACCURACY,
    BUCKETS_MAX,
    GREATEST,
    KINDS,
    Sketches,
    of_values,
    percentiles,
    values_of,
)
from tidemq.pipeline.lake.sketches import together as together_sketches

MINUTE_US = 60_000_000
GAP_S = 7
GOLD = Gold(
    window=timedelta(minutes=1),
    values=("celsius", "humidity"),
    limits=(("celsius", -40.0, 30.0),),
    percentiles=(0.0, 50.0, 99.9, 100.0),
    gap=timedelta(seconds=GAP_S),
    by=("room",),
)


def readings(seed: int, number: int = 3000) -> list[dict[str, Any]]:
    """In the order of their times, from before 1970 on; each value may be missing."""
    chance = random.Random(seed)
    times = sorted(chance.randrange(-5 * MINUTE_US, 5 * MINUTE_US) for _ in range(number))
    return [
        {
            "at": at,
            "topic": chance.choice("ab"),
            "client_id": chance.choice(["x", "y", None]),
            "room": chance.choice(["r", None]),
            "celsius": chance.gauss(10, 30) if chance.random() < 0.8 else None,
            "humidity": chance.random() if chance.random() < 0.8 else None,
        }
        for at in times
    ]


def parts(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {
        name: pa.array([row[name] for row in rows], pa.string()) for name in ("topic", "client_id", "room")
    }
    values = [pa.array([row[name] for row in rows], pa.float64()) for name in GOLD.values]
    return of_readings(GOLD, pa.array([row["at"] for row in rows], pa.int64()), columns, values)


def by_key(table: pa.Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {tuple(row[name] for name in keys_of(GOLD)): row for row in table.to_pylist()}
    assert len(found) == len(table)
    return found


def said_plainly(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The figures of each window by the rows themselves."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    last: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = (row["topic"], row["client_id"], row["room"])
        window = row["at"] // MINUTE_US * MINUTE_US
        horizon = window - MINUTE_US  # silences are followed for a window: it is longer than the gap
        before = last.get(key, -(10**18))
        silence = (row["at"] - max(before, horizon)) / 1e6
        last[key] = row["at"]
        of = found.setdefault((window, *key), {"count": 0, "gaps": 0, "longest_gap": 0.0, "celsius": []})
        of["count"] += 1
        of["gaps"] += before < horizon or silence > GAP_S
        of["longest_gap"] = max(of["longest_gap"], silence)
        if row["celsius"] is not None:
            of["celsius"].append(row["celsius"])
    return found


@pytest.mark.parametrize("seed", range(5))
def test_portions_do_not_matter(seed: int) -> None:
    rows = readings(seed)
    chance = random.Random(seed)
    cuts = sorted({0, len(rows), *(chance.randrange(len(rows)) for _ in range(20))})
    portions = [parts(rows[start:end]) for start, end in pairwise(cuts)]
    chance.shuffle(portions)
    found = together(GOLD, pa.concat_tables(portions))
    again = by_key(together(GOLD, pa.concat_tables([found])))
    whole = by_key(parts(rows))
    assert by_key(found).keys() == whole.keys()
    for key, row in by_key(found).items():
        assert again[key] == row
        for name, value in row.items():
            if name.endswith(".sum"):
                assert value == pytest.approx(whole[key][name], abs=1e-9)
            else:
                assert value == whole[key][name], name
        assert not row["disordered"]


def test_figures_are_those_of_the_rows() -> None:
    rows = readings(17, 600)
    plain = said_plainly(rows)
    found = figures(GOLD, parts(rows))
    assert len(found) == len(plain)
    for row in found.to_pylist():
        window = int(row["window"].timestamp()) * 1_000_000
        wanted = plain[window, row["topic"], row["client_id"], row["room"]]
        celsius = wanted.pop("celsius")
        assert {name: row[name] for name in wanted} == pytest.approx(wanted)
        assert row["rate"] == row["count"] / 60
        assert row["celsius_count"] == len(celsius)
        assert row["celsius_out_of_range"] == sum(not -40 <= value <= 30 for value in celsius)
        assert row["date"] == row["window"].date()
        if not celsius:
            assert (row["celsius_min"], row["celsius_mean"], row["celsius_p50"]) == (None, None, None)
            continue
        assert (row["celsius_min"], row["celsius_max"]) == (min(celsius), max(celsius))
        ends = pytest.approx((min(celsius), max(celsius)), rel=ACCURACY)
        assert (row["celsius_p0"], row["celsius_p100"]) == ends
        assert row["celsius_mean"] == pytest.approx(statistics.fmean(celsius))
        near = np.percentile(celsius, 50), max(map(abs, celsius)) * ACCURACY  # of two values between two
        assert row["celsius_p50"] == pytest.approx(near[0], abs=near[1])


def test_rows_that_came_between_others_are_noticed() -> None:
    same = {"topic": "a", "client_id": "x", "room": "r"}
    rows = [row | same | {"at": 1_000_000 * second} for second, row in enumerate(readings(3, 40))]
    early, late = parts([*rows[:10], *rows[20:]]), parts(rows[10:20])
    found = together(GOLD, pa.concat_tables([early, late]))
    assert found["disordered"].to_pylist() == [True]
    after = together(GOLD, pa.concat_tables([parts(rows[:20]), parts(rows[20:])]))
    assert after["disordered"].to_pylist() == [False]


def test_sketches_are_as_exact_as_they_say() -> None:
    chance = random.Random(1)
    values = [chance.choice([-1, 1]) * 10 ** chance.uniform(-8.9, 14.9) for _ in range(10_000)]
    each = of_values(pa.array(values))
    found = values_of(np.asarray(each.levels), np.asarray(each.buckets.flatten(), np.int64))
    assert found == pytest.approx(values, rel=ACCURACY)
    odd = of_values(pa.array([0.0, -0.0, 1e-12, -1e-300, math.inf, -math.inf, 1e300, None]))
    numbers = [number for (number,) in odd.buckets.to_pylist()[:7]]
    assert numbers[:4] == [0, 0, 0, 0]
    assert numbers[4] == numbers[6] == -numbers[5]
    assert values_of(np.zeros(1, int), np.array(numbers[4:5])) == pytest.approx(GREATEST, rel=ACCURACY)
    assert odd.buckets.to_pylist()[7] == []


@pytest.mark.parametrize(("spread", "level"), [(1.01, 0), (1.5, 1), (10, 4), (1e6, 6), (1e14, 7)])
def test_a_sketch_of_a_wide_spread_is_coarser_and_no_larger(spread: float, level: int) -> None:
    chance = random.Random(2)
    values = sorted(chance.choice([-1, 1]) * spread ** chance.random() for _ in range(5000))
    parts = of_values(pa.array(values))
    keys = pa.array([0] * len(values))
    whole = together_sketches(parts, keys, 1)
    assert len(whole.buckets[0]) <= BUCKETS_MAX
    assert whole.levels.to_pylist() == [level]
    for percentile in (0.1, 10, 50, 90, 99.9):
        (found,) = percentiles(whole, [percentile])
        wanted = values[round((len(values) - 1) * percentile / 100)]
        assert found[0] == pytest.approx(wanted, rel=1.5 * ACCURACY * 2**level + 0.01)  # and the next rank
    halves = [Sketches(*(column[start::2] for column in parts)) for start in (0, 1)]
    sums = [together_sketches(half, pa.array([0] * 2500), 1) for half in halves]
    both = Sketches(*(pa.concat_arrays(columns) for columns in zip(*sums, strict=True)))
    assert together_sketches(both, pa.array([0, 0]), 1) == whole


def test_percentiles_of_empty_sketches_are_none() -> None:
    lists = pa.array([[], [1 << 14], []], KINDS.buckets), pa.array([[], [3], []], KINDS.counts)
    (found,) = percentiles(Sketches(pa.array([0, 0, 0], KINDS.levels), *lists), [50])
    assert np.isnan(found).tolist() == [True, False, True]
    assert found[1] == pytest.approx(1, rel=1.01 * ACCURACY)  # the end of its bucket
    none = together(GOLD, parts([]))
    assert len(none) == len(figures(GOLD, none)) == 0
    assert one(none["celsius.buckets"]).type == KINDS.buckets
