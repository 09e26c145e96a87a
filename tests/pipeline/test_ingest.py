"""Each message of a stream is in the table once: after kills, with a lost checkpoint, and beside rivals."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pipeline.streaming import Streaming
from pyspark.sql import SparkSession
from waiting import wait_until

from tidemq.client.streams import StreamReader
from tidemq.pipeline.decode.payload_rules import Rule
from tidemq.pipeline.lake.day_files import DayFiles
from tidemq.pipeline.lake.ingest import Ingest, run_ingest
from tidemq.pipeline.lake.progress import Progress
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import ConflictError
from tidemq.pipeline.places import ENVIRONMENT
from tidemq.pipeline.spark.jobs import JobError

pytestmark = pytest.mark.timeout(400)


def rows(job: Ingest) -> list[dict[str, Any]]:
    """All rows of the bronze table, by another reader."""
    table = DeltaTable(job.bronze.uri).to_pyarrow_table()
    found: list[dict[str, Any]] = table.sort_by([("epoch", "ascending"), ("offset", "ascending")]).to_pylist()
    return found


def offsets(job: Ingest) -> list[int]:
    return [row["offset"] for row in rows(job)]


@pytest.fixture
def job(streaming: Streaming, tmp_path: Path) -> Callable[..., Ingest]:
    """`job("stream", …)` declares it and gives what ingests it."""

    def job(name: str, retention_bytes: int = 0, **more: Any) -> Ingest:
        streaming.declare(name, retention_bytes=retention_bytes)
        return Ingest(url=streaming.url, stream=name, tables=str(tmp_path / "lake"), **more)

    return job


def test_each_message_is_in_bronze_once_also_without_the_checkpoint(
    spark: SparkSession, streaming: Streaming, job: Callable[..., Ingest], tmp_path: Path
) -> None:
    ingest = job("once", rows_max=40)
    streaming.publish([("once/a", b"%d" % number) for number in range(100)])
    run_ingest(spark, ingest, once=True)
    found = rows(ingest)
    assert [(row["offset"], row["topic"], row["payload"]) for row in found] == [
        (number, "once/a", b"%d" % number) for number in range(100)
    ]
    assert all(row["date"] == row["received"].astimezone(UTC).date() for row in found)
    shutil.rmtree(tmp_path / "lake/once/checkpoint")
    streaming.publish([("once/a", b"x")] * 10)
    run_ingest(spark, ingest, once=True)
    assert offsets(ingest) == list(range(110))


def test_a_job_without_its_checkpoint_goes_on_where_its_table_is(
    spark: SparkSession, streaming: Streaming, job: Callable[..., Ingest], tmp_path: Path
) -> None:
    """At the latest; and a table that was removed is made anew, whole."""
    rule = Rule("all", "lost/#", "number", "value double")
    ingest = job("lost", rows_max=10, rules=(rule,))
    streaming.publish([("lost/a", b"%d" % number) for number in range(30)])
    run_ingest(spark, ingest, once=True)
    shutil.rmtree(tmp_path / "lake/lost/checkpoint")
    shutil.rmtree(tmp_path / "lake/lost/silver")
    streaming.publish([("lost/a", b"%d" % number) for number in range(30, 45)])
    run_ingest(spark, replace(ingest, start="latest"), once=True)
    assert offsets(ingest) == list(range(45))
    silver = DeltaTable(ingest.silver(rule).uri).to_pyarrow_table()
    assert sorted(silver.column("value").to_pylist()) == list(range(45))


def test_who_commits_second_is_refused_and_who_comes_late_adds_nothing(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "lake/rivals/bronze"))
    columns = pa.schema({"epoch": pa.int64(), "offset": pa.int64(), "date": pa.date32()})
    progress = Progress("rivals", 1)

    def written(end: int) -> Callable[[], int]:
        """To bring the table up to an offset; its files are there, and one that its task did not finish."""
        attempt = table.attempt(columns, progress)
        rows = [{"epoch": 1, "offset": number} for number in range(attempt.reached, end)]
        dates = pa.array([date(2026, 1, 31)] * len(rows))
        files = DayFiles(ENVIRONMENT, bytes_max=1)
        if rows:
            DayFiles(ENVIRONMENT, bytes_max=1).add(attempt.folder, pa.RecordBatch.from_pylist(rows), dates)
            with files:
                files.add(attempt.folder, pa.RecordBatch.from_pylist(rows), dates)
        return partial(attempt.commit, files.written)

    assert written(10)() == 10
    second, first = written(20), written(20)
    assert first() == 10
    with pytest.raises(ConflictError, match="somebody else has written"):
        second()
    assert written(20)() == 0
    assert table.reached(progress) == 20
    assert sorted(DeltaTable(table.uri).to_pyarrow_table()["offset"].to_pylist()) == list(range(20))


def test_what_no_restart_mends_ends_the_job_with_the_reason(
    spark: SparkSession, streaming: Streaming, job: Callable[..., Ingest], tmp_path: Path
) -> None:
    ingest = job("ends", retention_bytes=1 << 20)
    streaming.publish([("ends/a", b"x")] * 10)
    run_ingest(spark, ingest, once=True)
    streaming.expire("ends")
    with pytest.raises(JobError, match=r"^the messages of offsets 10 to \d+ of the stream ends are older"):
        run_ingest(spark, ingest, once=True)
    other = Ingest(url=streaming.url, stream="ends", tables=str(tmp_path / "other"))
    write_deltalake(other.bronze.uri, pa.table({"offset": ["a"]}))
    with pytest.raises(JobError, match="has no column epoch"):
        run_ingest(spark, other, once=True)


def test_what_was_compacted_is_neither_lost_nor_waited_for(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    """Whole batches have no message left, the first one too, before there is a table."""
    rule = Rule("all", "states/#", "number", "value double")
    name = streaming.declare("states", last=True, retention_bytes=8 << 20)  # segments of 1 MiB
    job = Ingest(url=streaming.url, stream=name, tables=str(tmp_path / "lake"), rows_max=20, rules=(rule,))
    reader = StreamReader(streaming.url, name)

    def kept() -> list[int]:
        batches = reader.read(0, columns=("offset",))
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    streaming.publish((f"states/{number % 10}", random.randbytes(20_000)) for number in range(200))
    wait_until(lambda: kept()[0] > 20, "the first batch has gone")
    before = kept()
    run_ingest(spark, job, once=True)
    assert {*range(190, 200)} <= set(offsets(job)) <= set(before)
    streaming.publish((f"states/{number}", b"%d" % number) for number in range(10))
    run_ingest(spark, job, once=True)
    assert offsets(job) == sorted(set(offsets(job)))
    silver = DeltaTable(job.silver(rule).uri).to_pyarrow_table()
    assert sorted(silver.column("value").to_pylist()) == list(range(10))
