"""Iceberg's tables of tests, by other readers."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
from pyiceberg.table import Table as IcebergTable

from tidemq.pipeline.lake.iceberg_log import Iceberg, IcebergSnapshot
from tidemq.pipeline.lake.table import Table

OWN = Iceberg("tidemq", own=True)


def now(table: Table) -> IcebergTable:
    """As pyiceberg has it."""
    found = table.now()
    assert isinstance(found, IcebergSnapshot)
    return found.table


def offsets(table: Table) -> list[int]:
    """By pyiceberg's reader."""
    found: list[int] = now(table).scan().to_arrow()["offset"].to_pylist()
    return sorted(found)


def by_duckdb(table: Table, query: str) -> list[tuple[Any, ...]]:
    """What a query gives; `{table}` in it is the table. By DuckDB's own reader."""
    connection = duckdb.connect()
    for name in ("httpfs", "avro", "iceberg"):
        package = Path(str(files(f"duckdb_extension_{name}")))
        (extension,) = package.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    metadata = now(table).metadata_location.removeprefix("file://")
    return connection.execute(query.format(table=f"iceberg_scan('{metadata}')")).fetchall()
