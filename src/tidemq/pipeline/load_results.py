"""Results of load tests, of many runs and brokers, as tables and plots; of samples Spark counts latencies.

    summarise(spark, ["runs/monday", "lake/samples"], "report")

A place has the three files of `tidemq bench … --out`, or Parquet files of samples: a row a message, with the
columns `broker`, `workload` and `latency_us`, whole microseconds. Spark counts how often each latency was.
What is made of the counts, and of the runs, the load tools draw (`tidemq.bench.report`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import polars as pl
import pyarrow.fs as pafs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegralType

from tidemq.bench.report.figures import PUBLISHED
from tidemq.bench.report.numbers import NOTHING
from tidemq.bench.report.page import section, table_text, write_page
from tidemq.bench.report.runs import Case, Runs, read_runs
from tidemq.bench.report.tables import Cell, Table
from tidemq.bench.result import Bucket, quantile_ns
from tidemq.errors import UsageError
from tidemq.pipeline.places import ENVIRONMENT, place_uri, spark_uri

SAMPLE_COLUMNS = ("broker", "workload", "latency_us")
PERCENTILES = {  # columns, and the share of messages that took so long at most
    "p50_us": Fraction(50, 100),
    "p90_us": Fraction(90, 100),
    "p99_us": Fraction(99, 100),
    "p999_us": Fraction(999, 1000),
    "p9999_us": Fraction(9999, 10_000),
    "p99999_us": Fraction(99_999, 100_000),
    "max_us": Fraction(1),
}
COUNTS = {
    "workload": pl.String,
    "broker": pl.String,
    "latency_us": pl.Float64,
    "count": pl.Int64,
    "exact": pl.Boolean,
}
RATES = {
    "label": pl.String,
    "broker": pl.String,
    "workload": pl.String,
    "arguments": pl.String,
    "subscribers": pl.Int64,
    "rounds": pl.Int64,
    "intact": pl.Int64,
    "limited_by_generator": pl.Int64,
    "received_per_s": pl.Float64,
    "per_core_s": pl.Float64,
    "broker_cores": pl.Float64,
    "received_per_s_low": pl.Float64,
    "received_per_s_high": pl.Float64,
}
_GROUP = ["workload", "broker"]


@dataclass(frozen=True, slots=True)
class Tables:
    """What is written: OUT/NAME.parquet, and drawn. docs/pipeline.md has the columns."""

    counts: pl.DataFrame
    percentiles: pl.DataFrame
    rates: pl.DataFrame

    def to_text(self) -> str:
        """A line for each workload and broker."""
        lines = []
        for row in self.rates.iter_rows(named=True):
            core = f", {row['per_core_s']:,.0f} in and out/s and core" if row["per_core_s"] else ""
            lines.append(f"{row['label']}, {row['broker']}: {row['received_per_s']:,.0f}/s{core}")
        for row in self.percentiles.iter_rows(named=True):
            figures = ", ".join(f"{name.removesuffix('_us')} {row[name]:,.7g}" for name in PERCENTILES)
            lines.append(f"{row['workload']}, {row['broker']}: {figures} µs of {row['messages']:,}")
        return "\n".join(lines)


def summarise(spark: SparkSession, places: Sequence[str], out: Path) -> Tables:
    """Writes tables, plots and a page with both into the folder `out`; UsageError where a place has no
    results.
    """
    directories, samples = _found(spark, places)
    runs = read_runs(directories) if directories else Runs(())
    counts = _added([_counts_of(runs), *map(count_latencies, samples)])
    tables = Tables(counts, percentiles(counts), rates(runs))
    out.mkdir(parents=True, exist_ok=True)
    for name in ("counts", "percentiles", "rates"):
        getattr(tables, name).write_parquet(out / f"{name}.parquet")
    shown = {"Latencies, µs": tables.percentiles, "Rates": tables.rates.drop("arguments")}
    parts = [section(title, "", _table(title, frame)) for title, frame in shown.items() if frame.height]
    write_page(out / "index.html", "Results of load tests", "", parts, _drawn(runs, counts), PUBLISHED)
    return tables


def _found(spark: SparkSession, places: Sequence[str]) -> tuple[list[str], list[DataFrame]]:
    """Directories of the load tools; samples, which stay with Spark."""
    directories: list[str] = []
    samples: list[DataFrame] = []
    for uri in map(place_uri, dict.fromkeys(places)):
        files, root = ENVIRONMENT.open(uri)
        if files.get_file_info(f"{root}/summary.parquet").type == pafs.FileType.File:
            directories.append(uri)
        else:
            samples.append(_samples(spark, uri))
    return directories, samples


def _samples(spark: SparkSession, uri: str) -> DataFrame:
    try:
        frame = spark.read.parquet(spark_uri(uri))
    except PySparkException as error:
        first = next(iter(str(error).strip().splitlines()), "no reason was given")
        raise UsageError(
            f"{uri} has neither files of `tidemq bench … --out` nor Parquet files of samples: {first}"
        ) from error
    if missing := [name for name in SAMPLE_COLUMNS if name not in frame.schema.names]:
        raise UsageError(f"{uri} has no column {missing[0]}; wanted: {', '.join(SAMPLE_COLUMNS)}")
    if not isinstance(frame.schema["latency_us"].dataType, IntegralType):
        raise UsageError(f"{uri}: latency_us has no whole numbers")
    return frame.select(*SAMPLE_COLUMNS)


def count_latencies(samples: DataFrame) -> pl.DataFrame:
    """How often each latency was, by workload and broker, in the columns of COUNTS."""
    grouped = samples.groupBy(*_GROUP, F.col("latency_us").cast("double").alias("latency_us"))
    counted = grouped.agg(F.count("*").alias("count")).withColumn("exact", F.lit(True))
    found = pl.from_arrow(counted.toArrow())
    assert isinstance(found, pl.DataFrame)
    return found.select(*COUNTS)


def _counts_of(runs: Runs) -> pl.DataFrame:
    """The same of histograms: a bucket's upper end stands for what is in it, up to 1.6 % too much."""
    rows = [
        (case.label, case.broker, bucket.high_ns / 1000, bucket.count, False)
        for case in runs.cases
        for bucket in case.latencies
    ]
    return pl.DataFrame(rows, COUNTS, orient="row")


