"""Rules and jobs of tests, and their tables by another reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pipeline.streaming import Streaming
from pyspark.sql import SparkSession

from tidemq.pipeline.decode.payload_rules import Rule, load_rules
from tidemq.pipeline.lake.ingest import Ingest, run_ingest
from tidemq.pipeline.lake.table import Table


def rules_of(tmp_path: Path, text: str) -> tuple[Rule, ...]:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    return load_rules(file)


def rows(table: Table, *columns: str, order: str = "offset") -> list[tuple[Any, ...]]:
    """In the order of a column, then as the table has them."""
    found = DeltaTable(table.uri, storage_options=table.storage.of_tables).to_pyarrow_table().sort_by(order)
    return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


def ingest(
    spark: SparkSession, streaming: Streaming, tmp_path: Path, stream: str, rules: str, **more: Any
) -> Ingest:
    """The job, after all that the stream has; `{stream}` in the rules is its name."""
    job = Ingest(
        url=streaming.url,
        stream=stream,
        tables=str(tmp_path / "lake"),
        rules=rules_of(tmp_path, rules.replace("{stream}", stream)),
        **more,
    )
    run_ingest(spark, job, once=True)
    return job
