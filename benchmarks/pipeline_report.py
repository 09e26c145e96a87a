"""Runs the parts of the pipeline's benchmark, and makes a page of what came of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from statistics import median

from machine import Machine
from pages import GOALS_HEAD, measured_on, verdict
from pipeline_parts import PARTS, Figures, Sizes, cores
from pyspark.sql import SparkSession

from tidemq.bench.report.numbers import short, spread
from tidemq.bench.report.tables import markdown_rows

GOALS = {  # of a contender: a figure, and what it is to be at least, or at most where that is negative
    "source: Spark, three columns": ("rows/s", 2.5e6),
    "bronze: ingest": ("rows/s", 0.4e6),
    "capture: with a stream": ("share", 0.6),
    "latency: 10,000 messages a second": ("p99 s", -2.0),
    "rules: 4 with gold, 10,000 messages a second": ("p99 s", -4.0),
    "history: refine, with gold": ("minutes a day", -15.0),
    "reconcile: Spark": ("s", -60.0),
    "percentiles: Spark": ("s", -30.0),
}
CONDITIONS = (
    "Messages of 64 random bytes, QoS 0; the broker with its defaults (RocksDB) on the same machine, its CPU "
    "included. `rows/s` of the source are read and dropped by Spark; of bronze they are committed. Latency "
    "is from when the broker had a message until the commit that brought it, of each message; with rules, "
    "JSON of 5,000 devices with two values, and until the commit of the rule's table, of the slowest "
    "rule. History: the same JSON in bronze, decoded by a rule that was added later, or looked at by a rule "
    "for alerts; `minutes a day` is what 864 million messages would take at that rate. Reconcile: two "
    "of four nodes have each queue. StreamReader, pyarrow, Polars and DuckDB do the same on the same data "
    "without Spark, transactions and, of DuckDB's reconcile, without what is done with packet identifiers, "
    "sessions and subscriptions. Goals are for two cores and the whole size (`--scale 1`)."
)

Samples = dict[str, list[Figures]]


def run_parts(
    spark: SparkSession, names: Iterable[str], sizes: Sizes, rounds: int, *, warm_up: bool = True
) -> Samples:
    """Each part's contenders in turn, `rounds` times, after a round that does not count."""
    samples: Samples = {}
    for name in names:
        with PARTS[name](spark, sizes) as contenders:
            for number in range(0 if warm_up else 1, rounds + 1):
                for who, run in contenders.items():
                    figures = run()
                    if number:
                        samples.setdefault(who, []).append(figures)
                    said = ", ".join(f"{short(value)} {what}" for what, value in figures.items())
                    print(f"{who}: {said}{'' if number else ' (warm-up)'}", flush=True)
    for with_stream, without in zip(
        samples.get("capture: with a stream", []), samples.get("capture: without a stream", []), strict=True
    ):
        with_stream["share"] = with_stream["rows/s"] / without["rows/s"]
    return samples


def rows(samples: Samples, whole: bool) -> list[list[str]]:
    """A line for each figure: median (lowest-highest), goal, and whether it is met by the whole size."""
    lines = []
    for who, runs in samples.items():
        for what in runs[0]:
            values = [run[what] for run in runs]
            figure = f"{spread(values)} {what}"
            goal_of, goal = GOALS.get(who, ("", 0.0))
            if goal_of != what:
                lines.append([who, figure, "", ""])
                continue
            met = median(values) >= goal if goal > 0 else median(values) <= -goal
            sign = "≥" if goal > 0 else "≤"
            lines.append([who, figure, f"{sign} {short(abs(goal))}", verdict(met if whole else None)])
    return lines


def markdown(samples: Samples, here: Machine, sizes: Sizes, load_before: float, options: str) -> str:
    """The whole page."""
    figures = ", ".join(f"{value:,} {name}" for name, value in asdict(sizes).items())
    lines = [
        "# Pipeline benchmarks",
        "",
        f"{measured_on(here, cores())}; load average when it began {load_before:.2f}.",
        "",
        f"{options}: {figures}. Median of the rounds (lowest-highest), contenders in turn. {CONDITIONS}",
        "",
        markdown_rows(GOALS_HEAD, rows(samples, sizes == Sizes.scaled(1))),
    ]
    return "\n".join(lines)
