"""Results of load tests become tables and plots: percentiles are exact, of runs and of samples."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench_report.conftest import made_result
from pyspark.sql import SparkSession

from tidemq.bench.report.files import write_results
from tidemq.bench.report.runs import Case, Runs, read_runs
from tidemq.errors import UsageError
from tidemq.pipeline.load_results import PERCENTILES, percentiles, rates, summarise

RUNS = Path(__file__).parents[2] / "benchmarks/results/2026-11-22-brokers-5f72fd1"


def write_samples(path: Path, latencies: dict[str, np.ndarray]) -> None:
    path.mkdir()
    for broker, values in latencies.items():
        columns = {"broker": [broker] * len(values), "workload": ["made"] * len(values), "latency_us": values}
        pq.write_table(pa.table(columns), path / f"{broker}.parquet")


def test_tables_and_plots_of_runs_and_samples(spark: SparkSession, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    latencies = {name: draw.lognormal(5, 1.5, 30_000).astype(np.int64) for name in ("one", "two")}
    write_samples(tmp_path / "samples", latencies)
    found = summarise(spark, [str(RUNS), (tmp_path / "samples").as_uri(), str(RUNS)], tmp_path / "out")
    made = found.percentiles.filter(pl.col("workload") == "made").rows_by_key("broker", named=True)
    for broker, values in latencies.items():
        (row,) = made[broker]
        assert (row["messages"], row["exact"]) == (30_000, True)
        for name, share in PERCENTILES.items():
            assert row[name] == np.sort(values)[math.ceil(len(values) * share) - 1], name
    runs = read_runs([RUNS])  # as `tidemq bench report` has them
    assert found.percentiles.height == 2 + sum(bool(case_of(runs, *key).latencies) for key in keys(runs))
    for label, broker in keys(runs):
        case = case_of(runs, label, broker)
        row = found.rates.row(
            by_predicate=(pl.col("label") == label) & (pl.col("broker") == broker), named=True
        )
        spread = case.spread(lambda run: run.rate)
        assert spread is not None
        assert (row["rounds"], row["received_per_s"]) == (len(case.runs), spread.median)
        assert (row["received_per_s_low"], row["received_per_s_high"]) == (
            spread.values[0],
            spread.values[-1],
        )
    pictures = {path.name for path in (tmp_path / "out").glob("*.png")}
    names = ("surgemq", "throughput", "per-core", "ping", "subscribers", "latency")
    assert pictures == {f"{name}.png" for name in names}
    assert (tmp_path / "out/index.html").read_text().count("<svg") == len(pictures)
    for name in ("counts", "percentiles", "rates"):
        table = getattr(found, name)
        assert pl.read_parquet(tmp_path / f"out/{name}.parquet").equals(table), name


def case_of(runs: Runs, label: str, broker: str) -> Case:
    found = runs.case(label, broker)
    assert found is not None
    return found


def keys(runs: Runs) -> list[tuple[str, str]]:
    return [
        (label, case.broker)
        for label in runs.labels
        for case in runs.of(label)
        if case.spread(lambda run: run.rate)
    ]


def test_what_is_no_result_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"broker": ["a"], "workload": ["b"]}), tmp_path / "short.parquet")
    columns = {"broker": ["a"], "workload": ["b"], "latency_us": [1.5]}
    pq.write_table(pa.table(columns), tmp_path / "broken.parquet")
    for place, reason in (
        ("empty", "has neither files of `tidemq bench … --out` nor Parquet files of samples"),
        ("none", "has neither files of"),
        ("short.parquet", r"has no column latency_us; wanted: broker, workload, latency_us"),
        ("broken.parquet", "latency_us has no whole numbers"),
    ):
        with pytest.raises(UsageError, match=reason):
            summarise(spark, [str(tmp_path / place)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_percentile_is_a_latency_that_was_measured() -> None:
    counts = pl.DataFrame(
        {"workload": "w", "broker": "b", "latency_us": [1.0, 5.0, 9.0], "count": [1, 1, 8], "exact": True}
    )
    row = percentiles(counts).row(0, named=True)
    assert [row[name] for name in ("messages", "p50_us", "max_us")] == [10, 9.0, 9.0]
    two = percentiles(counts.with_columns(pl.Series("count", [5, 4, 1]))).row(0, named=True)
    assert [two[name] for name in ("p50_us", "p90_us", "p99_us")] == [1.0, 5.0, 9.0]


def test_rates_without_the_broker_s_cpu_have_none(tmp_path: Path) -> None:
    counts = {"sent": 10, "expected": 10, "received": 10, "seconds": 2.0}
    known = [
        made_result(summary={**counts, "broker_cpu_s": cpu_s, "received_per_s": rate})
        for cpu_s, rate in ((0.5, 5.0), (0.25, 7.0))
    ]
    unknown = made_result("far", summary={**counts, "broker_cpu_s": None})
    write_results([*known, unknown], tmp_path)
    found = rates(read_runs([tmp_path])).rows_by_key("broker", named=True)
    names = ("per_core_s", "broker_cores", "received_per_s", "rounds")
    assert [found["tidemq"][0][name] for name in names] == [60.0, 0.1875, 6.0, 2]
    assert [found["far"][0][name] for name in names[:2]] == [None, None]
