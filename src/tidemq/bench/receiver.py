"""What came from the broker: every packet parsed in place, every message counted and checked. No I/O here.

A subscriber keeps the next sequence number that it expects from each publisher, so that in the good
case checking a message is one comparison. What is skipped is marked in a bitmap, and so a late message
is told from a repeated one.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc
from cython.cimports.tidemq.bench.connection import ACCEPTED, GREETING, Connection, append_ack, following_id
from cython.cimports.tidemq.bench.histogram import record
from cython.cimports.tidemq.bench.receiver import Load, Tally

if not cython.compiled:
    raise ImportError("tidemq.bench.receiver is compiled code: run `make build`")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def parse(
    load: cython.pointer[cython.const[Load]],
    tally: cython.pointer[Tally],
    c: cython.pointer[Connection],
    data: cython.pointer[cython.const[uint8_t]],
    size: cython.size_t,
) -> cython.size_t:
    """Take every whole packet off `data`; returns the bytes they had."""
    at: cython.size_t = 0
    head: cython.size_t
    body: cython.size_t
    while size - at >= 2:
        body = data[at + 1]
        head = 2
        if body > 127:
            body &= 127
            while True:
                if size - at <= head:
                    return at
                body |= cython.cast(cython.size_t, data[at + head] & 127) << (7 * (head - 1))
                head += 1
                if data[at + head - 1] < 128 or head > 4:
                    break
        if size - at < head + body:
            return at
        if data[at] >> 4 == 3:
            take_publish(load, tally, c, data[at], data + at + head, body)
        else:
            take_packet(load, tally, c, data[at], data + at + head, body)
        at += head + body
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def take_publish(
    load: cython.pointer[cython.const[Load]],
    tally: cython.pointer[Tally],
    c: cython.pointer[Connection],
    first: uint8_t,
    body: cython.pointer[cython.const[uint8_t]],
    size: cython.size_t,
) -> cython.void:
    """Count one message, check its sequence number, acknowledge it."""
    at: cython.size_t = 2 + (body[0] << 8 | body[1])
    qos: cython.int = (first >> 1) & 3
    slot: uint32_t
    sequence: uint64_t
    if qos:
        append_ack(c, 0x40 if qos == 1 else 0x50, body[at] << 8 | body[at + 1])
        c.releasing += qos == 2
        at += 2
    if load.version == 5:
        at += 1 + body[at]  # a broker adds no long properties to messages that had none
    if at + load.payload_size != size or not c.subscribes or qos != load.qos:
        tally.foreign += 1
        return
    slot = cython.cast(cython.pointer[cython.const[uint32_t]], body + at + 4)[0]
    if load.pairs:
        slot -= c.subscriber
    if slot >= load.heard:
        tally.foreign += 1
        return
    tally.arrived += 1
    sequence = cython.cast(cython.pointer[cython.const[uint32_t]], body + at)[0]
    if sequence == c.expected[slot]:
        c.expected[slot] += 1
    else:
        take_unexpected(load, tally, c, slot, sequence)
    if load.paced:
        record(
            cython.address(tally.latency),
            tally.now_ns - cython.cast(cython.pointer[cython.const[int64_t]], body + at + 8)[0],
        )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def take_unexpected(
    load: cython.pointer[cython.const[Load]],
    tally: cython.pointer[Tally],
    c: cython.pointer[Connection],
    slot: uint32_t,
    sequence: uint64_t,
) -> cython.void:
    """A number out of turn: mark what it skipped, or tell a late message from a repeated one."""
    skipped: uint64_t
    bit: uint8_t = 1 << (sequence & 7)
    if sequence >= load.messages:
        tally.foreign += 1
        tally.arrived -= 1
        return
    if c.missing[slot] == cython.NULL:
        c.missing[slot] = cython.cast(cython.pointer[uint8_t], calloc(load.messages // 8 + 1, 1))
    if sequence > c.expected[slot]:
        for skipped in range(c.expected[slot], sequence):
            c.missing[slot][skipped >> 3] |= 1 << (skipped & 7)
        c.expected[slot] = sequence + 1
    elif c.missing[slot][sequence >> 3] & bit:
        c.missing[slot][sequence >> 3] ^= bit
        tally.disordered += 1
    else:
        tally.duplicates += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def take_packet(
    load: cython.pointer[cython.const[Load]],
    tally: cython.pointer[Tally],
    c: cython.pointer[Connection],
    first: uint8_t,
    body: cython.pointer[cython.const[uint8_t]],
    size: cython.size_t,
) -> cython.void:
    """Anything but a PUBLISH."""
    kind: uint8_t = first >> 4
    i: cython.size_t
    if kind == 2:  # CONNACK
        tally.refusal = 0xFF if size < 2 or c.stage != GREETING else body[1]
        c.stage = ACCEPTED
        c.answers_due -= 1
    elif kind == 9:  # SUBACK
        for i in range(2 if load.version == 4 else 3 + body[2], size):
            if body[i] != load.qos:
                tally.refusal = body[i] if body[i] else 0xFF
        c.answers_due -= 1
    elif 4 <= kind <= 7 and size >= 2:
        take_ack(load, tally, c, kind, body[0] << 8 | body[1])
    elif kind == 14:  # a 5.0 broker says goodbye
        c.hung_up = True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def take_ack(
    load: cython.pointer[cython.const[Load]],
    tally: cython.pointer[Tally],
    c: cython.pointer[Connection],
    packet_type: uint8_t,
    packet_id: uint16_t,
) -> cython.void:
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
