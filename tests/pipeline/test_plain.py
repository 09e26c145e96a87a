"""Plain Parquet tables: each message once as well, and a clear word on what they cannot do."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest
from pipeline.lake import ingest
from pipeline.test_formats import INFERRED
from pipeline.test_gold import RULES as WITH_GOLD

from tidemq.errors import ConfigError
from tidemq.pipeline.lake.ingest import Ingest
from tidemq.pipeline.lake.plain import PlainTable
from tidemq.pipeline.lake.table import Table, TableError

pytestmark = pytest.mark.timeout(300)


def rows(table: Table, *columns: str) -> list[tuple]:
    """By another reader, of the folder alone."""
    files = f"{table.uri.removeprefix('file://')}/batch=*/*/*.parquet"
    names = ", ".join(f'"{name}"' for name in columns)
    query = f"SELECT {names} FROM read_parquet('{files}', union_by_name = true) ORDER BY \"offset\""
    return duckdb.sql(query).fetchall()


def test_each_message_is_in_plain_files_once(spark, streaming, tmp_path):
    streaming.declare("plain")
    payloads = [b'{"a": 1}', b"{", b'{"a": 2, "b": "x"}']
    streaming.publish([("plain/1", payload) for payload in payloads])
    job = ingest(spark, streaming, tmp_path, "plain", INFERRED, format="parquet", rows_max=2)
    found = [(number, payload) for number, payload in enumerate(payloads)]
    silver = job.silver(job.rules[0])
    assert rows(job.bronze, "offset", "payload") == found
    assert rows(silver, "offset", "a", "b") == [(0, 1.0, None), (2, 2.0, "x")]
    assert rows(job.dead_letters, "offset", "reason") == [(1, "not a JSON object")]
    assert len(list((tmp_path / "lake/plain/bronze").iterdir())) == 2  # a folder for each batch
    # from the beginning again, after one of the tables was not reached
    shutil.rmtree(tmp_path / "lake/plain/checkpoint")
    shutil.rmtree(tmp_path / "lake/plain/dead_letters")
    ingest(spark, streaming, tmp_path, "plain", INFERRED, format="parquet", maintain_batches=1)
    assert rows(job.bronze, "offset", "payload") == found
    assert len(rows(silver, "offset")) == 2
    assert rows(job.dead_letters, "offset") == [(1,)]
    # two drivers that have got equally far
    epoch = rows(job.bronze, "offset", "epoch")[0][1]
    table = PlainTable(str(tmp_path / "rivals"))
    frame = spark.read.parquet(job.bronze.uri).drop("batch")

    class Late(PlainTable):
        def _written(self, attempt):
            assert table.append(frame, "plain", epoch) == 3
            return super()._written(attempt)

    with pytest.raises(TableError, match="somebody else has written"):
        Late(table.uri).append(frame, "plain", epoch)
    assert len(rows(table, "offset")) == 3
    assert table.append(frame, "plain", epoch) == 0
    with pytest.raises(TableError, match="has other columns: qos"):
        table.append(frame.drop("qos"), "plain", epoch)
    # the same folder in the other format
    with pytest.raises(TableError, match="is of plain Parquet files"):
        Table(job.bronze.uri).append(frame, "plain", epoch)


def test_what_plain_files_cannot_do_is_said(spark, streaming, tmp_path):
    with pytest.raises(
        ConfigError, match="climate has gold, whose rows are replaced; accepted: format delta"
    ):
        ingest(spark, streaming, tmp_path, "any", WITH_GOLD, format="parquet")
    with pytest.raises(ConfigError, match="format of tables is 'csv'; accepted: delta, parquet"):
        ingest(spark, streaming, tmp_path, "any", INFERRED, format="csv")
    with pytest.raises(ConfigError, match="needs a folder of a file system, and not s3://"):
        Ingest(url="", stream="any", tables="s3://bucket/lake", format="parquet").bronze  # noqa: B018
    Path(tmp_path / "delta/_delta_log").mkdir(parents=True)
    with pytest.raises(TableError, match="is one of Delta Lake"):
        PlainTable(str(tmp_path / "delta")).append(spark.range(1), "any", 1)
