"""The layouts of what the store holds: integers big-endian, times in milliseconds of the wall clock, because
the monotonic one begins anew with the machine. docs/store.md has them as tables.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.message import (
    MessageId,
    Passage,
    empty_passage,
    message_bytes,
    new_message,
    payload_of,
    properties_of,
    topic_of,
)
from cython.cimports.tidemq.engine.journal.rows import (
    MESSAGE_HEAD_BYTES,
    ROW_FLAG_COUNTED,
    ROW_FLAG_RELEASED,
    ROW_FLAG_RETAIN,
    ROW_FLAG_WAS_SENT,
)
from cython.cimports.tidemq.engine.state.queue import ROW_INFLIGHT
from cython.cimports.tidemq.engine.state.wall_clock import wall_offset


def _append_number(out, value, size):
    index: cython.int
    for index in range(size):
        out.push_back(cython.cast(cython.char, value >> (8 * (size - 1 - index)) & 0xFF))


def append_u16(out, value):
    """Two bytes."""
    _append_number(out, value, 2)


def append_u32(out, value):
    """Four bytes."""
    _append_number(out, value, 4)


def append_u64(out, value):
    """Eight bytes."""
    _append_number(out, value, 8)


def append_id(out, id):
    """A message id: 16 bytes whose order is the ids' order."""
    append_u64(out, id.clock)
    append_u64(out, id.origin)


def read_u32(at):
    """Four bytes."""
    return cython.cast(uint32_t, at[0]) << 24 | cython.cast(uint32_t, at[1]) << 16 | at[2] << 8 | at[3]


def read_u64(at):
    """Eight bytes."""
    return cython.cast(uint64_t, read_u32(at)) << 32 | read_u32(at + 4)


def read_id(at):
    """16 bytes."""
    id: MessageId
    id.clock = read_u64(at)
    id.origin = read_u64(at + 8)
    return id


def wall_ms(common, monotonic_ms):
    """A time of the monotonic clock on the wall clock; 0 (never) stays 0."""
    return monotonic_ms + wall_offset(common) // 1000000 if monotonic_ms else 0


def monotonic_ms(common, wall):
    """The reverse; what is past becomes 1, for 0 means never."""
    if wall == 0:
        return 0
    left: int64_t = wall - wall_offset(common) // 1000000
    return left if left > 0 else 1


def _append_span(out, span):
    if span.size:
        out.append(cython.cast(cython.p_char, span.data), span.size)


def append_message(common, message, out):
    """QoS (1), retain (1), expires at (8), sizes of topic, properties and payload (4 each); then these."""
    out.push_back(cython.cast(cython.char, message.qos))
    out.push_back(1 if message.retain else 0)
    append_u64(out, wall_ms(common, message.expires_ms))
    append_u32(out, message.topic_size)
    append_u32(out, message.properties_size)
    append_u32(out, message.payload_size)
    _append_span(out, topic_of(message))
    _append_span(out, properties_of(message))
    _append_span(out, payload_of(message))


def read_message(common, data, size, id, tally):
    """The message, held once by the caller; NULL when the bytes are not one."""
    passage: Passage
    if size < MESSAGE_HEAD_BYTES:
        return cython.NULL
    empty_passage(cython.address(passage))
    passage.qos = data[0]
    passage.retain = data[1] != 0
    passage.expires_ms = monotonic_ms(common, cython.cast(int64_t, read_u64(data + 2)))
    passage.id = id[0]
    passage.topic.size = read_u32(data + 10)
    passage.properties.size = read_u32(data + 14)
    passage.payload.size = read_u32(data + 18)
    total: uint64_t = MESSAGE_HEAD_BYTES
    total += passage.topic.size
    total += passage.properties.size
    total += passage.payload.size
    if total != size or passage.qos > 2 or passage.topic.size == 0:
        return cython.NULL
    passage.topic.data = data + MESSAGE_HEAD_BYTES
    passage.properties.data = passage.topic.data + passage.topic.size
    passage.payload.data = passage.properties.data + passage.properties.size
    return new_message(cython.address(passage), tally)


def append_queue_key(queue, status, id, out):
    """Queue (8), status (1), id (16)."""
    append_u64(out, queue)
    out.push_back(cython.cast(cython.char, status))
    append_id(out, id)


def append_queue_value(common, record, released, out):
    """Flags (1), QoS (1), bytes of the message (4), expires at (8), place in the outbox (8; 0 while idle);
    then subscription identifiers (4 each).
    """
    flags: uint8_t = 0
    index: uint32_t
    if record.retain:
        flags |= ROW_FLAG_RETAIN
    if released:
        flags |= ROW_FLAG_RELEASED
    if record.message.counted:
        flags |= ROW_FLAG_COUNTED
    if record.status == ROW_INFLIGHT:
        flags |= ROW_FLAG_WAS_SENT
    out.push_back(cython.cast(cython.char, flags))
    out.push_back(cython.cast(cython.char, record.qos))
    append_u32(out, cython.cast(uint32_t, message_bytes(record.message)))
    append_u64(out, wall_ms(common, record.message.expires_ms))
    append_u64(out, record.sequence if record.status == ROW_INFLIGHT else 0)
    if record.subscription_ids != cython.NULL:
        for index in range(record.subscription_ids[0]):
            append_u32(out, record.subscription_ids[index + 1])


def append_session(common, s, out):
    """Queue number (8), expiry s (4), ends at (8; 0: online, or never), will due at (8; 0: online), will
    delay s (4), will's message expiry s (8; -1: none), size of the will (4); then the will's message.
    """
    will: string
    append_u64(out, s.number)
    append_u32(out, s.expiry_s)
    append_u64(out, wall_ms(common, s.ends_ms))
    there: cython.bint = s.will != cython.NULL and not s.will.recorded
    append_u64(out, wall_ms(common, s.will_ms) if there else 0)
    if there:
        append_message(common, s.will.message, cython.address(will))
    append_u32(out, s.will.delay_s if there else 0)
    append_u64(out, s.will.expiry_s if there else 0)
    append_u32(out, cython.cast(uint32_t, will.size()))
    out.append(will)


def append_subscription_key(client_id, filter, out):
    """Length of the client identifier (2), the client identifier, the whole filter."""
    append_u16(out, cython.cast(uint16_t, client_id.size()))
    out.append(client_id[0])
    out.append(filter[0])


def append_subscription(subscription, out):
    """Options (1), subscription identifier (4)."""
    out.push_back(cython.cast(cython.char, subscription.options))
    append_u32(out, subscription.subscription_id)
