"""Delta Lake's log, by `deltalake`, without Delta's Java parts. Numbers are its transactions of
applications.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tidemq.pipeline.lake.day_files import Written
from tidemq.pipeline.lake.table_log import (
    KINDS,
    PARTITION,
    SINGLE,
    Change,
    ConflictError,
    File,
    Numbers,
    Snapshot,
    TableError,
    TableLog,
    remove_empty_folders,
)
from tidemq.pipeline.places import Storage, in_object_store

_CONFIGURATION = {  # a log has a file for each batch
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 1 day",  # a month of seconds would be millions
}


class DeltaSnapshot(Snapshot):
    """`table` is the log's own, which goes on with each commit: `version` says what it was."""

    def __init__(self, table: DeltaTable) -> None:
        super().__init__()
        self.table = table
        self.version = table.version()

    def say(self, name: str) -> int | None:
        return self.table.transaction_version(name)

    @property
    def columns(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    @property
    def required(self) -> frozenset[str]:
        return frozenset(each.name for each in self.table.schema().fields if not each.nullable)

    def read_files(self) -> list[File]:
        if "deletionVectors" in (self.table.protocol().reader_features or ()):
            raise TableError(
                f"the table {self.table.table_uri} may have deletion vectors, which are not read here; "
                "accepted: one without that feature"
            )
        said = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return [_file(each) for each in said]


class DeltaLog(TableLog):
    """Below a table's folder."""

    def __init__(self, uri: str, storage: Storage) -> None:
        super().__init__(uri)
        self._storage = storage
        self._files, self._root = storage.open(uri)
        self._table: DeltaTable | None = None  # as it was when it was looked at last

    def now(self) -> DeltaSnapshot | None:
        if self._table is None or not self._is_current(self._table.version()):
            try:
                # lists the log: that takes longer, the more versions there are
                self._table = DeltaTable(self.uri, storage_options=self._storage.of_tables)
            except TableNotFoundError:
                self._table = None
            except DeltaError as error:
                raise TableError(f"the table {self.uri} cannot be read: {error}") from error
        return DeltaSnapshot(self._table) if self._table else None

    def _is_current(self, version: int) -> bool:
        """Whether the table is there, in this version."""
        names = [f"{self._root}/_delta_log/{number:020}.json" for number in (version, version + 1)]
        there = [info.type == pafs.FileType.File for info in self._files.get_file_info(names)]
        return there == [True, False]

    def normal(self, columns: pa.Schema) -> pa.Schema:
        return pa.schema(Schema.from_arrow(columns).to_arrow())

    def make(self, columns: pa.Schema) -> Snapshot:
        self._table = DeltaTable.create(
            self.uri,
            Schema.from_arrow(columns),
            partition_by=[PARTITION],
            mode="ignore",
            configuration=_CONFIGURATION,
            storage_options=self._storage.of_tables,
        )
        return DeltaSnapshot(self._table)

    def widen(self, snapshot: Snapshot, columns: pa.Schema) -> Snapshot:
        found = cast(DeltaSnapshot, snapshot)
        with self._alone(found):
            found.table.alter.add_columns(Schema.from_arrow(columns).fields)
        return DeltaSnapshot(found.table)

    def try_commit(self, snapshot: Snapshot, change: Change) -> None:
        found = cast(DeltaSnapshot, snapshot)
        now_ms, data = time.time_ns() // 1_000_000, not change.rearranged
        actions: list[AddAction | RemoveAction] = [
            *(_removal(each, now_ms, data_change=data) for each in change.removed),
            *(replace(_addition(each), data_change=data) for each in change.added),
        ]
        with self._alone(found):
            found.table.create_write_transaction(
                actions, "append", found.table.schema(), [PARTITION], commit_properties=_said(change.numbers)
            )

    def empty(self, snapshot: Snapshot, columns: pa.Schema, numbers: Numbers) -> None:
        found = cast(DeltaSnapshot, snapshot)
        with self._alone(found):
            write_deltalake(
                found.table,
                columns.empty_table(),
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=_said(numbers),
            )

    def clean(self, keep_h: int) -> None:
        if (found := self.now()) is None:
            return
        found.table.vacuum(retention_hours=keep_h, dry_run=False, full=True, enforce_retention_duration=False)
        if in_object_store(self.uri):  # which knows no folders
            return
        remove_empty_folders(self._files, self._root, datetime.now(UTC) - timedelta(hours=keep_h))

    @contextmanager
    def _alone(self, snapshot: DeltaSnapshot) -> Iterator[None]:
        """ConflictError where anybody has committed since the snapshot. If that is known already in the
        snapshot's own `table`, deltalake does not say so.
        """
        if snapshot.table.version() != snapshot.version:
            raise ConflictError(f"somebody else has written to {self.uri} meanwhile")
        try:
            yield
        except CommitFailedError as error:
            raise ConflictError(f"somebody else has written to {self.uri} meanwhile: {error}") from error


@dataclass(frozen=True, slots=True)
class Delta:
    """The format of tables that need no catalogue: a folder is a table."""

    def open(self, uri: str, storage: Storage) -> TableLog:
        return DeltaLog(uri, storage)

    def names(self, folder: str, storage: Storage) -> list[str]:
        files, root = storage.open(folder)
        names = list(SINGLE)
        for kind in KINDS:
            found = files.get_file_info(pafs.FileSelector(f"{root}/{kind}", allow_not_found=True))
            names += [f"{kind}/{info.base_name}" for info in found]
        logs = files.get_file_info([f"{root}/{name}/_delta_log" for name in names])
        return [name for name, log in zip(names, logs, strict=True) if log.type == pafs.FileType.Directory]


DELTA = Delta()


def _said(numbers: Numbers) -> CommitProperties:
    """At once or not at all: tried again, deltalake takes a file for the table's that was put together with
    others meanwhile.
    """
    said = [Transaction(*each) for each in numbers.items()]
    return CommitProperties(app_transactions=said, max_commit_retries=0)


def _addition(written: Written) -> AddAction:
    """What the log says of a file."""
    parts = (part.split("=", 1) for part in written.path.split("/") if "=" in part)
    stats = {
        "numRecords": written.rows,
        "minValues": written.low,
        "maxValues": written.high,
    }
    return AddAction(
        path=written.path,
        size=written.size,
        partition_values=dict(parts),
        modification_time=written.modified_ms,
        data_change=True,
        stats=json.dumps(stats),
    )


def _removal(file: File, now_ms: int, *, data_change: bool) -> RemoveAction:
    return RemoveAction(
        file.path,
        data_change=data_change,
        deletion_timestamp=now_ms,
        size=file.size,
        partition_values={PARTITION: file.date or None},
    )


def _file(said: Mapping[str, Any]) -> File:
    """Of what the log says."""
    day = said.get(f"partition.{PARTITION}")
    bounds = {
        side: {name[4:]: value for name, value in said.items() if name.startswith(side) and value is not None}
        for side in ("min.", "max.")
    }
    return File(
        path=said["path"],
        size=said["size_bytes"],
        modified_ms=said["modification_time"],
        rows=said["num_records"] or 0,
        date="" if day is None else str(day),
        low=bounds["min."],
        high=bounds["max."],
    )
