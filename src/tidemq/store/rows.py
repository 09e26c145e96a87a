"""The layouts of rows, of format 2: what each family's keys and values mean.

The engine reads and writes rows by the same layouts; this is for tools and tests. Numbers are big-endian.
Times are milliseconds of the wall clock, where 0 is never. A `parse_…` function takes a key and a value and
raises StoreError, which says what is wrong, for what does not follow the layout.

A message id has 16 bytes: a clock in nanoseconds (8 bytes; the lowest 6 bits are the reactor) and the
incarnation of the server (8). Ids are in the order of the messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidemq.errors import StoreError

ID_BYTES = 16
FINGERPRINT_BYTES = 6
IDLE, IN_FLIGHT = 1, 2  # status of a queue entry

# flags of a queue entry
RETAIN, RELEASED, COUNTED, SENT = 1, 2, 4, 8

BACKLOG = 0x80  # in the options of a subscription: not all that is retained has been sent to it

_ID_CLOCK = struct.Struct(">Q")
_MESSAGE = struct.Struct(">BBqIII")
_QUEUE_KEY = struct.Struct(">QB16s")
_QUEUE = struct.Struct(">BBIqQ")
_EXPIRY_KEY = struct.Struct(">qQ16s")
_SESSION = struct.Struct(">QIqqIqI")
_RECEIVED_KEY = struct.Struct(">QH")
_SUBSCRIPTION = struct.Struct(">BI")
_REPLAY = struct.Struct(">QQ")
_META_BYTES = {b"incarnation": 8, b"clock": 8}


@dataclass(frozen=True, slots=True)
class Message:
    """A message as `payload`, `retained` and a session's will hold it."""

    topic: str
    payload: bytes
    properties: bytes  # as in the control packet
    qos: int
    retain: bool
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A message in a queue; its payload is in `payload`, under the same id."""

    queue: int
    status: int
    id: bytes
    flags: int
    qos: int
    message_bytes: int
    expires_at_ms: int
    sequence: int  # place in the outbox when in flight; packet identifier: sequence % 65535 + 1
    subscription_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expiry:
    """That a queue entry expires; only for those that do."""

    expires_at_ms: int
    queue: int
    id: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """A client's session, its queue's number among it."""

    client_id: str
    queue: int
    expiry_s: int
    ends_at_ms: int
    will_due_at_ms: int
    will_delay_s: int
    will_expiry_s: int  # -1: none
    will: Message | None


@dataclass(frozen=True, slots=True)
class Received:
    """A QoS 2 message from a client that waits for PUBREL."""

    queue: int
    packet_id: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """A session's subscription."""

    client_id: str
    topic_filter: str
    options: int  # as in SUBSCRIBE, and `BACKLOG`
    subscription_id: int  # 0: none
    stream_epoch: int | None = None  # of a subscription at QoS 1 to what a stream keeps,
    first_unacknowledged: int | None = None  # and the offset before which all is acknowledged


@dataclass(frozen=True, slots=True)
class SharedQueue:
    """The queue of a shared subscription."""

    queue: int
    topic_filter: str  # $share/group/filter


@dataclass(frozen=True, slots=True)
class Retained:
    """The retained message of a topic."""

    id: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Reference:
    """How many queue entries refer to a payload; a payload without this row has one."""

    id: bytes
    count: int


def id_clock_ns(message_id: bytes) -> int:
    """When a message came, as its id says."""
    clock: int = _ID_CLOCK.unpack_from(message_id)[0]
    return clock & ~0x3F


def parse_message(value: bytes) -> Message:
    """The layout `>BBqIII`: QoS, retain, expires at, sizes of topic, properties and payload; then these."""
    if len(value) < _MESSAGE.size:
        raise StoreError(f"a message has at least {_MESSAGE.size} bytes, this one {len(value)}")
    qos, retain, expires_at_ms, topic_bytes, properties_bytes, payload_bytes = _MESSAGE.unpack_from(value)
    topic_end = _MESSAGE.size + topic_bytes
    properties_end = topic_end + properties_bytes
    _require(properties_end + payload_bytes == len(value), "its parts do not add up to its size")
    _require(qos <= 2 and retain <= 1 and expires_at_ms >= 0, "QoS, retain or expiry is out of range")
    _require(topic_bytes > 0, "it has no topic")
    topic = _decode(value[_MESSAGE.size : topic_end])
    properties, payload = value[topic_end:properties_end], value[properties_end:]
    return Message(topic, payload, properties, qos, bool(retain), expires_at_ms)


def parse_payload(key: bytes, value: bytes) -> Message:
    """Message id -> message."""
    _require_size(key, ID_BYTES, "key")
    return parse_message(value)


def parse_reference(key: bytes, value: bytes) -> Reference:
    """Message id -> `>I` count."""
    _require_size(key, ID_BYTES, "key")
    _require_size(value, 4, "value")
    return Reference(key, int.from_bytes(value))


