"""Tasks of ingest write the files of bronze themselves: the rows that Spark would write, each day apart."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pipeline.streaming import Streaming
from pyspark.sql import SparkSession

from tidemq.pipeline.lake import copying
from tidemq.pipeline.lake.copying import copier
from tidemq.pipeline.lake.ingest import Ingest, run_ingest, with_day
from tidemq.pipeline.sources.stream import register
from tidemq.pipeline.sources.stream_options import SourceOptions

OPTIONS = SourceOptions.parse({"url": "http://127.0.0.1:1", "stream": "none"})
MIDNIGHT = datetime(2026, 11, 22, tzinfo=UTC)


def batch(first: int, *times: datetime) -> pa.RecordBatch:
    offsets = pa.array(range(first, first + len(times)), pa.int64())
    return pa.RecordBatch.from_pydict(
        {"offset": offsets, "received": pa.array(times, pa.timestamp("us", "UTC"))}
    )


def test_messages_of_several_days_go_into_a_file_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.dataset as ds  # late: it imports pandas

    hour = timedelta(hours=1)
    batches = [batch(10, MIDNIGHT - hour, MIDNIGHT), batch(12, MIDNIGHT), batch(13, MIDNIGHT - hour)]
    monkeypatch.setattr(copying, "messages_of", lambda options, wanted: iter(batches))
    given = pa.RecordBatch.from_pydict({"epoch": [7, 7], "start": [0, 20], "end": [14, 20]})
    for _ in range(2):  # a task that is tried again leaves nothing twice
        (back,) = copier(OPTIONS, tmp_path.as_uri(), 10)(iter([given]))
    assert back == given
    found = ds.dataset(tmp_path, partitioning="hive").to_table().sort_by("offset").to_pylist()
    assert [(row["offset"], row["date"]) for row in found] == [
        (10, "2026-11-21"), (11, "2026-11-22"), (12, "2026-11-22"), (13, "2026-11-21")
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == [f"{10:020}.parquet"] * 2


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
