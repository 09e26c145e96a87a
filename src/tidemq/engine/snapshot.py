"""The engine's durable state as store entries ``(family, key, value)``: sessions that outlive their
connection, their subscriptions and queues, and retained messages.

Taken when no reactor runs any more, restored before one does. Integers are big-endian; times are milliseconds
of the wall clock, because the monotonic one begins anew with the machine. Layouts, with ``+`` for
concatenation:

=============  ==========================================  ==================================================
family         key                                         value
=============  ==========================================  ==================================================
payload        number (8 bytes)                            MESSAGE
session        client id                                   expiry s (4), ends at (8, 0: not yet), received ids
                                                           (2 each)
subscription   length of client id (2) + client id +       options (1), subscription id (4)
               filter
queue          length of client id (2) + client id +       ENTRY + subscription ids (4 each)
               i or w + sequence (8)
retained       topic                                       MESSAGE
=============  ==========================================  ==================================================

A will that waits for its delay, and retained messages that a subscription had still to get, are not part of
it.

In a queue's key ``i`` stands for in flight and ``w`` for waiting. The sequence gives the packet identifier.
"""

from __future__ import annotations

import struct
import time

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.allocation import obtain
from cython.cimports.tidemq.engine.counters import LIVE_ENTRIES
from cython.cimports.tidemq.engine.levels import LevelNode, node_at
from cython.cimports.tidemq.engine.message import (
    hold_message,
    message_bytes,
    new_message,
    payload_of,
    properties_of,
    release_message,
    topic_of,
)
from cython.cimports.tidemq.engine.outbox import append_entry, entry_at
from cython.cimports.tidemq.engine.publishing import note_received
from cython.cimports.tidemq.engine.retained import put_retained
from cython.cimports.tidemq.engine.sessions import Found, add_subscription, find_session
from cython.cimports.tidemq.engine.state import (
    DONE,
    FOR_EVER,
    RELEASED,
    SENT,
    WAITING,
    Entry,
    Message,
    Outbox,
    Passage,
    Reactor,
    Session,
    SessionSubscription,
    Shared,
)
from cython.cimports.tidemq.engine.timers import clock_ms, time_session
from cython.cimports.tidemq.wire.protocol import bytes_of, span_of
from cython.operator import dereference, preincrement

# QoS, retain, expires at, sizes of topic, properties and payload; then these
MESSAGE = struct.Struct(">BBqIII")
ENTRY = struct.Struct(">QBBBB")  # number of the payload, QoS, retain, released, was sent
SESSION = struct.Struct(">Iq")
SUBSCRIPTION = struct.Struct(">BI")


@cython.cfunc
def _wall_offset_ms() -> int64_t:
    """What turns a time of the monotonic clock into one of the wall clock."""
    return int(time.time() * 1000) - clock_ms()


@cython.cfunc
def _pack_message(message: cython.pointer[Message]) -> bytes:
    expires_ms = message.expires_ms + _wall_offset_ms() if message.expires_ms else 0
    topic = bytes_of(topic_of(message))
    properties = bytes_of(properties_of(message))
    payload = bytes_of(payload_of(message))
    head = MESSAGE.pack(message.qos, message.retain, expires_ms, len(topic), len(properties), len(payload))
    return head + topic + properties + payload


@cython.cfunc
def _unpack_message(r: cython.pointer[Reactor], value: bytes) -> cython.pointer[Message]:
    """The message, held once by the caller."""
    passage: Passage
    qos, retain, expires_ms, topic_size, properties_size, payload_size = MESSAGE.unpack_from(value)
    at = MESSAGE.size
    topic = value[at : at + topic_size]
    at += topic_size
    properties = value[at : at + properties_size]
    at += properties_size
    payload = value[at : at + payload_size]
    memset(cython.address(passage), 0, cython.sizeof(Passage))
    passage.topic = span_of(topic)
    passage.properties = span_of(properties)
    passage.payload = span_of(payload)
    passage.qos = qos
    passage.retain = retain
    if expires_ms:
        left: int64_t = expires_ms - _wall_offset_ms()
        passage.expires_ms = left if left > 0 else 1
    return new_message(cython.address(passage), r.tally)


