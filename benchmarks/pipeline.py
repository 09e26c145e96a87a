"""Measure the pipeline: from a broker to Spark and into tables, reconciliation, percentiles; DuckDB, Polars
and plain Python beside it on the same data."""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import machine
import pages
from pipeline_parts import PARTS, Sizes
from pipeline_report import markdown, run_parts

from tidemq.pipeline.spark.session import spark_session

RESULTS = Path(__file__).parent / "results"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes: 0.01 is a look")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]", help="Spark's")
    parser.add_argument(
        "--output", type=Path, help="stem of the files; default: results/DATE-pipeline-COMMIT"
    )
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    here, load_before, sizes = machine.describe(), os.getloadavg()[0], Sizes.scaled(options.scale)
    with spark_session(options.master, "tidemq benchmark", SETTINGS) as spark:
        samples = run_parts(spark, names, sizes, options.rounds)
    text = markdown(
        samples,
        here,
        sizes,
        load_before,
        f"{options.rounds} rounds, {options.master}, scale {options.scale:g}",
    )
    print(text)
    stem = options.output or RESULTS / f"{date.today()}-pipeline-{here.commit.rstrip('+')}"
    pages.write(stem, text, here, {"samples": samples})


if __name__ == "__main__":
    main(sys.argv[1:])
