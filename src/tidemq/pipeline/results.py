"""Results of load tests, of many runs and brokers, as tables and plots: latencies counted by Spark.

    summarise(spark, ["runs/monday", "lake/samples"], "report")

A place has the three files of `tidemq bench … --out`, or Parquet files of samples: a row a message, with the
columns `broker`, `workload` and `latency_us`, whole microseconds. Spark counts how often each latency was;
the counts are what percentiles and plots are made of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow.fs as pafs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegralType, StructType

from tidemq.errors import UsageError
from tidemq.pipeline.places import place_uri
from tidemq.pipeline.plots import write_page

SAMPLE_COLUMNS = ("broker", "workload", "latency_us")
PARTS = 100_000
PERCENTILES = {  # columns, and the share of messages that took so long at most, in 100,000ths
    "p50_us": 50_000,
    "p90_us": 90_000,
    "p99_us": 99_000,
    "p999_us": 99_900,
    "p9999_us": 99_990,
    "p99999_us": 99_999,
    "max_us": 100_000,
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
    runs, histograms, samples = _found(spark, places)
    counts = count_latencies(histograms, samples)
    tables = Tables(counts, percentiles(counts), rates(runs))
    out.mkdir(parents=True, exist_ok=True)
    for name in ("counts", "percentiles", "rates"):
        getattr(tables, name).write_parquet(out / f"{name}.parquet")
    write_page(out, tables.counts, tables.percentiles, tables.rates)
    return tables


def _found(
    spark: SparkSession, places: Sequence[str]
) -> tuple[pl.DataFrame, list[DataFrame], list[DataFrame]]:
    """Rows of all runs; histograms and samples, which stay with Spark."""
    runs: list[pl.DataFrame] = []
    histograms: list[DataFrame] = []
    samples: list[DataFrame] = []
    for uri in map(place_uri, dict.fromkeys(places)):
        files, root = pafs.FileSystem.from_uri(uri)
        if files.get_file_info(f"{root}/summary.parquet").type == pafs.FileType.File:
            summary = _read(spark, f"{uri}/summary.parquet", RUN_COLUMNS)
            runs.append(_fetched(summary.select(*RUN_COLUMNS)))
            buckets = _read(spark, f"{uri}/latencies.parquet", ("broker", "label", "high_ns", "count"))
            histograms.append(buckets.select("broker", "label", "high_ns", "count"))
        else:
            found = _read(spark, uri, SAMPLE_COLUMNS)
            if not isinstance(found.schema["latency_us"].dataType, IntegralType):
                raise UsageError(f"{uri}: latency_us has no whole numbers")
            samples.append(found.select(*SAMPLE_COLUMNS))
    return pl.concat(runs) if runs else pl.DataFrame(schema=RUN_SCHEMA), histograms, samples


def _read(spark: SparkSession, uri: str, columns: Sequence[str]) -> DataFrame:
    try:
        frame = spark.read.parquet(uri)
    except PySparkException as error:
        first = next(iter(str(error).strip().splitlines()), "no reason was given")
        raise UsageError(
            f"{uri} has neither files of `tidemq bench … --out` nor Parquet files of samples: {first}"
        ) from error
    schema: StructType = frame.schema
    if missing := [name for name in columns if name not in schema.names]:
        raise UsageError(f"{uri} has no column {missing[0]}; wanted: {', '.join(columns)}")
    return frame


RUN_SCHEMA = {
    "broker": pl.String,
    "workload": pl.String,
    "label": pl.String,
    "arguments": pl.String,
    "sent": pl.Int64,
    "received": pl.Int64,
    "expected": pl.Int64,
    "seconds": pl.Float64,
    "received_per_s": pl.Float64,
    "broker_cpu_s": pl.Float64,
    "intact": pl.Boolean,
    "limited_by_generator": pl.Boolean,
}
RUN_COLUMNS = tuple(RUN_SCHEMA)


def _fetched(frame: DataFrame) -> pl.DataFrame:
    found = pl.from_arrow(frame.toArrow())
    assert isinstance(found, pl.DataFrame)
    return found


def count_latencies(histograms: Sequence[DataFrame], samples: Sequence[DataFrame]) -> pl.DataFrame:
    """How often each latency was, ascending, by workload and broker.

    Of histograms a bucket's upper end stands for what is in it: up to 1.6 % too much.
    """
    parts = [
        each.groupBy("workload", "broker", F.col("latency_us").cast("double").alias("latency_us"))
        .agg(F.count("*").alias("count"))
        .withColumn("exact", F.lit(True))
        for each in samples
    ]
    parts += [
        each.groupBy(
            F.col("label").alias("workload"), "broker", (F.col("high_ns") / 1000).alias("latency_us")
        )
        .agg(F.sum("count").alias("count"))
        .withColumn("exact", F.lit(False))
        for each in histograms
    ]
    schema = {"workload": pl.String, "broker": pl.String, "latency_us": pl.Float64, "count": pl.Int64}
    fetched = [_fetched(each) for each in parts]
    every = pl.concat([pl.DataFrame(schema=schema | {"exact": pl.Boolean}), *fetched])
    counts = every.group_by(*_GROUP, "latency_us").agg(pl.col("count").sum(), pl.col("exact").all())
    return counts.sort(*_GROUP, "latency_us")


def percentiles(counts: pl.DataFrame) -> pl.DataFrame:
    """A row for each workload and broker. A percentile is the least latency that at least so many of the
    messages had: one that was measured, not one between two.
    """
    total = pl.col("count").cast(pl.Int64).sum()  # times 100,000 it must fit
    below = pl.col("count").cum_sum()
    shares = [
        pl.col("latency_us").filter(below >= (total * share + PARTS - 1) // PARTS).first().alias(name)
        for name, share in PERCENTILES.items()
    ]
    ordered = counts.sort(*_GROUP, "latency_us")
    return ordered.group_by(_GROUP, maintain_order=True).agg(
        total.alias("messages"), pl.col("exact").all(), *shares
    )


def rates(runs: pl.DataFrame) -> pl.DataFrame:
    """A row for each workload and broker, medians of its rounds; nulls where the broker's CPU is unknown."""
    cpu = pl.when(pl.col("broker_cpu_s") > 0).then(pl.col("broker_cpu_s"))
    figures = runs.filter(pl.col("expected") > 0).with_columns(
        ((pl.col("sent") + pl.col("received")) / cpu).alias("per_core_s"),
        (cpu / pl.col("seconds")).alias("broker_cores"),
        pl.col("arguments")
        .map_elements(_subscribers, return_dtype=pl.Int64, skip_nulls=True)
        .alias("subscribers"),
    )
    median = [pl.col(name).median() for name in ("received_per_s", "per_core_s", "broker_cores")]
    return figures.group_by("label", "broker", maintain_order=True).agg(
        pl.col("workload").first(),
        pl.col("arguments").first(),
        pl.col("subscribers").first(),
        pl.len().cast(pl.Int64).alias("rounds"),
        pl.col("intact").sum().cast(pl.Int64).alias("intact"),
        pl.col("limited_by_generator").sum().cast(pl.Int64).alias("limited_by_generator"),
        *median,
        pl.col("received_per_s").min().alias("received_per_s_low"),
        pl.col("received_per_s").max().alias("received_per_s_high"),
    )


def _subscribers(arguments: str) -> int | None:
    """Of the workload `subscribers`: how many there were."""
    count = json.loads(arguments).get("count")
    return count if isinstance(count, int) else None
