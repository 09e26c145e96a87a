"""Check tells corrupt rows from leftovers and finds each kind of both; stats count."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tidemq.errors import StoreError
from tidemq.store import MemoryStore
from tidemq.store.inspection import FamilySize, QueueSize, check_store, measure_store

CLIENT, SHARED = 7, 9
SECOND_NS = 1_000_000_000


def make_id(number: int) -> bytes:
    return struct.pack(">Q", number * SECOND_NS & ~0x3F) + b"incarnat"


def queue_key(queue: int, status: int, number: int) -> bytes:
    return struct.pack(">QB", queue, status) + make_id(number)


def queue_value(expires_at_ms: int = 0, flags: int = 0) -> bytes:
    return struct.pack(">BBIqQ", flags, 1, 100, expires_at_ms, 0)


def message(topic: bytes = b"a") -> bytes:
    return struct.pack(">BBqIII", 1, 0, 0, len(topic), 0, 1) + topic + b"x"


def expiry_key(expires_at_ms: int, queue: int, number: int) -> bytes:
    return struct.pack(">qQ", expires_at_ms, queue) + make_id(number)


SESSION = struct.pack(">QIqqIqI", CLIENT, 60, 0, 0, 0, -1, 0)
GOOD = [
    ("session", b"client", SESSION),
    ("shared", struct.pack(">Q", SHARED), b"$share/g/a"),
    ("subscription", b"\0\6clienta", bytes(5)),
    ("received", struct.pack(">QH", CLIENT, 5), b""),
    ("queue", queue_key(CLIENT, 1, 3), queue_value(flags=4)),
    ("queue", queue_key(CLIENT, 2, 2), queue_value(1234)),
    ("queue", queue_key(SHARED, 1, 3), queue_value(flags=4)),
    ("payload", make_id(2), message()),
    ("payload", make_id(3), message()),
    ("reference", make_id(3), b"\0\0\0\2"),
    ("expiry", expiry_key(1234, CLIENT, 2), b""),
    ("retained", b"a", make_id(1) + message()),
]


def make_store(*more: Any, without: Any = ()) -> MemoryStore:
    store = MemoryStore()
    store.open()
    store.write([*GOOD, *more, *((family, key, None) for family, key in without)], sync=True)
    return store


def test_a_whole_store_is_clean() -> None:
    findings = check_store(make_store())
    assert (findings.rows, findings.corrupt, findings.corrupt_rows) == (len(GOOD) + 1, [], 0)
    assert not findings.leftovers


LEFTOVERS = [
    ("entry of a queue that nobody has", [("queue", queue_key(8, 1, 3), queue_value()),
                                          ("reference", make_id(3), b"\0\0\0\3")], []),
    ("entry that expires, without its row in expiry", [], [("expiry", expiry_key(1234, CLIENT, 2))]),
    ("expiry of an entry that is gone", [("expiry", expiry_key(5, CLIENT, 3), b"")], []),
    ("expiry of an entry that is gone", [("expiry", expiry_key(5, CLIENT, 99), b"")], []),
    ("received QoS 2 message without a session", [("received", struct.pack(">QH", 8, 5), b"")], []),
    ("subscription without a session", [("subscription", b"\0\1xa", bytes(5))], []),
    ("entry without payload", [("queue", queue_key(CLIENT, 1, 4), queue_value())], []),
    ("payload without entry", [("payload", make_id(4), message())], []),
    ("reference without payload", [("reference", make_id(4), b"\0\0\0\1")], []),
    ("reference that counts wrong", [("reference", make_id(3), b"\0\0\0\3")], []),
    ("payload of several entries without a reference", [], [("reference", make_id(3))]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "more", "without"), LEFTOVERS)
def test_a_leftover_is_told_by_its_kind(kind: str, more: Any, without: Any) -> None:
    findings = check_store(make_store(*more, without=without))
    assert findings.leftovers == {kind: 1}
    assert findings.corrupt == []


def test_corrupt_rows_are_named_and_the_others_checked() -> None:
    findings = check_store(make_store(("queue", b"short", b""), ("payload", make_id(4), b"\0" * 22)))
    assert findings.corrupt_rows == 2
    assert findings.corrupt == [
        f"payload {make_id(4).hex()}: it has no topic",
        f"queue {b'short'.hex()}: its key has 5 bytes, not 25",
    ]
    assert findings.leftovers == {"payload without entry": 1}


def test_a_family_that_cannot_be_read_is_corrupt_and_makes_no_false_leftovers() -> None:
    class Damaged(MemoryStore):
        def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
            yield from super().scan(family, prefix, after)
            if family == "payload":
                raise StoreError("block checksum mismatch")

    store = Damaged()
    store.write(GOOD, sync=True)
    findings = check_store(store)
    assert findings.corrupt == [
        "payload: block checksum mismatch", "what refers to what is not checked without payload"
    ]  # fmt: skip
    assert not findings.leftovers


def test_stats_count_rows_bytes_and_queues() -> None:
    stats = measure_store(make_store(("queue", queue_key(8, 1, 3), queue_value())), 2)
    assert stats.families["received"] == FamilySize(1, 10)
    assert stats.families["queue"] == FamilySize(4, 4 * (25 + 22))
    assert stats.families["stream"] == FamilySize(0, 0)
    assert stats.queue_count == 3
    assert stats.queues == [
        QueueSize(CLIENT, "client", 1, 1, 200), QueueSize(SHARED, "$share/g/a", 1, 0, 100)
    ]  # fmt: skip
    assert stats.oldest_ns == 2 * SECOND_NS & ~0x3F


def test_stats_of_an_empty_store() -> None:
    store = MemoryStore()
    stats = measure_store(store, 5)
    assert (stats.queue_count, stats.queues, stats.oldest_ns) == (0, [], None)
