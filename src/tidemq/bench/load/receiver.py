"""What came from the broker: every packet parsed in place, every message counted and checked. No I/O here.

A subscriber keeps the next sequence number that it expects from each publisher, so that in the good
case checking a message is one comparison. What is skipped is marked in a bitmap, and so a late message
is told from a repeated one.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import realloc
from cython.cimports.libc.string import memset
from cython.cimports.tidemq.bench.load.board import load_u64, store_u64
from cython.cimports.tidemq.bench.load.client_socket import (
    ACCEPTED,
    GREETING,
    READY,
    SUBSCRIBING,
    Gaps,
    append_ack,
    following_id,
    reserve,
)
from cython.cimports.tidemq.bench.load.histogram import record
from cython.cimports.tidemq.bench.load.publisher import append_message
from cython.cimports.tidemq.bench.load.receiver import (
    BY_CONNACK,
    BY_MAXIMUM_QOS,
    BY_NONSENSE,
    BY_SUBACK,
)

if not cython.compiled:
    raise ImportError("tidemq.bench.load.receiver is compiled code: run `make build`")

SERVER_KEEP_ALIVE = cython.declare(uint8_t, 0x13)  # properties of CONNACK
RECEIVE_MAXIMUM = cython.declare(uint8_t, 0x21)
AHEAD_MAX = cython.declare(uint64_t, 1 << 26)  # seconds of the fastest publisher; a bit of memory each
MAXIMUM_QOS = cython.declare(uint8_t, 0x24)


def parse(load, tally, publishing, c, data, size):
    """Take every whole packet off `data`; returns the bytes they had."""
    at: cython.size_t = 0
    head: cython.size_t
    body: cython.size_t
    while size - at >= 2:
        body = data[at + 1]
        head = 2
        if body > 127:
            head = varint(data + at + 1, size - at - 1, cython.address(body))
            if head == 0:
                return at
            head += 1
        if size - at < head + body:
            return at
        if data[at] >> 4 == 3:
            take_publish(load, tally, publishing, c, data[at], data + at + head, body)
        else:
            take_packet(load, tally, c, data[at], data + at + head, body)
        at += head + body
    return at


def take_publish(load, tally, publishing, c, first, body, size):
    """Count one message, check its sequence number, acknowledge it."""
    at: cython.size_t = size
    qos: cython.int = (first >> 1) & 3
    slot: uint32_t
    stamp_ns: int64_t
    properties: cython.size_t = 0
    if size >= 2:
        at = 2 + (body[0] << 8 | body[1])
    if qos:
        if at + 2 > size:
            tally.foreign += 1
            return
        append_ack(c, 0x40 if qos == 1 else 0x50, body[at] << 8 | body[at + 1])
        c.releasing += qos == 2
        at += 2
    if load.version == 5 and at < size:
        at += varint(body + at, size - at, cython.address(properties)) + properties
    if at + load.payload_size != size or not c.subscribes or qos != load.qos:
        tally.foreign += 1
        return
    slot = cython.cast(cython.pointer[cython.const[uint32_t]], body + at + 4)[0] - c.heard_first
    if slot >= load.heard:
        tally.foreign += 1
        return
    if not take_number(
        load, tally, c, slot, cython.cast(cython.pointer[cython.const[uint32_t]], body + at)[0]
    ):
        return
    stamp_ns = cython.cast(cython.pointer[cython.const[int64_t]], body + at + 8)[0]
    if c.timed:
        # what clocks of two machines make negative is none
        record(cython.address(tally.latency), max(tally.now_ns + publishing.offset_ns - stamp_ns, 0))
    if c.echoes:
        reserve(c, publishing.form.size)
        append_message(publishing, c, stamp_ns)


def take_number(load, tally, c, slot, sequence):
    """Count a message by its number: late ones and repeated ones are told apart. True if it is a new one."""
    gaps: cython.pointer[Gaps]
    bit: uint8_t = 1 << (sequence & 7)
    if sequence == c.expected[slot]:
        store_u64(c.expected + slot, sequence + 1)
        tally.arrived += 1
        return True
    if sequence >= sent_at_most(load, c.heard_first + slot):
        tally.foreign += 1
        return False
    tally.arrived += 1
    if sequence > c.expected[slot]:
        mark_skipped(c, slot, sequence)
        return True
    gaps = cython.address(c.gaps[slot])
    if (sequence >> 3) < gaps.size and gaps.bits[sequence >> 3] & bit:
        gaps.bits[sequence >> 3] ^= bit
        tally.disordered += 1
        return True
    tally.duplicates += 1
    return False


def sent_at_most(load, publisher):
    """By a publisher; of one in another process it is known some milliseconds late."""
    known: uint64_t = load_u64(load.sent_by + publisher)
    if load.near_start <= publisher < load.near_end:
        return known
    return min(known + AHEAD_MAX, load.messages)


def mark_skipped(c, slot, sequence):
    """Everything from the expected message up to this one is missing, so far."""
    skipped: uint64_t
    size: uint64_t = ((sequence >> 3) + 1) * 2
    gaps: cython.pointer[Gaps] = cython.address(c.gaps[slot])
    if (sequence >> 3) >= gaps.size:
        gaps.bits = cython.cast(cython.pointer[uint8_t], realloc(gaps.bits, size))
        memset(gaps.bits + gaps.size, 0, size - gaps.size)
        gaps.size = size
    for skipped in range(c.expected[slot], sequence):
        gaps.bits[skipped >> 3] |= 1 << (skipped & 7)
    store_u64(c.expected + slot, sequence + 1)


def take_packet(load, tally, c, first, body, size):
    """Anything but a PUBLISH."""
    kind: uint8_t = first >> 4
    if kind == 2 and c.stage == GREETING and size >= 2:
        take_connack(load, tally, c, body, size)
    elif kind == 9 and c.stage == SUBSCRIBING and size > 2:
        take_suback(load, tally, c, body, size)
    elif 4 <= kind <= 7 and size >= 2:
        take_ack(load, tally, c, kind, body[0] << 8 | body[1])
    elif kind == 14:  # a 5.0 broker says goodbye
        tally.farewell = body[0] if size else 0
        c.hung_up = True
    elif kind == 13 and c.stage == READY:
        return  # PINGRESP
    elif c.stage == READY:
        tally.foreign += 1
    else:
        tally.refusal, tally.code = BY_NONSENSE, first


def take_connack(load, tally, c, body, size):
    """Note a refusal, and of 5.0 what the broker allows."""
    at: cython.size_t = 2
    length: cython.size_t = 0
    number: uint32_t
    if body[1]:
        tally.refusal, tally.code = BY_CONNACK, body[1]
        return
    c.stage = ACCEPTED
    c.answers_due -= 1
    record(cython.address(tally.connect_latency), tally.now_ns - c.asked_ns)
    if load.version != 5:
        return
    at += varint(body + at, size - at, cython.address(length))
    length = at + length if at + length < size else size
    while at + 1 < length:
        number = body[at + 1] << 8 | body[at + 2]
        if body[at] == RECEIVE_MAXIMUM and at + 2 < length:
            c.window = min(c.window, number)
        elif body[at] == SERVER_KEEP_ALIVE and at + 2 < length and number > 0:
            tally.keep_alive_s = min(tally.keep_alive_s, number) if tally.keep_alive_s else number
        elif body[at] == MAXIMUM_QOS and body[at + 1] < load.qos:
            tally.refusal, tally.code = BY_MAXIMUM_QOS, body[at + 1]
        at += property_size(body + at, length - at)


def take_suback(load, tally, c, body, size):
    """Every filter must have got the QoS that was asked for."""
    at: cython.size_t = 2
    properties: cython.size_t = 0
    if load.version == 5:
        at += varint(body + at, size - at, cython.address(properties)) + properties
    while at < size:
        if body[at] != load.qos:
            tally.refusal, tally.code = BY_SUBACK, body[at]
        at += 1
    c.answers_due -= 1


def take_ack(load, tally, c, packet_type, packet_id):
    """PUBACK and PUBCOMP free a place in the window, PUBREC and PUBREL are answered."""
    if packet_type == 6:  # PUBREL, of what we received
        append_ack(c, 0x70, packet_id)
        if c.releasing:
            c.releasing -= 1
        else:
            tally.ack_errors += 1
        return
    if packet_type == 7:
        tally.ack_errors += packet_id != c.completed_id
        c.completed_id = following_id(packet_id)
    else:
        tally.ack_errors += packet_id != c.acked_id or (packet_type == 4) != (load.qos == 1)
        c.acked_id = following_id(packet_id)
    if packet_type == 5:
        append_ack(c, 0x62, packet_id)
        return
    if c.in_flight:
        c.in_flight -= 1
    if load.acks_timed:
        record(cython.address(tally.ack_latency), tally.now_ns - c.asked_ns)


def varint(data, size, value):
    """Read a variable byte integer; returns its bytes, at most 4; 0 when it is not whole."""
    at: cython.size_t = 0
    found: cython.size_t = 0
    while at < size and at < 4:
        found |= cython.cast(cython.size_t, data[at] & 127) << (7 * at)
        at += 1
        if data[at - 1] < 128 or at == 4:
            value[0] = found
            return at
    return 0


def property_size(data, size):
    """Bytes of the CONNACK property at `data`, its identifier included; `size` where it is unknown."""
    kind: uint8_t = data[0]
    first: cython.size_t
    if kind == 0x24 or kind == 0x25 or 0x28 <= kind <= 0x2A:
        return 2
    if kind == 0x13 or kind == 0x21 or kind == 0x22:
        return 3
    if kind == 0x11 or kind == 0x27:
        return 5
    if size < 3:
        return size
    first = 3 + (data[1] << 8 | data[2])
    if kind == 0x12 or kind == 0x15 or kind == 0x16 or kind == 0x1A or kind == 0x1C or kind == 0x1F:
        return first
    if kind == 0x26 and first + 2 <= size:
        return first + 2 + (data[first] << 8 | data[first + 1])
    return size
