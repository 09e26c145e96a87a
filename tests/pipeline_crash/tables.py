"""Tables of a run, by `deltalake` and `pyiceberg` alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

COMMITS = {"delta": "_delta_log/*.json", "iceberg": "metadata/*.metadata.json"}  # by format


def rows_of(path: Path, table_format: str) -> list[dict[str, Any]]:
    """All of a table in this folder, which is below TABLES/STREAM."""
    if table_format == "delta":
        return list(DeltaTable(path.as_uri()).to_pyarrow_table().to_pylist())
    table = _iceberg(path)
    assert table is not None, f"there is no table {path}"
    return list(table.scan().to_arrow().to_pylist())


def number_of(path: Path, table_format: str, name: str) -> int | None:
    """What its log says of how far something is; None where it says nothing, or there is no table."""
    if table_format == "delta":
        try:
            return DeltaTable(path).transaction_version(name)
        except TableNotFoundError:
            return None
    table = _iceberg(path)
    snapshot = table.current_snapshot() if table else None
    said = snapshot.summary.get("tidemq.numbers") if snapshot and snapshot.summary else None
    found: dict[str, int] = json.loads(said) if said else {}
    return found.get(name)


def _iceberg(path: Path) -> Table | None:
    kind = path.parent.name
    stream = path.parent.parent if kind in ("silver", "late", "births", "gold") else path.parent
    name = f"{kind}_{path.name}" if stream != path.parent else path.name
    database = stream.parent / "catalog.db"
    if not database.exists():
        return None
    try:
        return SqlCatalog("tidemq", uri=f"sqlite:///{database}?timeout=60").load_table((stream.name, name))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
