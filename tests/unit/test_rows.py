"""Rows of a store as an engine takes them: those that follow the layouts are what they say, others are
refused, and whatever bytes a damaged store holds, the engine neither fails nor keeps anything of them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemq.engine import Engine, StoreAccess
from tidemq.engine.door.listeners import tcp_sockets
from tidemq.limits import Limits
from tidemq.store.rows import parse_message, parse_queue, parse_received, parse_session, parse_subscription

ID = struct.pack(">QQ", 640, 7)
BYTES = st.binary(max_size=80)


class Loading:
    """An engine that is being loaded; closed at the end, nothing of it may be left."""

    def __enter__(self) -> Self:
        self.engine = Engine(Limits(), reactors=2)
        self.access = StoreAccess(self.engine)
        self.access.open(7, 0, as_of_ms=time.time_ns() // 1_000_000)
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        left = {name: value for name, value in self.engine.live_objects().items() if value}
        assert not left

    def load_queue(self, key: bytes, value: bytes, payload: bytes) -> bool:
        """A row of a queue as the keeper loads it; whether it is in memory now."""
        inflight = self.access.load_queue([(key, value)], set(), [], [])
        return bool(inflight) and self.access.load_inflight(*inflight[0], payload)


def message(
    topic: bytes = b"t",
    payload: bytes = b"p",
    properties: bytes = b"",
    qos: int = 1,
    retain: int = 0,
    expires: int = 0,
) -> bytes:
    head = struct.pack(">BBqIII", qos, retain, expires, len(topic), len(properties), len(payload))
    return head + topic + properties + payload


def session(
    number: int = 1,
    expiry: int = 100,
    ends: int = 0,
    due: int = 0,
    delay: int = 0,
    will_expiry: int = -1,
    will: bytes = b"",
) -> bytes:
    return struct.pack(">QIqqIqI", number, expiry, ends, due, delay, will_expiry, len(will)) + will


def queue_key(number: int = 1, status: int = 2, at: bytes = ID) -> bytes:
    return struct.pack(">QB", number, status) + at


def queue_value(
    flags: int = 8,
    qos: int = 1,
    size: int = 100,
    expires: int = 0,
    sequence: int = 0,
    ids: Sequence[int] = (),
) -> bytes:
    return struct.pack(f">BBIqQ{len(ids)}I", flags, qos, size, expires, sequence, *ids)


def test_these_rows_follow_the_documented_layouts() -> None:
    """Those of this file, which the engine takes below."""
    assert parse_message(message()).topic == "t"
    will = parse_session(b"c", session(will=message())).will
    assert will is not None
    assert will.payload == b"p"
    assert parse_queue(queue_key(), queue_value(ids=(1, 2))).subscription_ids == (1, 2)
    assert parse_received(struct.pack(">QH", 1, 5), b"").packet_id == 5
    assert parse_subscription(b"\x00\x01ct", b"\x01\x00\x00\x00\x00").topic_filter == "t"


def test_rows_that_follow_the_layouts_are_taken() -> None:
    with Loading() as loading:
        access = loading.access
        assert access.load_session(b"c", session(1, will=message()))
        assert access.load_session(b"d", session(2))
        assert access.load_subscription(b"\x00\x01ca/#", b"\x01\x00\x00\x00\x09")
        assert access.load_received(struct.pack(">QH", 1, 5))
        assert access.load_subscription(b"\x00\x01c$share/g/t", b"\x01\x00\x00\x00\x00")
        assert access.load_shared(struct.pack(">Q", 5), b"$share/g/t")
        assert access.load_retained(b"t", ID + message())
        assert loading.load_queue(queue_key(), queue_value(ids=(1, 2)), message())


def test_what_was_loaded_counts_when_the_engine_starts() -> None:
    """On every reactor, whether it has had a turn or not."""
    with Loading() as loading:
        for number in range(1, 21):
            assert loading.access.load_session(b"%d" % number, session(number))
        loading.engine.start()
        assert loading.engine.counters()["live_sessions"] == 20


@pytest.mark.parametrize(
    "value",
    [
        b"",
        session()[:-1],
        session() + b"x",
        session(number=0),
        session(will=message()[:-1]),
        session(will=message(topic=b"")),
        session(will=message(qos=3)),
        session(will=b"x"),
    ],
    ids=["empty", "short", "long", "number 0", "short will", "no topic", "QoS 3", "no message"],
)
def test_a_session_that_does_not_is_refused(value: bytes) -> None:
    with Loading() as loading:
        assert not loading.access.load_session(b"c", value)


def test_two_sessions_with_one_number_or_one_name_are_not_both_taken() -> None:
    with Loading() as loading:
        assert loading.access.load_session(b"c", session(1))
        assert not loading.access.load_session(b"d", session(1, will=message()))
        assert not loading.access.load_session(b"c", session(2, will=message()))


@pytest.mark.parametrize(
    ("topic", "value"),
    [
        (b"t", b""),
        (b"t", ID),
        (b"t", ID + message()[:-1]),
        (b"t", ID + message() + b"x"),
        (b"t", ID + message(topic=b"other")),
        (b"t", ID + message(topic=b"u")),
        (b"t", ID + message(qos=3)),
        (b"", ID + message(topic=b"")),
    ],
    ids=["empty", "no message", "short", "long", "longer topic", "another topic", "QoS 3", "no topic"],
)
def test_a_retained_message_that_does_not_is_refused(topic: bytes, value: bytes) -> None:
    with Loading() as loading:
        assert not loading.access.load_retained(topic, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b"\0" * 5),
        (b"\x00\x01", b"\0" * 5),
        (b"\x00\x01c", b"\0" * 5),
        (b"\x00\x09c", b"\0" * 5),
        (b"\x00\x01ct", b"\0" * 4),
        (b"\x00\x01ct", b"\0" * 6),
        (b"\x00\x01ct", b"\x03\0\0\0\0"),
        (b"\x00\x01ca/#/b", b"\0" * 5),
        (b"\x00\x01ca+", b"\0" * 5),
        (b"\x00\x01c$share/g", b"\0" * 5),
        (b"\x00\x01c\xff", b"\0" * 5),
    ],
    ids=[
        "empty",
        "no client",
        "no filter",
        "short",
        "short value",
        "long value",
        "QoS 3",
        "wildcard in the middle",
        "wildcard in a level",
        "no filter in the group",
        "no UTF-8",
    ],
)
def test_a_subscription_that_does_not_is_refused(key: bytes, value: bytes) -> None:
    with Loading() as loading:
        assert loading.access.load_session(b"c", session())
        assert not loading.access.load_subscription(key, value)


@pytest.mark.parametrize(
    ("key", "value", "payload"),
    [
        (queue_key()[:-1], queue_value(), message()),
        (queue_key() + b"x", queue_value(), message()),
        (queue_key(status=0), queue_value(), message()),
        (queue_key(status=3), queue_value(), message()),
        (queue_key(), queue_value()[:-1], message()),
        (queue_key(), queue_value() + b"xxx", message()),
        (queue_key(), queue_value(qos=0), message()),
        (queue_key(), queue_value(qos=3), message()),
        (queue_key(), queue_value(), message()[:-1]),
        (queue_key(), queue_value(), b""),
    ],
    ids=[
        "short key",
        "long key",
        "status 0",
        "status 3",
        "short value",
        "crooked value",
        "QoS 0",
        "QoS 3",
        "short payload",
        "empty payload",
    ],
)
def test_a_row_of_a_queue_that_does_not_is_refused(key: bytes, value: bytes, payload: bytes) -> None:
    with Loading() as loading:
        assert loading.access.load_session(b"c", session())
        assert not loading.load_queue(key, value, payload)


def test_rows_in_flight_too_far_from_each_other_or_at_one_place_are_refused() -> None:
    """One outbox has 65,535 places."""
    with Loading() as loading:
        loading.access.load_session(b"c", session())
        rows = [(queue_key(at=struct.pack(">QQ", 64 * at, 7)), at) for at in range(1, 4)]
        places = [10, 10, 10 + 65535]
        taken = [
            loading.load_queue(key, queue_value(sequence=place), message())
            for (key, _), place in zip(rows, places, strict=True)
        ]
        assert taken == [True, False, False]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0" * 7, b"$share/g/t"),
        (b"\0" * 9, b"$share/g/t"),
        (struct.pack(">Q", 5), b"t"),
        (struct.pack(">Q", 5), b"$share/g"),
        (struct.pack(">Q", 5), b"$share/other/t"),
        (struct.pack(">Q", 1), b"$share/g/t"),
    ],
    ids=["short", "long", "not shared", "no filter", "a group without members", "a number in use"],
)
def test_a_shared_queue_that_does_not_is_refused(key: bytes, value: bytes) -> None:
    with Loading() as loading:
        assert loading.access.load_session(b"c", session(1))
        assert loading.access.load_subscription(b"\x00\x01c$share/g/t", b"\x01\x00\x00\x00\x00")
        assert not loading.access.load_shared(key, value)


def test_rows_without_a_session_are_orphans() -> None:
    with Loading() as loading:
        orphans: set[Any] = set()
        held: list[Any] = []
        corrupt: list[Any] = []
        assert not loading.access.load_queue([(queue_key(9), queue_value())], orphans, held, corrupt)
        assert (orphans, held, corrupt) == ({9}, [], [])


def mutated(row: bytes) -> st.SearchStrategy[bytes]:
    """The row with some bytes changed, or cut."""
    changes = st.lists(st.tuples(st.integers(0, len(row) - 1), st.integers(0, 255)), max_size=4)

    def apply(changes_and_end: tuple[list[tuple[int, int]], int | None]) -> bytes:
        changes, end = changes_and_end
        text = bytearray(row)
        for at, byte in changes:
            text[at] = byte
        return bytes(text[:end])

    return st.tuples(changes, st.sampled_from([None, None, len(row) // 2, len(row) - 1])).map(apply)


ROWS = st.one_of(
    st.tuples(st.just("session"), BYTES, BYTES | mutated(session(2, will=message()))),
    st.tuples(
        st.just("subscription"), BYTES | mutated(b"\x00\x01ca/+/#"), BYTES | mutated(b"\x01\0\0\0\x09")
    ),
    st.tuples(st.just("received"), BYTES | mutated(struct.pack(">QH", 1, 5)), st.just(b"")),
    st.tuples(st.just("retained"), BYTES, BYTES | mutated(ID + message())),
    st.tuples(st.just("shared"), BYTES | mutated(struct.pack(">Q", 5)), BYTES | mutated(b"$share/g/t")),
    st.tuples(
        st.just("queue"),
        BYTES | mutated(queue_key()),
        st.tuples(BYTES | mutated(queue_value(ids=(1, 2))), BYTES | mutated(message())),
    ),
)


@given(st.lists(ROWS, max_size=8))
def test_no_bytes_harm_the_engine(rows: list[tuple[str, bytes, Any]]) -> None:
    with Loading() as loading:
        access = loading.access
        access.load_session(b"c", session(1))
        access.load_subscription(b"\x00\x01c$share/g/t", b"\x01\x00\x00\x00\x00")
        for family, key, value in rows:
            if family == "session":
                access.load_session(key, value)
            elif family == "subscription":
                access.load_subscription(key, value)
            elif family == "received":
                access.load_received(key)
            elif family == "retained":
                access.load_retained(key, value)
            elif family == "shared":
                access.load_shared(key, value)
            else:
                loading.load_queue(key, *value)
        access.loaded(crashed=True)
        loading.engine.listen(tcp_sockets("127.0.0.1", 0, 2))
        loading.engine.start()
        access.deliver_rows(0, 1, [(key, *value) for family, key, value in rows if family == "queue"], False)
