"""Tasks of ingest write the files of bronze themselves: the rows that Spark would write, each day apart."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pipeline.streaming import Streaming
from pyspark.sql import SparkSession

from tidemq.pipeline.lake import copying
from tidemq.pipeline.lake.copying import copier
from tidemq.pipeline.lake.day_files import Written
from tidemq.pipeline.lake.ingest import Ingest, run_ingest
from tidemq.pipeline.lake.messages import with_day
from tidemq.pipeline.places import ENVIRONMENT
from tidemq.pipeline.sources.stream import register
from tidemq.pipeline.sources.stream_options import SourceOptions

OPTIONS = SourceOptions.parse({"url": "http://127.0.0.1:1", "stream": "none"})
MIDNIGHT = datetime(2026, 11, 22, tzinfo=UTC)


def batch(first: int, *times: datetime, dup: bool = False) -> pa.RecordBatch:
    offsets = pa.array(range(first, first + len(times)), pa.int64())
    received = pa.array(times, pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict({"offset": offsets, "received": received, "dup": [dup] * len(times)})


def test_messages_of_several_days_go_into_a_file_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.dataset as ds  # late: it imports pandas

    hour = timedelta(hours=1)
    batches = [batch(10, MIDNIGHT - hour, MIDNIGHT), batch(12, MIDNIGHT), batch(13, MIDNIGHT - hour)]
    monkeypatch.setattr(copying, "messages_of", lambda options, wanted: iter(batches))
    given = pa.RecordBatch.from_pydict({"epoch": [7, 7], "start": [0, 20], "end": [14, 20]})
    folder = (tmp_path / "batch-1").as_uri()
    for _ in range(2):  # a task that is tried again says which files are its own
        (back,) = copier(OPTIONS, ENVIRONMENT, folder, 10, 1 << 20)(iter([given]))
    assert back.drop_columns(["files"]) == given.append_column("repeated", pa.array([False, False]))
    texts, none = back["files"].to_pylist()
    assert none == []
    written = [Written.from_json(text) for text in texts]
    paths = [tmp_path / each.path for each in written]
    assert [(each.rows, each.size) for each in written] == [(2, path.stat().st_size) for path in paths]
    assert sorted((each.low["offset"], each.high["offset"]) for each in written) == [(10, 13), (11, 12)]
    found = ds.dataset(paths, partitioning="hive").to_table().sort_by("offset").to_pylist()
    assert [(row["offset"], row["date"]) for row in found] == [
        (10, "2026-11-21"), (11, "2026-11-22"), (12, "2026-11-22"), (13, "2026-11-21")
    ]  # fmt: skip
    assert len(list(tmp_path.rglob("*.parquet"))) == 4


def test_a_range_with_a_message_that_was_sent_again_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch(0, MIDNIGHT), batch(1, MIDNIGHT, dup=True), batch(2, MIDNIGHT)]
    monkeypatch.setattr(copying, "messages_of", lambda options, wanted: iter(batches))
    given = pa.RecordBatch.from_pydict({"epoch": [7], "start": [0], "end": [3]})
    (back,) = copier(OPTIONS, ENVIRONMENT, tmp_path.as_uri(), 0, 1 << 20)(iter([given]))
    assert back["repeated"].to_pylist() == [True]


def test_a_task_holds_no_more_than_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 messages of 1 MiB on two days it holds 8 MiB: row groups say how much it wrote at a time."""
    payload = b"x" * (1 << 20)

    def message(offset: int) -> pa.RecordBatch:
        at = MIDNIGHT + timedelta(days=offset % 2)
        return pa.RecordBatch.from_pydict(
            {
                "offset": pa.array([offset], pa.int64()),
                "received": pa.array([at], pa.timestamp("us", "UTC")),
                "payload": pa.array([payload]),
                "dup": pa.array([False]),
            }
        )

    given = pa.RecordBatch.from_pydict({"epoch": [7], "start": [0], "end": [64]})
    before = pa.total_allocated_bytes()
    held = []

    def note(offset: int) -> pa.RecordBatch:
        held.append(pa.total_allocated_bytes() - before)
        return message(offset)

    monkeypatch.setattr(copying, "messages_of", lambda options, wanted: map(note, range(64)))
    list(copier(OPTIONS, ENVIRONMENT, tmp_path.as_uri(), 0, 8 << 20)(iter([given])))
    assert max(held) < 24 << 20
    files = [pq.ParquetFile(path) for path in tmp_path.rglob("*.parquet")]
    assert [file.metadata.num_rows for file in files] == [32, 32]
    groups = [file.metadata.row_group(at).num_rows for file in files for at in range(file.num_row_groups)]
    assert groups == [4] * 16


def test_bronze_has_what_spark_would_write(spark: SparkSession, streaming: Streaming, tmp_path: Path) -> None:
    streaming.declare("copied")
    streaming.publish([("copied/a", b"%d" % number) for number in range(50)])
    ingest = Ingest(url=streaming.url, stream="copied", tables=str(tmp_path))
    run_ingest(spark, ingest, once=True)
    register(spark)
    frame = with_day(spark.read.format("tidemq").options(url=streaming.url, stream="copied").load())
    wanted = pa.table(frame.toArrow()).sort_by("offset").to_pylist()
    table = DeltaTable(ingest.bronze.uri)
    assert table.to_pyarrow_table().sort_by("offset").to_pylist() == wanted
    assert isinstance(wanted[0]["date"], date)
    read = spark.read.parquet(*table.file_uris())
    assert read.count() == 50
    assert read.schema.fields == [field for field in frame.schema.fields if field.name != "date"]
