"""Rows from the file in which Mosquitto 2 keeps its state (`mosquitto.db`, version 6 of its format).

The file is 15 bytes of magic, 4 of a checksum that is not used, 4 of the version, and chunks: type (4 bytes),
size (4), content. Most numbers are big-endian; ids and times are in the order of the machine that wrote them,
which is taken to be little-endian.

Sessions, subscriptions, retained messages, and messages that wait or are in flight towards clients are taken
over. Messages of QoS 2 that a client had sent and not released yet, and queued ones of QoS 0, are not.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from tidemq.errors import StoreError
from tidemq.store.interface import FORMAT, FORMAT_KEY
from tidemq.store.portable import Entry
from tidemq.store.rows import COUNTED, IDLE, IN_FLIGHT, RELEASED, RETAIN, SENT

_MAGIC = b"\x00\xb5\x00mosquitto db"
_VERSION = 6
_START = len(_MAGIC) + 4 + 4
_CHUNK = struct.Struct(">II")
_MESSAGE, _DELIVERY, _RETAINED, _SUBSCRIPTION, _CLIENT = 2, 3, 4, 5, 6  # types of chunks; 1: settings

# native ids and times, then the big-endian rest
_MESSAGE_HEAD = (struct.Struct("<Qq"), struct.Struct(">IHHHHHBB"))
_DELIVERY_HEAD = (struct.Struct("<Q"), struct.Struct(">HHBBBB"))
_CLIENT_HEAD = (struct.Struct("<q"), struct.Struct(">IHHHHI"))
_SUBSCRIPTION_HEAD = (struct.Struct(""), struct.Struct(">IHHBBH"))
_RETAINED_HEAD = (struct.Struct("<Q"), struct.Struct(""))

_OUT = 1  # direction of a delivery
_WAIT_STATES = {3: 0, 5: 0, 6: RELEASED, 9: RELEASED}  # for PUBACK, PUBREC; to send PUBREL; for PUBCOMP
_OPTION_BITS = 0x3C  # no local, retain as published, retain handling
_SUBSCRIPTION_ID = 0x0B
_ENTRY_BYTES = 80  # that a queued message counts for beside its content


@dataclass(frozen=True, slots=True)
class _Message:
    topic: bytes
    payload: bytes
    properties: bytes
    qos: int
    retain: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class _Delivery:
    client_id: bytes
    message: int
    packet_id: int
    qos: int
    state: int
    retain: int
    subscription_ids: tuple[int, ...]


@dataclass
class MosquittoState:
    """What the file says; `left_out` counts what is not taken over, by reason."""

    messages: dict[int, _Message] = field(default_factory=dict)
    deliveries: list[_Delivery] = field(default_factory=list)
    retained: list[int] = field(default_factory=list)
    subscriptions: list[tuple[bytes, bytes, int, int]] = field(default_factory=list)
    clients: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # expiry in s, ends at in ms
    users: dict[bytes, str] = field(default_factory=dict)  # names of clients that gave one
    left_out: Counter[str] = field(default_factory=Counter)


def parse_mosquitto(text: bytes) -> MosquittoState:
    """Reads the file; StoreError when it is none, of another version, or damaged."""
    if not text.startswith(_MAGIC) or len(text) < _START:
        raise StoreError("this is no file of Mosquitto's")
    version = int.from_bytes(text[_START - 4 : _START])
    if version != _VERSION:
        raise StoreError(f"the file has version {version}; Mosquitto 2, which writes {_VERSION}, can read it")
    state = MosquittoState()
    parsers = {
        _MESSAGE: _add_message,
        _DELIVERY: _add_delivery,
        _RETAINED: _add_retained,
        _SUBSCRIPTION: _add_subscription,
        _CLIENT: _add_client,
    }
    at = _START
    while at < len(text):
        try:
            kind, size = _CHUNK.unpack_from(text, at)
            at += _CHUNK.size + size
            if at > len(text):
                raise StoreError(f"the file is cut off in its chunk at {at - size}")
            if kind in parsers:
                parsers[kind](state, text[at - size : at])
        except (struct.error, IndexError) as error:
            raise StoreError(f"the file is damaged before {at}: {error}") from error
    _drop_unknown(state)
    return state


def plan_rows(state: MosquittoState) -> Iterator[Entry]:
    """The rows of a store with that state. Ids are in the order in which Mosquitto got the messages.

    Where a queue has another order, or one message twice, it gets copies of messages under later ids.
    """
    numbers = {message: number for number, message in enumerate(sorted(state.messages), 1)}
    messages = {number: state.messages[message] for message, number in numbers.items()}
    queues = {client_id: number for number, client_id in enumerate(state.clients, 1)}
    last: dict[bytes, int] = {}
    placed: list[tuple[int, _Delivery]] = []
    for delivery in state.deliveries:
        number = numbers[delivery.message]
        if number <= last.get(delivery.client_id, 0):
            number = len(messages) + 1
            messages[number] = state.messages[delivery.message]
        last[delivery.client_id] = number
        placed.append((number, delivery))
    references = Counter(number for number, _ in placed)
    incarnation = secrets.token_bytes(8)
    first_ns = (time.time_ns() & ~0x3F) - 64 * (len(messages) + 1)

    def make_id(number: int) -> bytes:
        return struct.pack(">Q", first_ns + 64 * number) + incarnation

    yield "meta", FORMAT_KEY, FORMAT
    yield "meta", b"incarnation", incarnation
    yield "meta", b"clock", make_id(len(messages))[:8]
    for client_id, (expiry_s, ends_at_ms) in state.clients.items():
        yield (
            "session",
            client_id,
            struct.pack(">QIqqIqI", queues[client_id], expiry_s, ends_at_ms, 0, 0, -1, 0),
        )
    for client_id, topic_filter, options, subscription_id in state.subscriptions:
        key = struct.pack(">H", len(client_id)) + client_id + topic_filter
        yield "subscription", key, struct.pack(">BI", options, subscription_id)
    for message in state.retained:
        content = _encode_message(state.messages[message])
        yield "retained", state.messages[message].topic, make_id(numbers[message]) + content
    for number, count in references.items():
        yield "payload", make_id(number), _encode_message(messages[number])
        if count > 1:
            yield "reference", make_id(number), struct.pack(">I", count)
    places: dict[bytes, int] = {}
    for number, delivery in placed:
        message_id, queue = make_id(number), queues[delivery.client_id]
        counted = COUNTED if references[number] > 1 else 0
        yield _encode_entry(delivery, messages[number], queue, message_id, counted, places)
        if messages[number].expires_at_ms:
            key = struct.pack(">qQ", messages[number].expires_at_ms, queue) + message_id
            yield "expiry", key, b""


def _encode_entry(
    delivery: _Delivery,
    message: _Message,
    queue: int,
    message_id: bytes,
    flags: int,
    places: dict[bytes, int],
) -> Entry:
    """The row of a queue entry. `places` has, by client, the last place in its outbox."""
    status, sequence = IDLE, 0
    flags |= RETAIN if delivery.retain else 0
    if delivery.state in _WAIT_STATES:
        status = IN_FLIGHT
        flags |= SENT | _WAIT_STATES[delivery.state]
        before = places.get(delivery.client_id, 0)
        sequence = delivery.packet_id - 1 + before // 65535 * 65535
        if sequence < before:
            sequence += 65535  # packet identifiers began anew
        places[delivery.client_id] = sequence
    size = _ENTRY_BYTES + len(message.topic) + len(message.properties) + len(message.payload)
    value = struct.pack(">BBIqQ", flags, delivery.qos, size, message.expires_at_ms, sequence)
    value += struct.pack(f">{len(delivery.subscription_ids)}I", *delivery.subscription_ids)
    return "queue", struct.pack(">QB", queue, status) + message_id, value


def _encode_message(message: _Message) -> bytes:
    parts = (message.topic, message.properties, message.payload)
    head = struct.pack(">BBqIII", message.qos, message.retain, message.expires_at_ms, *map(len, parts))
    return head + b"".join(parts)


def _unpack(head: tuple[struct.Struct, struct.Struct], chunk: bytes) -> tuple[list[int], bytes]:
    """The numbers at a chunk's beginning, and the rest of it."""
    native, network = head
    numbers = [*native.unpack_from(chunk), *network.unpack_from(chunk, native.size)]
    return numbers, chunk[native.size + network.size :]