def _added(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """All counts, ascending."""
    counts = pl.concat(parts).group_by(*_GROUP, "latency_us")
    added = counts.agg(pl.col("count").sum(), pl.col("exact").all())
    return added.sort(*_GROUP, "latency_us")


def _histograms(counts: pl.DataFrame) -> Iterator[tuple[str, str, bool, tuple[Bucket, ...]]]:
    """Workload, broker, whether all is exact, and the latencies."""
    ordered = counts.sort(*_GROUP, "latency_us")
    for (workload, broker), rows in ordered.group_by(_GROUP, maintain_order=True):
        ends_ns = (rows["latency_us"] * 1000).round().cast(pl.Int64).to_list()
        buckets = tuple(map(Bucket, ends_ns, ends_ns, rows["count"].to_list()))
        yield str(workload), str(broker), bool(rows["exact"].all()), buckets


def percentiles(counts: pl.DataFrame) -> pl.DataFrame:
    """A row for each workload and broker. A percentile is the least latency that at least so many of the
    messages had: one that was measured, not one between two.
    """
    rows = [
        {
            "workload": workload,
            "broker": broker,
            "messages": sum(bucket.count for bucket in buckets),
            "exact": exact,
            **{name: quantile_ns(buckets, share) / 1000 for name, share in PERCENTILES.items()},
        }
        for workload, broker, exact, buckets in _histograms(counts)
    ]
    columns = {"workload": pl.String, "broker": pl.String, "messages": pl.Int64, "exact": pl.Boolean}
    return pl.DataFrame(rows, columns | dict.fromkeys(PERCENTILES, pl.Float64))


def rates(runs: Runs) -> pl.DataFrame:
    """A row for each workload and broker, medians of its rounds; nulls where the broker's CPU is unknown."""
    rows = []
    for case in runs.cases:
        spread = case.spread(lambda run: run.rate)
        if spread is None:
            continue
        core, cores = case.spread(lambda run: run.per_core_s), case.spread(lambda run: run.broker_cores)
        rounds = [run for run in case.runs if run.rate is not None]
        rows.append(
            {
                "label": case.label,
                "broker": case.broker,
                "workload": rounds[0].workload,
                "arguments": rounds[0].arguments,
                "subscribers": rounds[0].subscribers,
                "rounds": len(rounds),
                "intact": sum(run.intact for run in rounds),
                "limited_by_generator": sum(run.limited_by_generator for run in rounds),
                "received_per_s": spread.median,
                "per_core_s": core and core.median,
                "broker_cores": cores and cores.median,
                "received_per_s_low": spread.values[0],
                "received_per_s_high": spread.values[-1],
            }
        )
    return pl.DataFrame(rows, RATES)


def _drawn(runs: Runs, counts: pl.DataFrame) -> Runs:
    """The runs with all latencies that were counted, and cases that only samples have."""
    cases = {(case.label, case.broker): case for case in runs.cases}
    for workload, broker, _exact, buckets in _histograms(counts):
        case = cases.get((workload, broker), Case(label=workload, broker=broker))
        cases[workload, broker] = replace(case, latencies=buckets)
    return Runs(cases.values())


def _table(title: str, frame: pl.DataFrame) -> str:
    rows = tuple(tuple(Cell(_shown(value)) for value in row) for row in frame.iter_rows())
    return table_text(Table(title, "", tuple(frame.columns), rows))


def _shown(value: object) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