def parse_queue(key: bytes, value: bytes) -> QueueEntry:
    """Queue (8), status (1), id -> `>BBIqQ` flags, QoS, size, expires at, sequence; subscription ids (4)."""
    _require_size(key, _QUEUE_KEY.size, "key")
    queue, status, message_id = _QUEUE_KEY.unpack(key)
    _require(status in (IDLE, IN_FLIGHT), f"its status is {status}")
    rest = len(value) - _QUEUE.size
    _require(rest >= 0 and rest % 4 == 0, f"its value has {len(value)} bytes")
    flags, qos, message_bytes, expires_at_ms, sequence = _QUEUE.unpack_from(value)
    _require(qos <= 2 and flags < 16 and expires_at_ms >= 0, "flags, QoS or expiry is out of range")
    ids = struct.unpack_from(f">{rest // 4}I", value, _QUEUE.size)
    return QueueEntry(queue, status, message_id, flags, qos, message_bytes, expires_at_ms, sequence, ids)


def parse_expiry(key: bytes, value: bytes) -> Expiry:
    """Expires at (8), queue (8), message id -> nothing."""
    _require_size(key, _EXPIRY_KEY.size, "key")
    _require_size(value, 0, "value")
    expires_at_ms, queue, message_id = _EXPIRY_KEY.unpack(key)
    _require(expires_at_ms > 0, "its time is out of range")
    return Expiry(expires_at_ms, queue, message_id)


def parse_session(key: bytes, value: bytes) -> Session:
    """Client id -> `>QIqqIqI` queue, expiry, ends at, will: due at, delay, expiry, size; then the will."""
    client_id = _decode(key)
    _require(len(value) >= _SESSION.size, f"its value has {len(value)} bytes")
    queue, expiry_s, ends_at_ms, due_at_ms, delay_s, will_expiry_s, size = _SESSION.unpack_from(value)
    _require(_SESSION.size + size == len(value), "its parts do not add up to its size")
    _require(ends_at_ms >= 0 and due_at_ms >= 0 and will_expiry_s >= -1, "a time is out of range")
    will = parse_message(value[_SESSION.size :]) if size else None
    return Session(client_id, queue, expiry_s, ends_at_ms, due_at_ms, delay_s, will_expiry_s, will)


def parse_received(key: bytes, value: bytes) -> Received:
    """Queue (8), packet identifier (2) -> nothing, or in a cluster the message's fingerprint (6)."""
    _require_size(key, _RECEIVED_KEY.size, "key")
    _require(len(value) in (0, FINGERPRINT_BYTES), f"its value has {len(value)} bytes")
    received = Received(*_RECEIVED_KEY.unpack(key))
    _require(received.packet_id > 0, "its packet identifier is 0")
    return received


def parse_subscription(key: bytes, value: bytes) -> Subscription:
    """Size of client id (2), client id, topic filter -> `>BI` options, subscription id; of a subscription at
    QoS 1 to what a stream keeps `>QQ` follow, the stream's epoch and the first offset not acknowledged.
    """
    end = 2 + int.from_bytes(key[:2])
    _require(len(key) > end, "its key ends too early")
    client_id, topic_filter = _decode(key[2:end]), _decode(key[end:])
    if len(value) == _SUBSCRIPTION.size + _REPLAY.size:
        place = _REPLAY.unpack_from(value, _SUBSCRIPTION.size)
        return Subscription(client_id, topic_filter, *_SUBSCRIPTION.unpack_from(value), *place)
    _require_size(value, _SUBSCRIPTION.size, "value")
    return Subscription(client_id, topic_filter, *_SUBSCRIPTION.unpack(value))


def parse_shared(key: bytes, value: bytes) -> SharedQueue:
    """Queue (8) -> `$share/group/filter`."""
    _require_size(key, 8, "key")
    topic_filter = _decode(value)
    _require(topic_filter.startswith("$share/") and topic_filter.count("/") >= 2, "it is no shared filter")
    return SharedQueue(int.from_bytes(key), topic_filter)


def parse_retained(key: bytes, value: bytes) -> Retained:
    """Topic -> message id, message."""
    _require(len(value) > ID_BYTES, f"its value has {len(value)} bytes")
    retained = Retained(value[:ID_BYTES], parse_message(value[ID_BYTES:]))
    _require(retained.message.topic.encode() == key, "its message has another topic")
    return retained


def parse_meta(key: bytes, value: bytes) -> bytes:
    """`format`, `incarnation` and `clock`; the value as it is."""
    if key in _META_BYTES:
        _require_size(value, _META_BYTES[key], "value")
    return value


def parse_stream(_key: bytes, value: bytes) -> bytes:
    """Nothing is written there yet; the value as it is."""
    return value


def parse_cluster(_key: bytes, value: bytes) -> bytes:
    """What a cluster's node knows of rows besides; `tidemq/cluster` has the layouts. The value as it is."""
    return value


PARSERS: Mapping[str, Callable[[bytes, bytes], object]] = {
    "payload": parse_payload,
    "reference": parse_reference,
    "queue": parse_queue,
    "expiry": parse_expiry,
    "session": parse_session,
    "received": parse_received,
    "subscription": parse_subscription,
    "shared": parse_shared,
    "retained": parse_retained,
    "stream": parse_stream,
    "log": parse_cluster,
    "cluster": parse_cluster,
    "meta": parse_meta,
}


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise StoreError(problem)


def _require_size(text: bytes, size: int, what: str) -> None:
    if len(text) != size:
        raise StoreError(f"its {what} has {len(text)} bytes, not {size}")


def _decode(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"{text[:40]!r} is no UTF-8") from error
