"""Rows are parsed by the layouts of docs/store.md, and what does not follow them is refused with a reason."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tidemq.errors import StoreError
from tidemq.store import FAMILIES
from tidemq.store.rows import (
    COUNTED,
    IN_FLIGHT,
    PARSERS,
    SENT,
    Expiry,
    Message,
    QueueEntry,
    Received,
    Reference,
    Retained,
    Session,
    SharedQueue,
    Subscription,
    id_clock_ns,
)

ID = bytes.fromhex("0102030405060748 1112131415161718")
MESSAGE = bytes.fromhex("01 01 0000000000000005 00000003 00000002 00000001") + b"a/b" + b"\x02\x07" + b"x"
PARSED = Message("a/b", b"x", b"\x02\x07", 1, True, 5)
QUEUE_KEY = bytes.fromhex("0000000000000007 02") + ID
QUEUE = bytes.fromhex("0c 02 00000010 0000000000000005 0000000000010000")
SESSION = struct.pack(">QIqqIqI", 7, 60, 1, 2, 3, -1, 0)

ROWS = [
    ("payload", ID, MESSAGE, PARSED),
    ("reference", ID, b"\0\0\0\2", Reference(ID, 2)),
    ("queue", QUEUE_KEY, QUEUE, QueueEntry(7, IN_FLIGHT, ID, SENT | COUNTED, 2, 16, 5, 65536, ())),
    ("queue", QUEUE_KEY, QUEUE + b"\0\0\0\1\0\0\0\2",
     QueueEntry(7, IN_FLIGHT, ID, SENT | COUNTED, 2, 16, 5, 65536, (1, 2))),
    ("expiry", bytes.fromhex("0000000000000005 0000000000000007") + ID, b"", Expiry(5, 7, ID)),
    ("session", "ü".encode(), SESSION, Session("ü", 7, 60, 1, 2, 3, -1, None)),
    ("session", b"c", struct.pack(">QIqqIqI", 7, 60, 1, 2, 3, 9, len(MESSAGE)) + MESSAGE,
     Session("c", 7, 60, 1, 2, 3, 9, PARSED)),
    ("received", bytes.fromhex("0000000000000007 ffff"), b"", Received(7, 65535)),
    ("received", bytes.fromhex("0000000000000007 0001"), b"finger", Received(7, 1)),
    ("subscription", b"\0\1ca/+", b"\x2e\0\0\0\5", Subscription("c", "a/+", 0x2E, 5)),
    ("subscription", b"\0\1c$stream/s", b"\1\0\0\0\5" + struct.pack(">QQ", 7, 9),
     Subscription("c", "$stream/s", 1, 5, 7, 9)),
    ("shared", b"\0\0\0\0\0\0\0\x09", b"$share/g/a/b", SharedQueue(9, "$share/g/a/b")),
    ("retained", b"a/b", ID + MESSAGE, Retained(ID, PARSED)),
    ("meta", b"format", b"2", b"2"),
    ("meta", b"clock", bytes(8), bytes(8)),
    ("stream", b"s", b"anything", b"anything"),
    ("log", bytes(16), b"anything", b"anything"),
    ("cluster", b"a", b"anything", b"anything"),
]  # fmt: skip

WRONG = [
    ("payload", ID[1:], MESSAGE, "its key has 15 bytes, not 16"),
    ("payload", ID, MESSAGE[:10], "at least 22 bytes, this one 10"),
    ("payload", ID, MESSAGE + b"x", "do not add up"),
    ("payload", ID, b"\x03" + MESSAGE[1:], "out of range"),
    ("payload", ID, MESSAGE[:1] + b"\x02" + MESSAGE[2:], "out of range"),
    ("payload", ID, MESSAGE.replace(b"a/b", b"a/\xff"), "no UTF-8"),
    ("payload", ID, bytes(22), "no topic"),
    ("reference", ID, b"\0\0\0", "its value has 3 bytes, not 4"),
    ("queue", QUEUE_KEY + b"x", QUEUE, "its key has 26 bytes, not 25"),
    ("queue", QUEUE_KEY.replace(b"\2", b"\3"), QUEUE, "status is 3"),
    ("queue", QUEUE_KEY, QUEUE + b"x", "its value has 23 bytes"),
    ("queue", QUEUE_KEY, QUEUE[:21], "its value has 21 bytes"),
    ("queue", QUEUE_KEY, b"\x10" + QUEUE[1:], "out of range"),
    ("expiry", bytes(32), b"", "time is out of range"),
    ("expiry", b"\1" * 32, b"x", "its value has 1 bytes, not 0"),
    ("session", b"\xff", SESSION, "no UTF-8"),
    ("session", b"c", SESSION[:-1], "its value has 43 bytes"),
    ("session", b"c", SESSION + b"x", "do not add up"),
    ("session", b"c", struct.pack(">QIqqIqI", 7, 60, 1, 2, 3, -2, 0), "time is out of range"),
    ("session", b"c", struct.pack(">QIqqIqI", 7, 60, 1, 2, 3, -1, 5) + bytes(5), "at least 22 bytes"),
    ("received", bytes(10), b"", "packet identifier is 0"),
    ("received", bytes(9) + b"\x01", b"short", "its value has 5 bytes"),
    ("subscription", b"\0\4ca/+", bytes(5), "ends too early"),
    ("subscription", b"\0\1ca", bytes(4), "its value has 4 bytes, not 5"),
    ("shared", bytes(8), b"a/b", "no shared filter"),
    ("retained", b"a/c", ID + MESSAGE, "another topic"),
    ("retained", b"a/b", ID, "its value has 16 bytes"),
    ("meta", b"clock", bytes(7), "its value has 7 bytes, not 8"),
]


@pytest.mark.parametrize(("family", "key", "value", "expected"), ROWS)
def test_a_row_is_parsed(family: str, key: bytes, value: bytes, expected: Any) -> None:
    assert PARSERS[family](key, value) == expected


@pytest.mark.parametrize(("family", "key", "value", "problem"), WRONG)
def test_a_wrong_row_is_refused_with_the_reason(family: str, key: bytes, value: bytes, problem: str) -> None:
    with pytest.raises(StoreError, match=problem):
        PARSERS[family](key, value)


def test_every_family_has_a_parser_and_a_row_here() -> None:
    assert tuple(PARSERS) == FAMILIES
    assert {row[0] for row in ROWS} == set(FAMILIES)


def test_an_id_s_clock_is_without_the_reactor() -> None:
    assert id_clock_ns(ID) == 0x0102030405060740