def _add_message(state: MosquittoState, chunk: bytes) -> None:
    numbers, rest = _unpack(_MESSAGE_HEAD, chunk)
    message, expires_at_s, payload_size, _, id_size, name_size, topic_size, _, qos, retain = numbers
    at = id_size + name_size
    _need(rest, at + topic_size + payload_size)
    topic, payload = rest[at : at + topic_size], rest[at + topic_size : at + topic_size + payload_size]
    block = rest[at + topic_size + payload_size :]
    properties = block[_read_varint(block, 0)[1] :] if block else b""
    state.messages[message] = _Message(topic, payload, properties, qos, retain & 1, _ms(expires_at_s))


def _add_delivery(state: MosquittoState, chunk: bytes) -> None:
    numbers, rest = _unpack(_DELIVERY_HEAD, chunk)
    message, packet_id, id_size, qos, delivery_state, retain_dup, direction = numbers
    _need(rest, id_size)
    if delivery_state in _WAIT_STATES and not packet_id:
        raise IndexError("a message in flight has no packet identifier")
    if direction != _OUT:
        state.left_out["QoS 2 messages that their publisher had not released"] += 1
    elif not qos:
        state.left_out["queued messages of QoS 0"] += 1
    else:
        ids = tuple(_read_subscription_ids(rest[id_size:]))
        retain = retain_dup >> 4  # the other half is DUP
        delivery = _Delivery(rest[:id_size], message, packet_id, qos, delivery_state, retain, ids)
        state.deliveries.append(delivery)