@cython.cfunc
def _owned_key(client_id: bytes, rest: bytes) -> bytes:
    return struct.pack(">H", len(client_id)) + client_id + rest


@cython.cfunc
def _split_owned_key(key: bytes) -> tuple:
    (size,) = struct.unpack_from(">H", key)
    return key[2 : 2 + size], key[2 + size :]


@cython.cfunc
def _pack_session(s: cython.pointer[Session]) -> bytes:
    ends_ms = s.ends_ms + _wall_offset_ms() if s.ends_ms else 0
    index: cython.size_t
    received = []
    if s.received != cython.NULL:
        received = [index for index in range(65536) if s.received[index >> 6] >> (index & 63) & 1]
    return SESSION.pack(s.expiry_s, ends_ms) + struct.pack(f">{len(received)}H", *received)


@cython.cfunc
def _pack_queue(s: cython.pointer[Session], client_id: bytes, payloads: dict, result: list):
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    sequence: uint64_t = box.head
    index: uint32_t
    while sequence != box.tail:
        entry: cython.pointer[Entry] = entry_at(box, sequence)
        if entry.state != DONE:
            number = 0
            if entry.message != cython.NULL:
                number = cython.cast(uint64_t, entry.message)
                if number not in payloads:
                    payloads[number] = _pack_message(entry.message)
            ids = []
            if entry.subscription_ids != cython.NULL:
                ids = [entry.subscription_ids[1 + index] for index in range(entry.subscription_ids[0])]
            status = b"w" if sequence >= box.next else b"i"
            was_sent = entry.was_sent or entry.state == SENT
            value = ENTRY.pack(number, entry.qos, entry.retain, entry.state == RELEASED, was_sent)
            key = _owned_key(client_id, status + struct.pack(">Q", sequence))
            result.append(("queue", key, value + struct.pack(f">{len(ids)}I", *ids)))
        sequence += 1


@cython.cfunc
def _pack_subscriptions(s: cython.pointer[Session], client_id: bytes, result: list):
    if s.subscriptions == cython.NULL:
        return
    item = s.subscriptions.begin()
    while item != s.subscriptions.end():
        kept: SessionSubscription = dereference(item).second
        filter: string = dereference(item).first
        key = _owned_key(client_id, cython.cast(bytes, filter))
        result.append(("subscription", key, SUBSCRIPTION.pack(kept.options, kept.subscription_id)))
        preincrement(item)


@cython.cfunc
def take_snapshot(shared: cython.pointer[Shared]) -> list:
    """All durable state, once no reactor runs any more."""
    result: list = []
    payloads: dict = {}
    item = shared.registry.begin()
    while item != shared.registry.end():
        s: cython.pointer[Session] = dereference(item).second
        client_id = cython.cast(bytes, s.client_id)
        if s.expiry_s:
            result.append(("session", client_id, _pack_session(s)))
            _pack_subscriptions(s, client_id, result)
            _pack_queue(s, client_id, payloads, result)
        preincrement(item)
    for number, value in payloads.items():
        result.append(("payload", struct.pack(">Q", number), value))
    node: uint32_t
    for node in range(shared.retained.topics.node_end):
        at: cython.pointer[LevelNode] = node_at(shared.retained.topics, node)
        if at.value != cython.NULL:
            message: cython.pointer[Message] = cython.cast(cython.pointer[Message], at.value)
            result.append(("retained", bytes_of(topic_of(message)), _pack_message(message)))
    return result


@cython.cfunc
def _reactor_for(shared: cython.pointer[Shared], client_id: bytes) -> cython.pointer[Reactor]:
    """Sessions come back spread over the reactors, whatever their number is now."""
    return shared.reactors[sum(client_id) % shared.reactors.size()]


