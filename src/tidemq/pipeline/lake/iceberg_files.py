"""Iceberg's files as `pyiceberg` and this package see them, and how both reach them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

import pyarrow.fs as pafs
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType, TimestamptzType

from tidemq.pipeline.lake.day_files import COUNTED, Written
from tidemq.pipeline.lake.table_log import PARTITION, File, remove_empty_folders
from tidemq.pipeline.places import Storage, in_object_store

STORAGE = "tidemq.storage"  # the property that has the options of `Storage`, as JSON
_UNNEEDED = "tidemq-unneeded.json"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_0 = _EPOCH.date()
_UNKNOWN = (  # of a file that was not read
    *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "key_metadata"),
    *("split_offsets", "equality_ids", "sort_order_id"),
)


class StorageFileIO(PyArrowFileIO):
    """Metadata is read and written as all files of tables are: by `Storage`, with the same credentials."""

    def __init__(self, properties: Mapping[str, str] = {}) -> None:
        super().__init__(dict(properties))
        self.storage = Storage(json.loads(properties.get(STORAGE, "{}")))

    def new_input(self, location: str) -> PyArrowFile:
        files, path = self.storage.open(location)
        return PyArrowFile(location, path, files)

    def new_output(self, location: str) -> PyArrowFile:
        files, path = self.storage.open(location)
        files.create_dir(path.rpartition("/")[0])  # nothing, in an object store
        return PyArrowFile(location, path, files)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        files, path = self.storage.open(location if isinstance(location, str) else location.location)
        with suppress(FileNotFoundError):
            files.delete_file(path)


def to_data_file(uri: str, file: File | Written, schema: Schema, spec_id: int) -> DataFile:
    """As a commit says it, of a table in the folder `uri` that is partitioned by day."""
    written = isinstance(file, Written)
    day = file.path.split(f"{PARTITION}=")[1].partition("/")[0] if isinstance(file, Written) else file.date
    unknown: dict[str, Any] = dict.fromkeys(_UNKNOWN)
    found = DataFile.from_args(
        **unknown,
        content=DataFileContent.DATA,
        file_path=file.path if "://" in file.path else f"{uri}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record((date.fromisoformat(day) - _DAY_0).days if day else None),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        lower_bounds=_encoded(schema, file.low) if written else {},
        upper_bounds=_encoded(schema, file.high) if written else {},
    )
    found.spec_id = spec_id
    return found


def from_data_file(uri: str, data: DataFile, schema: Schema, came_ms: int, *, by_day: bool) -> File:
    """Of what a manifest says; `came_ms` is when the file came into the table, in milliseconds since 1970."""
    day = data.partition[0] if by_day else None
    return File(
        path=data.file_path.removeprefix(f"{uri}/"),
        size=data.file_size_in_bytes,
        modified_ms=came_ms,
        rows=data.record_count,
        date="" if day is None else (_DAY_0 + timedelta(days=day)).isoformat(),
        low=_decoded(schema, data.lower_bounds or {}),
        high=_decoded(schema, data.upper_bounds or {}),
    )


def _encoded(schema: Schema, bounds: Mapping[str, Any]) -> dict[int, bytes]:
    """By the field's identifier, as the specification has it in "Binary single-value serialization"."""
    found = {}
    for name, value in bounds.items():
        field = schema.find_field(name)
        kind = cast(PrimitiveType, field.field_type)
        if isinstance(kind, TimestamptzType):
            value = (datetime.fromisoformat(value) - _EPOCH) // timedelta.resolution
        found[field.field_id] = to_bytes(kind, value)
    return found


def _decoded(schema: Schema, bounds: Mapping[int, bytes]) -> dict[str, Any]:
    """Those that are counted."""
    found: dict[str, Any] = {}
    for field in schema.fields:
        if field.name in COUNTED and field.field_id in bounds:
            kind = cast(PrimitiveType, field.field_type)
            value: Any = from_bytes(kind, bounds[field.field_id])
            of_time = isinstance(kind, TimestamptzType)
            found[field.name] = _EPOCH + value * timedelta.resolution if of_time else value
    return found


def written_at_ms(io: FileIO, uris: Sequence[str]) -> list[int]:
    """When files were written, in milliseconds since 1970; 0 where the store does not say."""
    storage = cast(StorageFileIO, io).storage
    infos = []
    for uri in uris:
        files, path = storage.open(uri)
        infos.append(files.get_file_info(path))
    return [int(info.mtime.timestamp() * 1000) if info.mtime else 0 for info in infos]


def remove_unneeded(table: Table, uri: str, keep: timedelta) -> None:
    """Removes files below a table's folder that no snapshot which it remembers has needed for so long. A file
    of the table says since when they are not needed.
    """
    storage = cast(StorageFileIO, table.io).storage
    files, root = storage.open(uri)
    needed = {storage.open(each)[1] for each in _needed(table)}
    there = files.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    known = f"{root}/metadata/{_UNNEEDED}"
    since, now_s = _read_json(files, known), time.time()
    unneeded = {
        info.path: since.get(info.path, now_s)
        for info in there
        if info.is_file and info.path not in needed and info.path != known
    }
    gone = {path for path, since_s in unneeded.items() if now_s - since_s >= keep.total_seconds()}
    for path in gone:
        files.delete_file(path)
    with files.open_output_stream(known) as file:
        file.write(json.dumps({path: at for path, at in unneeded.items() if path not in gone}).encode())
    if not in_object_store(uri):  # which knows no folders
        remove_empty_folders(files, root, datetime.now(UTC) - keep)


def _read_json(files: pafs.FileSystem, path: str) -> dict[str, float]:
    """Empty where there is no such file, or a part of one: then files stay for longer."""
    with suppress(FileNotFoundError, ValueError), files.open_input_stream(path) as file:
        return dict(json.loads(file.read()))
    return {}


def _needed(table: Table) -> Iterator[str]:
    """URIs of all files of all snapshots."""
    yield table.metadata_location
    yield from (each.metadata_file for each in table.metadata.metadata_log)
    yield from (each.statistics_path for each in table.metadata.statistics)
    yield from (each.statistics_path for each in table.metadata.partition_statistics)
    manifests: dict[str, ManifestFile] = {}
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        manifests |= {each.manifest_path: each for each in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        yield path
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        yield from (each.data_file.file_path for each in entries)
