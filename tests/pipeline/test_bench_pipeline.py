"""The benchmark of the pipeline runs through on tiny sizes; its page holds every figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemq.bench.report.numbers import short

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.timeout(300)
@pytest.mark.long
def test_every_part_runs_and_is_on_the_page(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import machine
    import pipeline_report as benchmark
    from pipeline_parts import PARTS, Sizes

    sizes = Sizes(messages=4000, captured=4000, seconds=1.0, history=4000, queued=6400, samples=6400)
    samples = benchmark.run_parts(spark, PARTS, sizes, 1, warm_up=False)
    page = benchmark.markdown(samples, machine.describe(), sizes, 0.0, "1 round")
    assert len(samples) == 17
    for who, runs in samples.items():
        for what, value in runs[0].items():
            assert value > 0
            assert f"| {who} | {short(value)} {what} |" in page
    goals = [line for line in page.splitlines() if "≥" in line or "≤" in line]
    assert len(goals) == len(benchmark.GOALS)
    assert not [line for line in goals if "met" in line]  # sizes as small as these say nothing
