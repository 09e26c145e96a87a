"""A store's content as Parquet tables, by buckets of queues: for tools that work on columns.

docs/store.md has the format: its tables and their columns, which bucket a row is in, and what `seen` says.
Needs pyarrow (`pip install 'tidemq[streams]'`).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemq.errors import StoreError
from tidemq.store.interface import FORMAT, Store
from tidemq.store.portable import Entry
from tidemq.store.rows import (
    ID_BYTES,
    parse_payload,
    parse_queue,
    parse_received,
    parse_reference,
    parse_retained,
    parse_session,
    parse_shared,
    parse_subscription,
)

VERSION = 1
NODE_VERSION = 4  # of dumps of a cluster's nodes, which `tidemq/cluster/dumps.py` writes
BUCKETS = 32
MANIFEST = "manifest.json"
SESSION, SHARED = "session", "shared"  # kinds of owners
BATCH_ROWS, BATCH_BYTES = 4096, 1 << 20  # rows of Python that wait, at most, for each file
GROUP_ROWS, GROUP_BYTES = 1 << 15, 4 << 20  # and rows of Arrow: a row group

_ID = [("clock", pa.uint64()), ("origin", pa.uint64())]
SCHEMAS = {
    "owners": pa.schema(
        [
            ("owner", pa.uint32()),
            ("kind", pa.string()),
            ("name", pa.string()),
            ("expiry_s", pa.uint32()),
            ("ends_at_ms", pa.int64()),
            ("will_due_at_ms", pa.int64()),
            ("will_delay_s", pa.uint32()),
            ("will_expiry_s", pa.int64()),
            ("will", pa.binary()),
            ("received", pa.list_(pa.uint16())),
        ]
    ),
    "subscriptions": pa.schema(
        [
            ("owner", pa.uint32()),
            ("topic_filter", pa.string()),
            ("options", pa.uint8()),
            ("subscription_id", pa.uint32()),
        ]
    ),
    "seen": pa.schema(
        [("owner", pa.uint32()), ("origin", pa.uint64()), ("first", pa.uint64()), ("last", pa.uint64())]
    ),
    "entries": pa.schema(
        [
            ("owner", pa.uint32()),
            *_ID,
            ("status", pa.uint8()),
            ("flags", pa.uint8()),
            ("qos", pa.uint8()),
            ("message_bytes", pa.uint32()),
            ("expires_at_ms", pa.int64()),
            ("sequence", pa.uint64()),
            ("subscription_ids", pa.list_(pa.uint32())),
        ]
    ),
    "payloads": pa.schema([*_ID, ("references", pa.uint32()), ("message", pa.binary())]),
    "retained": pa.schema([("topic", pa.string()), *_ID, ("message", pa.binary())]),
    "rows": pa.schema([("family", pa.string()), ("key", pa.binary()), ("value", pa.binary())]),
}

_TWO = struct.Struct(">QQ")
_QUEUE_KEY = struct.Struct(">QBQQ")
_QUEUE = struct.Struct(">BBIqQ")
_EXPIRY_KEY = struct.Struct(">qQQQ")
_SESSION = struct.Struct(">QIqqIqI")


def bucket_of_name(name: str, buckets: int) -> int:
    """Of an owner or a topic."""
    return zlib.crc32(name.encode()) % buckets


def bucket_of_id(clock: int, buckets: int) -> int:
    """Of a payload; the lowest bits are a reactor's number."""
    return (clock >> 6) % buckets


def table_path(folder: Path, table: str, bucket: int) -> Path:
    """The file of one bucket of a table."""
    return folder / table / f"bucket={bucket:04}.parquet"


