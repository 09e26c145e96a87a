"""The store of a cluster's node as Parquet tables, for `tidemq pipeline reconcile`.

docs/store.md has the format. A row says by which record it came, and the manifest says which records the node
had applied. So what one node has and another one lacks is either new to that one, or was removed there. Rows
are as the node keeps them, also those that are out of a client's sight because its session has ended: whether
it has, the other nodes may know better. Needs pyarrow (`pip install 'tidemq[streams]'`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemq.cluster.operations import GROUP, SESSION, Owner, packet_id_of
from tidemq.cluster.rows import Entry, Rows
from tidemq.cluster.snapshots import UNFINISHED
from tidemq.cluster.stored_rows import StoredRows
from tidemq.cluster.stored_tables import FAMILY
from tidemq.errors import ClusterError, StoreError
from tidemq.store import Store
from tidemq.store.rows import IDLE, IN_FLIGHT, RELEASED, RETAIN, SENT, parse_subscription
from tidemq.store.tables import (
    BUCKETS,
    NODE_VERSION,
    SCHEMAS,
    TableFiles,
    bucket_of_name,
    write_manifest,
    write_other_rows,
    write_payloads,
)
from tidemq.store.tables import SESSION as SESSION_KIND
from tidemq.store.tables import SHARED as SHARED_KIND

_RECORD = [("by", pa.uint64()), ("number", pa.uint64())]
_EPOCH = [("epoch_clock", pa.uint64()), ("epoch_origin", pa.uint64())]
_CONNECTED = [("connected_clock", pa.uint64()), ("connected_origin", pa.uint64())]


def _more(table: str, *columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([*SCHEMAS[table], *(pa.field(*column) for column in columns)])


NODE_SCHEMAS = {
    "owners": _more("owners", *_RECORD, *_EPOCH, *_CONNECTED),
    "ends": pa.schema(
        [
            ("owner", pa.uint32()),
            *_RECORD,
            *_EPOCH,
            ("seen_by", pa.list_(pa.uint64())),
            ("seen", pa.list_(pa.uint64())),
            ("known_by", pa.list_(pa.uint64())),
            ("known", pa.list_(pa.uint64())),
            ("over_clock", pa.uint64()),
            ("over_origin", pa.uint64()),
            ("over_by", pa.uint64()),
            ("over_number", pa.uint64()),
        ]
    ),
    "subscriptions": _more("subscriptions", *_RECORD, ("clock", pa.uint64()), ("origin", pa.uint64())),
    "entries": _more("entries", *_RECORD, *_EPOCH),
    "removed": pa.schema([("owner", pa.uint32()), ("clock", pa.uint64()), ("origin", pa.uint64()), *_RECORD]),
    "payloads": SCHEMAS["payloads"],
    "retained": _more("retained", *_RECORD),
    "rows": SCHEMAS["rows"],
}


def write_node_tables(store: Store, folder: Path, buckets: int = BUCKETS) -> Counter[str]:
    """Writes a node's store into `folder`, which must not exist; gives the rows of each table.

    OSError; StoreError where a row cannot be parsed, or where the store is not whole. Holds 300 bytes for
    each owner of a queue.
    """
    if store.get(FAMILY, UNFINISHED) is not None:
        raise StoreError(
            "this node ended before it had taken over what the others have: nothing can be said of what it "
            "lacks. Dump the other nodes"
        )
    try:
        rows = StoredRows(store, _no_number)
        with TableFiles(folder, NODE_SCHEMAS) as files:
            _write_rows(rows, files, buckets)
            write_payloads(store, files, buckets)
            _write_rest(store, files)
            files.complete(buckets)
    except ClusterError as error:
        raise StoreError(f"corrupt: a row of the family `{FAMILY}`: {error}") from error
    own, clock = (int.from_bytes(store.get("meta", key) or bytes(8)) for key in (b"incarnation", b"clock"))
    write_manifest(
        folder,
        NODE_VERSION,
        buckets=buckets,
        incarnation=own,
        clock=max(clock, rows.clock.get(None, None) or 0),
        applied=[{"by": by, "number": number} for by, number in sorted(rows.vector.items())],
        members=sorted(each for each, _, _ in rows.members.all()),
        struck=sorted(each for each, _, _ in rows.struck.all()),
        rows=files.counts,
    )
    return files.counts


def _no_number() -> int:
    raise AssertionError("what is only read makes no queue")


class _Places:
    """The bucket of each owner, and its number there, from 0; one that is new gets a row."""

    def __init__(self, files: TableFiles, buckets: int) -> None:
        self._files = files
        self._buckets = buckets
        self._known: dict[Owner, tuple[int, int]] = {}
        self._sizes: Counter[int] = Counter()

    def add(self, owner: Owner, columns: tuple[Any, ...], size: int) -> tuple[int, int]:
        bucket = bucket_of_name(owner.name, self._buckets)
        place = self._known[owner] = (bucket, self._sizes[bucket])
        self._sizes[bucket] += 1
        kind = SHARED_KIND if owner.kind == GROUP else SESSION_KIND
        self._files.add("owners", bucket, (place[1], kind, owner.name, *columns), size)
        return place

    def of(self, owner: Owner) -> tuple[int, int]:
        """Also of a group, or of a client that has no session here (any more)."""
        return self._known.get(owner) or self.add(owner, (None,) * 13, 0)


def _write_rows(rows: Rows, files: TableFiles, buckets: int) -> None:
    places = _Places(files, buckets)
    for client, _, session in rows.sessions.all():
        row = session.row
        timed = (row.expiry_s, row.ends_at_ms, row.will_due_at_ms, row.will_delay_s, row.will_expiry_s)
        marks = list(map(packet_id_of, row.received))
        columns = (*timed, row.will or None, marks, *session.dot, *row.epoch, *row.connected)
        places.add(Owner(SESSION, client), columns, len(row.will))
    for client, dot, end in rows.ends.all():
        bucket, number = places.of(Owner(SESSION, client))
        over = (*end.over[0], *end.over[1]) if end.over is not None else (None,) * 4
        seen = (list(end.seen), list(end.seen.values()))
        known = (None, None) if end.known is None else (list(end.known), list(end.known.values()))
        files.add("ends", bucket, (number, *dot, *end.epoch, *seen, *known, *over))
    for client, topic_filter, each in rows.subscriptions.all():
        bucket, number = places.of(Owner(SESSION, client))
        state = (each.options, each.subscription_id, *each.dot, *each.stamp)
        files.add("subscriptions", bucket, (number, topic_filter, *state))
    for owner, message_id, entry in rows.entries.all():
        bucket, number = places.of(owner)
        for columns in _entry_columns(entry):
            files.add("entries", bucket, (number, *message_id, *columns))
    for owner, message_id, dots in rows.removed.all():
        bucket, number = places.of(owner)
        for dot in dots:
            files.add("removed", bucket, (number, *message_id, *dot))
    for topic, _, retained in rows.retained.all():
        row_of_topic = (topic, *retained.id, retained.message, *retained.dot)
        files.add("retained", bucket_of_name(topic, buckets), row_of_topic, len(retained.message or b""))


def _entry_columns(entry: Entry) -> Iterator[tuple[Any, ...]]:
    """A row for each record that has added it; in flight where who sent it knew of the record."""
    for each in entry.adds:
        flying = entry.sequence >= 0 and not each.unsent
        sizes = (each.qos, each.message_bytes, each.expires_at_ms, entry.sequence if flying else 0)
        status = IN_FLIGHT if flying else IDLE
        flags = each.flags & RETAIN | RELEASED * (entry.released and flying) | SENT * entry.sent
        yield status, flags, *sizes, list(each.subscription_ids) or None, *each.dot, *entry.epoch


def _write_rest(store: Store, files: TableFiles) -> None:
    """What goes on where this very store is."""
    write_other_rows(store, files)
    for key, value in store.scan("subscription"):
        if parse_subscription(key, value).stream_epoch is not None:
            files.add("rows", 0, ("subscription", key, value), len(key) + len(value))
