"""Iceberg's snapshots in a catalogue, by `pyiceberg`. Numbers are in the summary of each snapshot that is
committed here, all of them: so a table that its owner rolls back has the numbers of its rows.

Files are those that Delta's tables have. They have no field identifiers and no column `date`: readers find
columns by the table's name mapping, and the date in the partition (Iceberg's specification, "Column
Projection").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import cast

import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.table.snapshots import Snapshot as TableSnapshot
from pyiceberg.transforms import IdentityTransform
from sqlalchemy import URL
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from tidemq.errors import ConfigError, UsageError
from tidemq.pipeline.lake.iceberg_files import (
    STORAGE,
    StorageFileIO,
    from_data_file,
    remove_unneeded,
    to_data_file,
    written_at_ms,
)
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
)
from tidemq.pipeline.places import Storage

NUMBERS = "tidemq.numbers"  # in a snapshot's summary, as JSON; and a property, see `_kept_numbers`
SNAPSHOTS_MAX = 20  # that a table remembers: each commit writes all of them, after pyiceberg has copied them
METADATA_MAX = 100  # versions of its metadata that readers find
_LOCKED_S = 60  # while somebody else commits to a table of the same catalogue
_PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(METADATA_MAX),
}
_NEVER = {TableProperties.COMMIT_NUM_RETRIES: "0"}  # by pyiceberg, which does not look at numbers


class IcebergSnapshot(Snapshot):
    """`table` goes on with each commit that is made by it: `metadata` says what it was. `manifests` has the
    files of manifests that were read before, which do not change.
    """

    def __init__(self, table: Table, uri: str, manifests: dict[str, list[File]]) -> None:
        super().__init__()
        properties = table.metadata.properties | _NEVER  # of this object, not of the table
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        self.table = table
        self.metadata = table.metadata_location
        self._uri = uri
        self._manifests = manifests
        self._numbers: dict[str, int] | None = None

    def say(self, name: str) -> int | None:
        return self.numbers().get(name)

    def numbers(self) -> dict[str, int]:
        """All, of the newest snapshot that has some: others commit, too. TableError where it has expired."""
        if self._numbers is None:
            found = self._kept_numbers()
            if found is None:
                for snapshot in self._line():
                    found = _said(snapshot)
            self._numbers = found or {}
        return self._numbers

    def _kept_numbers(self) -> dict[str, int] | None:
        """Those of the last snapshot that was committed here, if others have let it expire, and that of now
        came behind it; else None.
        """
        current = self.table.current_snapshot()
        kept = json.loads(self.table.properties.get(NUMBERS, "{}"))
        if not kept or current is None or self.table.snapshot_by_id(kept["snapshot"]):
            return None
        later = (current.sequence_number or 0) > kept["sequence"]
        found: dict[str, int] = kept["numbers"]
        return found if later else None

    def needed(self) -> set[int]:
        """Snapshots that must not be forgotten: those of branches and tags, and all from the newest to the
        one that has the numbers.
        """
        named = {each.snapshot_id for each in self.table.metadata.refs.values()}
        return named | {each.snapshot_id for each in self._line()} if self._kept_numbers() is None else named

    def _line(self) -> Iterator[TableSnapshot]:
        """The newest snapshot, and those before it up to one that has numbers."""
        snapshot = self.table.current_snapshot()
        while snapshot is not None:
            yield snapshot
            if _said(snapshot) is not None:
                return
            before = snapshot.parent_snapshot_id
            snapshot = self.table.snapshot_by_id(before) if before is not None else None
        if NUMBERS in self.table.properties:
            raise TableError(
                f"the table {self._uri} does not say how far it has got: somebody else has written to it, "
                "and its older snapshots have expired; accepted: a table in another place"
            )

    @property
    def columns(self) -> pa.Schema:
        return _arrow(self.table.schema())

    @property
    def required(self) -> frozenset[str]:
        return frozenset(each.name for each in self.table.schema().fields if each.required)

    def read_files(self) -> list[File]:
        current = self.table.current_snapshot()
        read: dict[str, list[File]] = {}
        for manifest in current.manifests(self.table.io) if current else ():
            if manifest.content == ManifestContent.DELETES:
                raise TableError(
                    f"rows of {self._uri} were deleted by delete files, which are not read here; accepted: "
                    "a table whose data files were rewritten without them (`rewrite_data_files`)"
                )
            path = manifest.manifest_path
            read[path] = self._manifests[path] if path in self._manifests else self._read(manifest)
        self._manifests.clear()
        self._manifests.update(read)
        return [file for files in read.values() for file in files]

    def _read(self, manifest: ManifestFile) -> list[File]:
        table = self.table
        by_day = _is_by_day(table, manifest.partition_spec_id)
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        came_ms = self._came_ms(entries)
        return [
            from_data_file(self._uri, each.data_file, table.schema(), ms, by_day=by_day)
            for each, ms in zip(entries, came_ms, strict=True)
        ]

    def _came_ms(self, entries: Sequence[ManifestEntry]) -> list[int]:
        """When files came into the table; of snapshots that are forgotten, when they were written."""
        times_ms = {each.snapshot_id: each.timestamp_ms for each in self.table.snapshots()}
        paths = [each.data_file.file_path for each in entries if each.snapshot_id not in times_ms]
        written_ms = dict(zip(paths, written_at_ms(self.table.io, paths), strict=True))
        return [
            times_ms[each.snapshot_id]
            if each.snapshot_id in times_ms
            else written_ms[each.data_file.file_path]
            for each in entries
        ]


class IcebergLog(TableLog):
    """Of a table in a catalogue, by its namespace and name."""

    def __init__(self, uri: str, catalog: Catalog, identifier: tuple[str, str]) -> None:
        super().__init__(uri)
        self._catalog = catalog
        self._identifier = identifier
        self._manifests: dict[str, list[File]] = {}

    def now(self) -> IcebergSnapshot | None:
        try:
            table = self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except (RESTError, SQLAlchemyError) as error:
            raise TableError(f"the catalogue fails, with {self.uri}: {error}") from error
        if table.location().rstrip("/") != self.uri:
            raise TableError(
                f"the catalogue's table {'.'.join(self._identifier)} is in {table.location()}; "
                f"accepted: {self.uri}"
            )
        return IcebergSnapshot(table, self.uri, self._manifests)

    def normal(self, columns: pa.Schema) -> pa.Schema:
        return _arrow(_pyarrow_to_schema_without_ids(columns))  # nothing public does that

    def make(self, columns: pa.Schema) -> Snapshot:
        with suppress(NamespaceAlreadyExistsError, IntegrityError):  # which pyiceberg lets out of a race
            self._catalog.create_namespace_if_not_exists(self._identifier[0])
        with suppress(TableAlreadyExistsError, CommitFailedException):
            self._create(columns)
        return self._there()

    def _create(self, columns: pa.Schema) -> None:
        creation = self._catalog.create_table_transaction(
            self._identifier, columns, location=self.uri, properties=_PROPERTIES
        )
        with creation as transaction:
            with transaction.update_spec() as spec:
                spec.add_identity(PARTITION)
            _map_names(transaction)

    def _there(self) -> IcebergSnapshot:
        if (found := self.now()) is None:
            raise ConflictError(f"somebody else has removed {self.uri} meanwhile")
        return found

    def widen(self, snapshot: Snapshot, columns: pa.Schema) -> Snapshot:
        found = cast(IcebergSnapshot, snapshot)
        self._refuse_changed(found)
        with self._alone(found), found.table.transaction() as transaction:
            with transaction.update_schema() as schema:
                schema.union_by_name(columns)
            _map_names(transaction)
        return self._there()

    def try_commit(self, snapshot: Snapshot, change: Change) -> None:
        found = cast(IcebergSnapshot, snapshot)
        self._refuse_changed(found)
        with self._alone(found), found.table.transaction() as transaction:
            self._stage(transaction, change, found)
        if len(found.table.snapshots()) > 2 * SNAPSHOTS_MAX:
            self._forget()

    def _refuse_changed(self, snapshot: IcebergSnapshot) -> None:
        """TableError for a table that its owner has partitioned otherwise, or with renamed columns: its older
        files are read by their own names here, and would lose them.
        """
        if not _is_by_day(snapshot.table, snapshot.table.spec().spec_id):
            raise TableError(f"the table {self.uri} is not partitioned by {PARTITION} alone")
        mapping = snapshot.table.name_mapping()
        if mapping and (renamed := sorted(" and ".join(each) for each in _renamed(mapping.root))):
            raise TableError(f"{self.uri} has a column with two names: {renamed[0]}; accepted: the first one")

    def empty(self, snapshot: Snapshot, columns: pa.Schema, numbers: Numbers) -> None:
        found = cast(IcebergSnapshot, snapshot)
        wanted = {each.name: each.type for each in self.normal(columns)}
        same = {each.name for each in found.columns if wanted.get(each.name) == each.type}
        with self._alone(found), found.table.transaction() as transaction:
            # a column of another type is another column
            with transaction.update_schema(allow_incompatible_changes=True) as schema:
                for name in (each.name for each in found.columns if each.name not in same):
                    schema.delete_column(name)
            with transaction.update_schema() as schema:
                schema.union_by_name(pa.schema([each for each in columns if each.name not in same]))
            _map_names(transaction)
            self._stage(transaction, Change(numbers, (), found.files(), rearranged=False), found)

    def _stage(self, transaction: Transaction, change: Change, snapshot: IcebergSnapshot) -> None:
        """A change, as one snapshot."""
        schema, spec_id = transaction.table_metadata.schema(), transaction.table_metadata.default_spec_id
        numbers = snapshot.numbers() | dict(change.numbers)
        said = {NUMBERS: json.dumps(numbers)}
        update = transaction.update_snapshot(snapshot_properties=said)
        with update.overwrite() if change.removed else update.merge_append() as staged:
            for file in change.removed:
                staged.delete_data_file(to_data_file(self.uri, file, schema, spec_id))
            for written in change.added:
                staged.append_data_file(to_data_file(self.uri, written, schema, spec_id))
        made = transaction.table_metadata.snapshot_by_id(staged.snapshot_id)
        sequence = made.sequence_number if made else 0
        kept = {"snapshot": staged.snapshot_id, "sequence": sequence, "numbers": numbers}
        transaction.set_properties({NUMBERS: json.dumps(kept)})

    def clean(self, keep_h: int) -> None:
        keep = timedelta(hours=keep_h)
        self._forget(datetime.now(UTC) - keep)
        if found := self.now():
            remove_unneeded(found.table, self.uri, keep)

    def _forget(self, before: datetime | None = None) -> None:
        """Snapshots, not their files: those that are older, and all beyond the newest `SNAPSHOTS_MAX`."""
        if (found := self.now()) is None:
            return
        kept, since_ms = found.needed(), before.timestamp() * 1000 if before else 0.0
        by_age = sorted(found.table.snapshots(), key=lambda each: each.timestamp_ms, reverse=True)
        gone = [
            each.snapshot_id
            for place, each in enumerate(by_age)
            if each.snapshot_id not in kept
            and _said(each) is not None  # others' are theirs
            and (place >= SNAPSHOTS_MAX or each.timestamp_ms < since_ms)
        ]
        if gone:
            with suppress(ConflictError), self._alone(found):
                found.table.maintenance.expire_snapshots().by_ids(gone).commit()

    @contextmanager
    def _alone(self, snapshot: IcebergSnapshot) -> Iterator[None]:
        """ConflictError where anybody has committed since the snapshot. If that is known already in the
        snapshot's own `table`, pyiceberg does not say so.
        """
        if snapshot.table.metadata_location != snapshot.metadata:
            raise ConflictError(f"somebody else has written to {self.uri} meanwhile")
        try:
            yield
        except (CommitFailedException, ValidationException) as error:
            raise ConflictError(f"somebody else has written to {self.uri} meanwhile: {error}") from error
        except CommitStateUnknownException as error:
            raise TableError(f"it is not known whether {self.uri} has a commit: {error}") from error
        except (RESTError, SQLAlchemyError) as error:
            raise TableError(f"the catalogue fails, with {self.uri}: {error}") from error


@dataclass(frozen=True, slots=True)
class Iceberg:
    """Tables in a catalogue: `bronze`, `silver_RULE` and so on, in a namespace that is called as the stream.
    The catalogue is known by a name and properties of `pyiceberg`; or it is our `own`, a file of SQLite
    beside the tables.
    """

    name: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # has credentials
    own: bool = False

    def open(self, uri: str, storage: Storage) -> TableLog:
        folder, _, name = uri.rpartition("/")
        if folder.rpartition("/")[2] in KINDS:
            folder, _, kind = folder.rpartition("/")
            name = f"{kind}_{name}"
        identifier = (folder.rpartition("/")[2], name)
        return IcebergLog(uri, self.catalog(folder, storage), identifier)

    def names(self, folder: str, storage: Storage) -> list[str]:
        try:
            found = self.catalog(folder, storage).list_tables(folder.rpartition("/")[2])
        except NoSuchNamespaceError:
            return []
        split = ((name, *name.partition("_")) for *_, name in found)
        ours = [f"{kind}/{rule}" for _, kind, _, rule in split if kind in KINDS and rule]
        return [*(name for *_, name in found if name in SINGLE), *ours]

    def catalog(self, folder: str, storage: Storage) -> Catalog:
        """Of the tables of a stream, which are in this folder: one for all who ask with the same properties.
        UsageError where SQLite cannot be beside the tables.
        """
        given = dict(self.properties)
        if self.own:
            given = {"type": "sql", "uri": _sqlite(folder.rpartition("/")[0], storage)}
        properties, options = (tuple(sorted(each.items())) for each in (given, storage.options))
        return _catalog(self.name, properties, options)


@cache
def _catalog(
    name: str, properties: tuple[tuple[str, str], ...], options: tuple[tuple[str, str], ...]
) -> Catalog:
    files = f"{StorageFileIO.__module__}.{StorageFileIO.__name__}"
    more = {"py-io-impl": files, STORAGE: json.dumps(dict(options))}
    load = partial(load_catalog, name, **dict(properties), **more)
    try:
        with suppress(OperationalError):
            return load()
        # another process has made the tables of the same database at the same moment
        return load()
    except (ValueError, NotInstalledError, ImportError, RESTError, SQLAlchemyError) as error:
        raise ConfigError(f"the catalogue {name} cannot be opened: {error}") from error


def _sqlite(tables: str, storage: Storage) -> str:
    """The address of a database in the folder of all tables."""
    files, root = storage.open(tables)
    if not isinstance(files, pafs.LocalFileSystem):
        raise UsageError(f"{tables} needs a catalogue; accepted: --catalog FILE, or [catalog] in the file")
    files.create_dir(root)
    place = URL.create("sqlite", database=f"{root}/catalog.db", query={"timeout": str(_LOCKED_S)})
    return place.render_as_string()


def _renamed(fields: Iterable[MappedField]) -> Iterator[list[str]]:
    """The names of each that has several."""
    for each in fields:
        if len(each.names) > 1:
            yield each.names
        yield from _renamed(each.fields)


def _said(snapshot: TableSnapshot) -> dict[str, int] | None:
    """The numbers of a snapshot; None where somebody else has committed it."""
    text = snapshot.summary.get(NUMBERS) if snapshot.summary else None
    return dict(json.loads(text)) if text else None


def _is_by_day(table: Table, spec_id: int) -> bool:
    fields = table.specs()[spec_id].fields
    names = [table.schema().find_column_name(each.source_id) for each in fields]
    return names == [PARTITION] and isinstance(fields[0].transform, IdentityTransform)


def _map_names(transaction: Transaction) -> None:
    """For files without field identifiers."""
    names = transaction.table_metadata.schema().name_mapping.model_dump_json()
    transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: names})


def _arrow(schema: Schema) -> pa.Schema:
    return schema_to_pyarrow(schema, include_field_ids=False)