def write_tables(store: Store, folder: Path, buckets: int = BUCKETS) -> Counter[str]:
    """Writes a store into `folder`, which must not exist; gives the rows of each table.

    Entries, received identifiers and subscriptions that nobody has are left out, and counted as `leftovers`.
    OSError; StoreError where a row cannot be parsed. Holds 300 bytes for each session.
    """
    if is_of_node(store):
        raise StoreError(
            "this store is of a cluster's node, which has more to say of what it has seen: "
            "`tidemq store dump --arrow` does"
        )
    origin, clock = (int.from_bytes(store.get("meta", key) or bytes(8)) for key in (b"incarnation", b"clock"))
    with TableFiles(folder, SCHEMAS) as files:
        owners = _Owners(buckets)
        for bucket, owner in _write_owners(store, files, owners):
            files.add("seen", bucket, (owner, origin, 0, clock))
        _write_queues(store, files, owners)
        write_payloads(store, files, buckets)
        _write_retained(store, files, buckets)
        write_other_rows(store, files)
        files.complete(buckets)
    leftovers = files.counts.pop("leftovers", 0)
    seen = [{"origin": origin, "first": 0, "last": clock}]
    write_manifest(
        folder, VERSION, buckets=buckets, incarnation=origin, clock=clock, seen=seen, rows=files.counts
    )
    return files.counts + Counter(leftovers=leftovers)


def is_of_node(store: Store) -> bool:
    """Whether a node of a cluster has written it."""
    return next(iter(store.scan("cluster")), None) is not None


def write_manifest(folder: Path, version: int, **said: Any) -> None:
    """The last file of a dump: it is complete."""
    manifest = {"version": version, "format": FORMAT.decode(), **said}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a dump says of itself; StoreError where this is none, or another version's."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        raise StoreError(f"{folder} is no dump of a store, or not complete: {MANIFEST} is missing") from None
    except ValueError as error:
        raise StoreError(f"{folder / MANIFEST} is damaged: {error}") from error
    if manifest.get("version") == NODE_VERSION:
        raise StoreError(
            f"{folder} is the dump of a cluster's node: make one of a store of it, and of those of the other "
            "nodes, with `tidemq pipeline reconcile DUMP... OUT`"
        )
    if (manifest.get("version"), manifest.get("format")) != (VERSION, FORMAT.decode()):
        raise StoreError(
            f"the dump {folder} has version {manifest.get('version')} and rows of format "
            f"{manifest.get('format')}; this version reads {VERSION} and {FORMAT.decode()}"
        )
    return manifest


def read_tables(folder: Path) -> Iterator[Entry]:
    """The rows of the store that a dump makes; queues get new numbers, from 1.

    StoreError where files are damaged or rows are missing.
    """
    manifest = read_manifest(folder)
    counts: Counter[str] = Counter()

    def read(table: str, bucket: int) -> Iterator[tuple[Any, ...]]:
        path = table_path(folder, table, bucket)
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=SCHEMAS[table].names):
                    counts[table] += batch.num_rows
                    yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error

    first = 1
    for bucket in range(manifest["buckets"]):
        owners: dict[int, str] = {}
        for row in read("owners", bucket):
            owners[row[0]] = row[2]
            yield from _owner_rows(row, first)
        for owner, topic_filter, options, number in read("subscriptions", bucket):
            name = owners[owner].encode()
            key = len(name).to_bytes(2) + name + topic_filter.encode()
            yield "subscription", key, struct.pack(">BI", options, number)
        for row in read("entries", bucket):
            yield from _entry_rows(row, first)
        for clock, origin, references, message in read("payloads", bucket):
            key = _TWO.pack(clock, origin)
            yield "payload", key, message
            if references is not None:
                yield "reference", key, references.to_bytes(4)
        for topic, clock, origin, message in read("retained", bucket):
            yield "retained", topic.encode(), _TWO.pack(clock, origin) + message
        for _ in read("seen", bucket):
            pass  # what a store has by itself; counted
        first += len(owners)
    yield from read("rows", 0)
    if +counts != +Counter(manifest["rows"]):
        raise StoreError(f"the dump {folder} says it has {manifest['rows']} rows, and has {dict(counts)}")