def _add_retained(state: MosquittoState, chunk: bytes) -> None:
    state.retained += _unpack(_RETAINED_HEAD, chunk)[0]


def _add_subscription(state: MosquittoState, chunk: bytes) -> None:
    (subscription_id, id_size, filter_size, qos, options, _), rest = _unpack(_SUBSCRIPTION_HEAD, chunk)
    _need(rest, id_size + filter_size)
    topic_filter = rest[id_size : id_size + filter_size]
    options = options & _OPTION_BITS | qos
    state.subscriptions.append((rest[:id_size], topic_filter, options, subscription_id))


def _add_client(state: MosquittoState, chunk: bytes) -> None:
    (ends_at_s, expiry_s, _, id_size, _, name_size, _), rest = _unpack(_CLIENT_HEAD, chunk)
    _need(rest, id_size)
    if expiry_s:  # else the session ended with its connection
        state.clients[rest[:id_size]] = (expiry_s, _ms(ends_at_s))
        # of clients without a user 2.0.11 writes what was in its memory
        with suppress(UnicodeDecodeError):
            user = rest[id_size : id_size + name_size].decode()
            if user.isprintable() and user:
                state.users[rest[:id_size]] = user


def _ms(seconds: int) -> int:
    """A time in milliseconds. IndexError for one that no clock has had: a row cannot hold it."""
    if not 0 <= seconds < 1 << 48:
        raise IndexError(f"{seconds} is no time")
    return seconds * 1000


def _need(rest: bytes, size: int) -> None:
    """IndexError where a chunk has less than its head says: what is missing would be left out in silence."""
    if len(rest) < size:
        raise IndexError(f"{size} bytes are named, and {len(rest)} are there")


def _drop_unknown(state: MosquittoState) -> None:
    """Leaves out what belongs to clients whose sessions ended, and what has no message, which is counted."""
    clients, messages = state.clients, state.messages
    state.subscriptions = [each for each in state.subscriptions if each[0] in clients]
    deliveries = [each for each in state.deliveries if each.client_id in clients]
    state.deliveries = [each for each in deliveries if each.message in messages]
    retained, state.retained = state.retained, [each for each in state.retained if each in messages]
    missing = len(deliveries) - len(state.deliveries) + len(retained) - len(state.retained)
    if missing:
        state.left_out["messages whose content the file does not have"] += missing


def _read_subscription_ids(block: bytes) -> Iterator[int]:
    """The properties of a delivery, which are subscription identifiers alone."""
    if not block:
        return
    at = _read_varint(block, 0)[1]
    while at < len(block) and block[at] == _SUBSCRIPTION_ID:
        value, at = _read_varint(block, at + 1)
        yield value


def _read_varint(text: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer of MQTT, and where it ends."""
    value = shift = 0
    while True:
        value |= (text[at] & 0x7F) << shift
        at += 1
        if text[at - 1] < 0x80:
            return value, at
        shift += 7
