"""What a batch costs: few jobs of Spark, and no more when there is much already."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pipeline.lake import ingest, rows, rules_of
from pipeline.streaming import Streaming
from pyspark.sql import SparkSession

from tidemq.pipeline.lake.ingest import Ingest, start_ingest

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


@pytest.mark.parametrize("number", [2, 4])
def test_jobs_of_a_batch(spark: SparkSession, streaming: Streaming, tmp_path: Path, number: int) -> None:
    """Three, and one for each rule, with its late rows, dead letters and gold."""
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
    batches = Counter(each["batchId"] for each in query.recentProgress if each["numInputRows"])
    print(len(jobs), dict(batches))
    assert len(batches) * (1 + number) <= len(jobs) <= len(batches) * (3 + number)
    for rule in job.rules:
        assert [len(rows(table, "offset")) for table in (job.silver(rule), job.late(rule))] == [3, 3]
        assert sum(count for (count,) in rows(job.gold(rule), "count", order="window")) == 3
    assert len(rows(job.dead_letters, "offset")) == 3 * number