def _owner_rows(row: tuple[Any, ...], first: int) -> Iterator[Entry]:
    owner, kind, name, expiry_s, ends_at_ms, due_at_ms, delay_s, will_expiry_s, will, received = row
    number = first + owner
    if kind == SHARED:
        yield "shared", number.to_bytes(8), name.encode()
        return
    text = will or b""
    head = _SESSION.pack(number, expiry_s, ends_at_ms, due_at_ms, delay_s, will_expiry_s, len(text))
    yield "session", name.encode(), head + text
    for packet_id in received:
        yield "received", struct.pack(">QH", number, packet_id), b""


def _entry_rows(row: tuple[Any, ...], first: int) -> Iterator[Entry]:
    owner, clock, origin, status, flags, qos, message_bytes, expires_at_ms, sequence, ids = row
    value = _QUEUE.pack(flags, qos, message_bytes, expires_at_ms, sequence)
    if ids:
        value += struct.pack(f">{len(ids)}I", *ids)
    yield "queue", _QUEUE_KEY.pack(first + owner, status, clock, origin), value
    if expires_at_ms:
        yield "expiry", _EXPIRY_KEY.pack(expires_at_ms, first + owner, clock, origin), b""


class _Owners:
    """Who has which queues: sessions one each, shared subscriptions several."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._places: dict[tuple[str, str], tuple[int, int]] = {}  # bucket, number in it
        self._queues: dict[int, tuple[int, int]] = {}
        self._sizes: Counter[int] = Counter()

    def add(self, kind: str, name: str, queue: int) -> tuple[int, int] | None:
        """Its bucket and number; None when it is known."""
        known = self._places.get((kind, name))
        if known is not None:
            self._queues[queue] = known
            return None
        bucket = bucket_of_name(name, self._buckets)
        place = self._queues[queue] = self._places[kind, name] = (bucket, self._sizes[bucket])
        self._sizes[bucket] += 1
        return place

    def of_session(self, client_id: str) -> tuple[int, int] | None:
        return self._places.get((SESSION, client_id))

    def of_queue(self, queue: int) -> tuple[int, int] | None:
        return self._queues.get(queue)


def _write_owners(store: Store, files: TableFiles, owners: _Owners) -> Iterator[tuple[int, int]]:
    """Sessions and shared subscriptions; gives bucket and number of each, at last how many identifiers of
    received messages nobody has."""
    received: dict[int, list[int]] = {}
    for key, value in store.scan("received"):
        identifier = _parsed(parse_received, key, value)
        received.setdefault(identifier.queue, []).append(identifier.packet_id)
    for key, value in store.scan("session"):
        each = _parsed(parse_session, key, value)
        place = owners.add(SESSION, each.client_id, each.queue)
        assert place is not None  # client ids are the keys
        times = (each.expiry_s, each.ends_at_ms, each.will_due_at_ms)
        will = (each.will_delay_s, each.will_expiry_s, value[_SESSION.size :] or None)
        row = (place[1], SESSION, each.client_id, *times, *will, received.pop(each.queue, []))
        files.add("owners", place[0], row, len(value))
        yield place
    files.counts["leftovers"] += sum(map(len, received.values()))
    for key, value in store.scan("shared"):
        shared = _parsed(parse_shared, key, value)
        new = owners.add(SHARED, shared.topic_filter, shared.queue)
        if new is not None:
            files.add("owners", new[0], (new[1], SHARED, shared.topic_filter, *[None] * 7))
            yield new


def _write_queues(store: Store, files: TableFiles, owners: _Owners) -> None:
    """What owners have: subscriptions and entries."""
    for key, value in store.scan("subscription"):
        each = _parsed(parse_subscription, key, value)
        place = owners.of_session(each.client_id)
        if place is None:
            files.counts["leftovers"] += 1
            continue
        if each.stream_epoch is not None:  # it goes on where this very stream is
            files.add("rows", 0, ("subscription", key, value), len(key) + len(value))
            continue
        row = (place[1], each.topic_filter, each.options, each.subscription_id)
        files.add("subscriptions", place[0], row)
    for key, value in store.scan("queue"):
        entry = _parsed(parse_queue, key, value)
        place = owners.of_queue(entry.queue)
        if place is None:
            files.counts["leftovers"] += 1
            continue
        sizes = (entry.message_bytes, entry.expires_at_ms, entry.sequence)
        state = (entry.status, entry.flags, entry.qos, *sizes, entry.subscription_ids or None)
        files.add("entries", place[0], (place[1], *_TWO.unpack(entry.id), *state))


def write_payloads(store: Store, files: TableFiles, buckets: int) -> None:
    """Payloads with their counts, which lie in the same order."""
    counts = store.scan("reference")
    counted = next(counts, None)
    for key, value in store.scan("payload"):
        _parsed(parse_payload, key, value)
        while counted is not None and counted[0] < key:
            counted = next(counts, None)
        references = None
        if counted is not None and counted[0] == key:
            references = _parsed(parse_reference, *counted).count
        clock, origin = _TWO.unpack(key)
        files.add("payloads", bucket_of_id(clock, buckets), (clock, origin, references, value), len(value))


def write_other_rows(store: Store, files: TableFiles) -> None:
    """What goes on where this very store is: of streams, and what it says of itself."""
    for family in ("stream", "meta"):
        for key, value in store.scan(family):
            files.add("rows", 0, (family, key, value), len(key) + len(value))


def _write_retained(store: Store, files: TableFiles, buckets: int) -> None:
    for key, value in store.scan("retained"):
        topic = _parsed(parse_retained, key, value).message.topic
        row = (topic, *_TWO.unpack_from(value), value[ID_BYTES:])
        files.add("retained", bucket_of_name(topic, buckets), row, len(value))


def _parsed(parse: Callable[[bytes, bytes], Any], key: bytes, value: bytes) -> Any:
    try:
        return parse(key, value)
    except StoreError as error:
        family = parse.__name__.removeprefix("parse_")
        raise StoreError(f"corrupt: {family} {key.hex()}: {error}; `check` names all of them") from error


class _File:
    """One bucket of a table, while it is written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(
            path, schema, compression="lz4", use_dictionary=False, write_page_checksum=True
        )
        self._rows: list[tuple[Any, ...]] = []
        self._batches: list[pa.RecordBatch] = []
        self._row_bytes = self._batch_rows = self._batch_bytes = 0

    def add(self, row: tuple[Any, ...], size: int) -> None:
        self._rows.append(row)
        self._row_bytes += size
        if len(self._rows) == BATCH_ROWS or self._row_bytes >= BATCH_BYTES:
            self._batch()

    def _batch(self) -> None:
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._batches.append(batch)
        self._batch_rows += batch.num_rows
        self._batch_bytes += batch.nbytes
        self._rows.clear()
        self._row_bytes = 0
        if self._batch_rows >= GROUP_ROWS or self._batch_bytes >= GROUP_BYTES:
            self._group()

    def _group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
        self._batches.clear()
        self._batch_rows = self._batch_bytes = 0

    def close(self) -> None:
        if self._rows:
            self._batch()
        if self._batches:
            self._group()
        self._writer.close()


class TableFiles:
    """All files of a dump, each made when its first row comes. `folder` must not exist."""

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema]) -> None:
        self._folder = folder
        self._schemas = schemas
        folder.mkdir(parents=True)
        for table in schemas:
            (folder / table).mkdir()
        self._files: dict[tuple[str, int], _File] = {}
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> TableFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def add(self, table: str, bucket: int, row: tuple[Any, ...], size: int = 0) -> None:
        """Appends a row, with the bytes of what is long in it."""
        self._file(table, bucket).add(row, size)
        self.counts[table] += 1

    def complete(self, buckets: int) -> None:
        """Makes those that got no row: a reader need not look which there are."""
        for table in self._schemas:
            for bucket in range(1 if table == "rows" else buckets):
                self._file(table, bucket)

    def _file(self, table: str, bucket: int) -> _File:
        if (table, bucket) not in self._files:
            path = table_path(self._folder, table, bucket)
            self._files[table, bucket] = _File(path, self._schemas[table])
        return self._files[table, bucket]