@cython.cfunc
def _restore_session(shared: cython.pointer[Shared], client_id: bytes, value: bytes):
    r: cython.pointer[Reactor] = _reactor_for(shared, client_id)
    name: string = client_id
    found: Found = find_session(r, cython.address(name), True)
    if found.session == cython.NULL:
        return
    expiry_s, ends_ms = SESSION.unpack_from(value)
    s: cython.pointer[Session] = found.session
    s.expiry_s = expiry_s
    for (packet_id,) in struct.iter_unpack(">H", value[SESSION.size :]):
        note_received(s, packet_id)
    if expiry_s != FOR_EVER:
        left: int64_t = ends_ms - _wall_offset_ms() if ends_ms else clock_ms() + expiry_s * 1000
        s.ends_ms = left if left > 0 else 1
        time_session(r, s)


@cython.cfunc
def _restore_subscription(shared: cython.pointer[Shared], key: bytes, value: bytes):
    client_id, filter = _split_owned_key(key)
    r: cython.pointer[Reactor] = _reactor_for(shared, client_id)
    name: string = client_id
    existed: cython.bint = False
    found: Found = find_session(r, cython.address(name), False)
    options, subscription_id = SUBSCRIPTION.unpack(value)
    if found.session != cython.NULL:
        add_subscription(r, found.session, span_of(filter), options, subscription_id, cython.address(existed))


@cython.cfunc
def _restore_queue(shared: cython.pointer[Shared], client_id: bytes, entries: list, payloads: dict):
    """``entries``: pairs of sequence and value, of one session."""
    r: cython.pointer[Reactor] = _reactor_for(shared, client_id)
    name: string = client_id
    found: Found = find_session(r, cython.address(name), False)
    if found.session == cython.NULL:
        return
    box: cython.pointer[Outbox] = cython.address(found.session.outbox)
    entry: cython.pointer[Entry]
    entries.sort()
    box.head = box.next = box.tail = entries[0][0]
    for sequence, value in entries:
        while box.tail < sequence:  # a hole, so that places keep their packet identifiers
            entry = append_entry(box, r.tally)
            entry.state = DONE
            box.waiting -= 1
            r.tally[LIVE_ENTRIES] -= 1
        number, qos, retain, released, was_sent = ENTRY.unpack_from(value)
        entry = append_entry(box, r.tally)
        entry.qos = qos
        entry.retain = retain
        entry.was_sent = was_sent
        entry.state = RELEASED if released else WAITING
        if released:
            box.waiting -= 1
        else:
            entry.message = cython.cast(cython.pointer[Message], cython.cast(uint64_t, payloads[number]))
            hold_message(entry.message)
            box.bytes += message_bytes(entry.message)
        ids = struct.unpack(f">{(len(value) - ENTRY.size) // 4}I", value[ENTRY.size :])
        if ids:
            entry.subscription_ids = cython.cast(cython.pointer[uint32_t], obtain((len(ids) + 1) * 4))
            entry.subscription_ids[0] = len(ids)
            for index, identifier in enumerate(ids):
                entry.subscription_ids[index + 1] = identifier


@cython.cfunc
def restore_snapshot(shared: cython.pointer[Shared], entries):
    """Fills an engine that has not started with what `take_snapshot` gave."""
    first: cython.pointer[Reactor] = shared.reactors[0]
    by_family: dict = {}
    for family, key, value in entries:
        by_family.setdefault(family, []).append((bytes(key), bytes(value)))
    for key, value in by_family.get("session", ()):
        _restore_session(shared, key, value)
    for key, value in by_family.get("subscription", ()):
        _restore_subscription(shared, key, value)
    payloads: dict = {}
    for key, value in by_family.get("payload", ()):
        payloads[struct.unpack(">Q", key)[0]] = cython.cast(uint64_t, _unpack_message(first, value))
    queues: dict = {}
    for key, value in by_family.get("queue", ()):
        client_id, rest = _split_owned_key(key)
        queues.setdefault(client_id, []).append((struct.unpack(">Q", rest[1:])[0], value))
    for client_id, queued in queues.items():
        _restore_queue(shared, client_id, queued, payloads)
    for number in payloads.values():
        release_message(cython.cast(cython.pointer[Message], cython.cast(uint64_t, number)), first.tally)
    for key, value in by_family.get("retained", ()):
        message: cython.pointer[Message] = _unpack_message(first, value)
        put_retained(shared.retained, topic_of(message), message)
