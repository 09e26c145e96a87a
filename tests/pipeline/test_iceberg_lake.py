"""All jobs of a stream on tables of Iceberg, in a catalogue that is a file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pipeline.iced import OWN, by_duckdb, now
from pipeline.lake import rules_of
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import SparkSession

from tidemq.errors import UsageError
from tidemq.pipeline.lake.ingest import Ingest, run_ingest
from tidemq.pipeline.lake.rework import rework
from tidemq.pipeline.lake.status import status
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.replay import table_batches

RULES = """
[[rules]]
name = "level"
filter = "{stream}/+"
format = "json"
columns = "level double, at timestamp"
time = "at"
watermark = "3650 days"

[rules.gold]
window = "1 hour"
values = ["level"]
gap = "10 minutes"
"""


def test_a_whole_lake(spark: SparkSession, streaming: Streaming, tmp_path: Path) -> None:
    """Ingest, gold, dead letters, refine, status, maintain and replay; read by Spark and DuckDB."""
    stream = streaming.declare("frozen")
    job = Ingest(
        url=streaming.url,
        stream=stream,
        tables=str(tmp_path / "lake"),
        rules=rules_of(tmp_path, RULES.replace("{stream}", stream)),
        format=OWN,
    )
    texts = [f'{{"level": {n}, "at": "2026-01-01T00:{n:02}:00Z"}}'.encode() for n in range(20)]
    streaming.publish([(f"{stream}/a", text) for text in [*texts, b"broken"]])
    run_ingest(spark, job, once=True)
    run_ingest(spark, job, once=True)  # from its checkpoint: nothing more
    (rule,) = job.rules
    sums = "select count(*), sum(level) from {table}"
    assert by_duckdb(job.silver(rule), sums) == [(20, 190.0)]
    assert by_duckdb(job.gold(rule), "select count, level_mean, gaps from {table}") == [(20, 9.5, 1)]
    assert by_duckdb(job.dead_letters, "select count(*) from {table}") == [(1,)]
    paths = [task.file.file_path for task in now(job.silver(rule)).scan().plan_files()]
    assert spark.read.parquet(*paths).count() == 20

    rework(spark, job, "level", "10")
    assert by_duckdb(job.silver(rule), sums) == [(20, 190.0)]
    rework(spark, job, "level")
    assert by_duckdb(job.silver(rule), sums) == [(20, 190.0)]
    assert by_duckdb(job.gold(rule), "select count, level_mean from {table}") == [(20, 9.5)]
    found = {each.name: (each.rows, each.reached) for each in status(job)}
    assert found == {
        "bronze": (21, 21),
        "dead_letters": (1, None),
        "gold/level": (1, 21),
        "late/level": (0, None),
        "silver/level": (20, 21),
    }
    assert sum(batch.num_rows for batch in table_batches(spark, job.bronze)) == 21
    with pytest.raises(UsageError, match="--format iceberg"):
        next(table_batches(spark, Table(job.bronze.uri)))

    command = [*TIDEMQ, "pipeline", "maintain", stream, job.tables, "--format", "iceberg", "--keep", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "silver/level: " in done.stdout
    command = [*TIDEMQ, "pipeline", "status", stream, job.tables, "--format", "iceberg"]
    done = subprocess.run(command, capture_output=True, text=True)
    (line,) = (each.split() for each in done.stdout.splitlines() if each.startswith("silver/level"))
    assert line[1] == "20"
    assert by_duckdb(job.silver(rule), sums) == [(20, 190.0)]
