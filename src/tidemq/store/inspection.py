"""What a store holds: whether every row can be parsed and what refers to nothing, and how much there is."""

from __future__ import annotations

import heapq
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from tidemq.errors import StoreError
from tidemq.store.interface import FAMILIES, Store
from tidemq.store.rows import (
    IN_FLIGHT,
    PARSERS,
    QueueEntry,
    id_clock_ns,
    parse_queue,
    parse_session,
    parse_shared,
)

CORRUPT_LINES_MAX = 1000


@dataclass
class Findings:
    """What `check_store` found. `corrupt` has a line for each row, up to 1000; `leftovers` counts by kind."""

    rows: int = 0
    corrupt: list[str] = field(default_factory=list)
    corrupt_rows: int = 0
    leftovers: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class FamilySize:
    """Rows of a family, and the bytes of their keys and values."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class QueueSize:
    """Entries of a queue; `name` is a client id or a shared filter, empty when neither is there."""

    queue: int
    name: str
    idle: int
    in_flight: int
    message_bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """How much a store holds; `queues` are those with the most entries, the longest first."""

    disk_bytes: int
    families: dict[str, FamilySize]
    queue_count: int
    queues: list[QueueSize]
    oldest_ns: int | None  # wall clock of the oldest message that waits in a queue


def check_store(store: Store) -> Findings:
    """Reads all; tells rows that no one can read from what a crash leaves behind, which is harmless.

    Takes memory for the numbers of all queues; the ids of all entries go into a temporary file.
    """
    findings = Findings()
    unreadable = [family for family in FAMILIES if not _check_family(store, family, findings)]
    if unreadable:
        findings.corrupt.append(f"what refers to what is not checked without {', '.join(unreadable)}")
    else:
        _check_references(store, findings)
    return findings


def measure_store(store: Store, queues_max: int) -> Stats:
    """Reads all; `queues` are the longest, `queues_max` of them."""
    families = {}
    for family in FAMILIES:
        rows = size = 0
        for key, value in store.scan(family):
            rows += 1
            size += len(key) + len(value)
        families[family] = FamilySize(rows, size)
    oldest_ns: int | None = None
    longest: list[tuple[int, int, Counter[str]]] = []
    count = 0
    for queue, entries in groupby(_read_queue(store), lambda entry: entry.queue):
        count += 1
        sizes: Counter[str] = Counter()
        for entry in entries:
            sizes["in_flight" if entry.status == IN_FLIGHT else "idle"] += 1
            sizes["bytes"] += entry.message_bytes
            came_ns = id_clock_ns(entry.id)
            oldest_ns = came_ns if oldest_ns is None else min(oldest_ns, came_ns)
        heapq.heappush(longest, (sizes["idle"] + sizes["in_flight"], queue, sizes))
        if len(longest) > queues_max:
            heapq.heappop(longest)
    names = _name_queues(store, {queue for _, queue, _ in longest})
    queues = [
        QueueSize(queue, names.get(queue, ""), sizes["idle"], sizes["in_flight"], sizes["bytes"])
        for _, queue, sizes in sorted(longest, key=lambda each: (-each[0], each[1]))
    ]
    return Stats(store.size_bytes(), families, count, queues, oldest_ns)


def _check_family(store: Store, family: str, findings: Findings) -> bool:
    """Parses every row; False when not all could be read."""
    parse = PARSERS[family]
    try:
        for key, value in store.scan(family):
            findings.rows += 1
            try:
                parse(key, value)
            except StoreError as error:
                findings.corrupt_rows += 1
                if len(findings.corrupt) < CORRUPT_LINES_MAX:
                    findings.corrupt.append(f"{family} {key.hex()}: {error}")
    except StoreError as error:
        findings.corrupt_rows += 1
        findings.corrupt.append(f"{family}: {error}")
        return False
    return True


def _check_references(store: Store, findings: Findings) -> None:
    left = findings.leftovers
    owners = set(_read_owners(store))
    for entry in _read_queue(store):
        left["entry of a queue that nobody has"] += entry.queue not in owners
        expires = entry.expires_at_ms > 0
        left["entry that expires, without its row in expiry"] += expires and not _has_expiry(store, entry)
    for key, _ in store.scan("expiry"):
        expires_at, queue, message_id = key[:8], key[8:16], key[16:]
        rows = store.get_many("queue", [queue + bytes([status]) + message_id for status in (1, 2)])
        found = any(row is not None and row[6:14] == expires_at for row in rows)
        left["expiry of an entry that is gone"] += not found
    for key, _ in store.scan("received"):
        left["received QoS 2 message without a session"] += int.from_bytes(key[:8]) not in owners
    for key, _ in store.scan("subscription"):
        client_id = key[2 : 2 + int.from_bytes(key[:2])]
        left["subscription without a session"] += store.get("session", client_id) is None
    _check_payloads(store, left)
    for kind in [kind for kind, count in left.items() if not count]:
        del left[kind]


def _check_payloads(store: Store, left: Counter[str]) -> None:
    """Payloads, references and the ids of entries are three lists in the order of ids: they are merged."""
    ids = sqlite3.connect("")  # a temporary file
    try:
        ids.execute("CREATE TABLE entry (id BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID")
        ids.executemany(
            "INSERT INTO entry VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
            ((entry.id,) for entry in _read_queue(store)),
        )
        entries = ((key, "entries", count) for key, count in ids.execute("SELECT * FROM entry ORDER BY id"))
        payloads = ((key, "payload", 1) for key, _ in store.scan("payload"))
        references = ((key, "references", int.from_bytes(value)) for key, value in store.scan("reference"))
        for _, same in groupby(heapq.merge(entries, payloads, references), lambda each: each[0]):
            _check_payload({what: count for _, what, count in same}, left)
    finally:
        ids.close()


def _check_payload(found: dict[str, int], left: Counter[str]) -> None:
    """What there is under one id: entries, payload, and the count of references that is written for them."""
    entries, references = found.get("entries", 0), found.get("references")
    if "payload" not in found:
        left["entry without payload"] += entries
        left["reference without payload"] += references is not None
    elif not entries:
        left["payload without entry"] += 1
    elif references is None:
        left["payload of several entries without a reference"] += entries > 1
    else:
        left["reference that counts wrong"] += references != entries


def _has_expiry(store: Store, entry: QueueEntry) -> bool:
    key = struct.pack(">qQ", entry.expires_at_ms, entry.queue) + entry.id
    return store.get("expiry", key) is not None


def _read_queue(store: Store) -> Iterator[QueueEntry]:
    """The entries of all queues, in order; those that cannot be parsed are left out."""
    for key, value in store.scan("queue"):
        try:
            yield parse_queue(key, value)
        except StoreError:
            continue


def _read_owners(store: Store) -> Iterator[int]:
    """The numbers of all queues that a session or a shared subscription has."""
    for _, value in store.scan("session"):
        yield int.from_bytes(value[:8])
    for key, _ in store.scan("shared"):
        yield int.from_bytes(key)


def _name_queues(store: Store, queues: set[int]) -> dict[int, str]:
    names = {}
    for key, value in store.scan("session"):
        try:
            session = parse_session(key, value)
        except StoreError:
            continue
        if session.queue in queues:
            names[session.queue] = session.client_id
    for key, value in store.scan("shared"):
        try:
            shared = parse_shared(key, value)
        except StoreError:
            continue
        if shared.queue in queues:
            names[shared.queue] = shared.topic_filter
    return names
