"""What a batch costs: few jobs of Spark, and no more when there is much already."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pipeline.lake import ingest, rows, rules_of
from pipeline.streaming import Streaming
from pyspark.sql import SparkSession

from tidemq.pipeline.decode.payload_rules import Gold, Rule
from tidemq.pipeline.lake.gold import Fresh, refresh
from tidemq.pipeline.lake.ingest import Ingest, start_ingest
from tidemq.pipeline.lake.partials import of_readings
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, Span, Working

pytestmark = pytest.mark.timeout(400)

RULE = """
[[rules]]
name = "{name}"
filter = "{stream}/+/{name}"
format = "json"
columns = "celsius double, at timestamp"
time = "at"

[rules.gold]
window = "1 hour"
values = ["celsius"]
percentiles = [50]
gap = "1 minute"
"""


@pytest.mark.parametrize("number", [pytest.param(2, marks=pytest.mark.long), 4])
def test_jobs_of_a_batch(spark: SparkSession, streaming: Streaming, tmp_path: Path, number: int) -> None:
    """Two: one for bronze, and one for all rules, however many, with late rows, dead letters and gold."""
    names = [f"r{each}" for each in range(number)]
    stream = streaming.declare(f"jobs{number}")
    text = "".join(RULE.replace("{name}", name) for name in names)
    ingest(spark, streaming, tmp_path, stream, text)  # makes the tables
    rules = rules_of(tmp_path, text.replace("{stream}", stream))
    job = Ingest(url=streaming.url, stream=stream, tables=str(tmp_path / "lake"), rules=rules, rows_max=40)
    at = datetime.now(UTC).isoformat()
    payloads = (json.dumps({"celsius": 20, "at": at}).encode(), b'{"celsius": 1, "at": "2020-01-01T00:00Z"}')
    for batch in range(3):
        streaming.publish((f"{stream}/{batch}/{name}", each) for name in names for each in (*payloads, b"?"))
    query = start_ingest(spark, job, once=True)
    query.awaitTermination()
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId))
    batches = {each["batchId"] for each in query.recentProgress if each["numInputRows"]}
    assert batches
    assert len(jobs) == 2 * len(batches)
    for rule in job.rules:
        assert [len(rows(table, "offset")) for table in (job.silver(rule), job.late(rule))] == [3, 3]
        assert sum(count for (count,) in rows(job.gold(rule), "count", order="window")) == 3
    assert len(rows(job.dead_letters, "offset")) == 3 * number


def changed(path: Path) -> tuple[int, int]:
    """The rows that a commit has added, and the number of files that it has removed."""
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [json.loads(each["add"]["stats"])["numRecords"] for each in actions if "add" in each]
    return sum(rows), sum("remove" in each for each in actions)


DEVICES = 20
SECOND_US = 1_000_000


@pytest.mark.parametrize("batches", [150, pytest.param(500, marks=pytest.mark.long)])
def test_gold_reads_no_more_the_older_a_window_is(tmp_path: Path, batches: int) -> None:
    """So many batches into one window: each reads and replaces a row for each device, and no Spark at all."""
    gold = Gold(timedelta(days=1), ("celsius",), percentiles=(50,), gap=timedelta(minutes=5))
    rule = Rule("r", "a/#", "json", "celsius double", gold=gold)
    lake = Lake(stream="flat", tables=str(tmp_path), rules=(rule,))
    progress = Progress("flat", 1, Working("r", 1, rule.digest))
    decoded = pa.schema({"epoch": pa.int64(), "offset": pa.int64(), "date": pa.date32()})
    names = [f"device/{number}" for number in range(DEVICES)]
    columns = {"topic": pa.array(names), "client_id": pa.array(names)}
    for batch in range(batches):
        span = Span(batch * DEVICES, (batch + 1) * DEVICES, whole=True)
        lake.silver(rule).attempt(decoded, progress, span).commit([])
        at = pa.array([(batch + 86_400) * SECOND_US] * DEVICES)
        values = pa.array([float(batch)] * DEVICES)
        parts = of_readings(gold, at, columns, [values])
        refresh(cast(SparkSession, None), lake, rule, progress, Fresh(progress, span, parts))
    found = rows(lake.gold(rule), "count", "gaps_within", "celsius_mean", "celsius_p50", order="topic")
    assert found == [(batches, 0, (batches - 1) / 2, pytest.approx((batches - 1) / 2, rel=0.01))] * DEVICES
    log = Path(lake.gold(rule).uri.removeprefix("file://"), "_delta_log")
    written = [changed(path) for path in sorted(log.glob("*[0-9].json"))[-100:]]
    assert written == [(DEVICES, 1)] * 100
    assert list(log.glob("*.checkpoint.parquet")), "who opens the table reads the whole log"
