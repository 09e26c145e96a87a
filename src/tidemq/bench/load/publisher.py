"""Messages on their way out: a publisher's frame copied, and what is a message's own written into it.

A paced message carries the time that it was due, not the time that it was sent: what a broker (or this
generator) makes it wait counts as its latency, so nothing is left out when publishing is held up
(coordinated omission).
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.tidemq.bench.load.board import store_u64
from cython.cimports.tidemq.bench.load.client_socket import following_id, reserve
from cython.cimports.tidemq.bench.load.frame_patches import fill_random, write_hex
from cython.cimports.tidemq.bench.load.publisher import Form

if not cython.compiled:
    raise ImportError("tidemq.bench.load.publisher is compiled code: run `make build`")

TOPIC_STRIDE = cython.declare(uint64_t, 2_654_435_761)  # a prime: visits every topic, neighbours far apart


def append_messages(publishing, c, count, now_ns):
    """Add the next `count` messages to the output, stamped with now or, paced, the time they are due."""
    stamp_ns: int64_t = now_ns
    if count == 0:
        return
    reserve(c, count * publishing.form.size)
    c.asked_ns = now_ns
    publishing.asked_ns = now_ns
    while count > 0:
        if publishing.pace.interval_ns:
            stamp_ns = due_ns(cython.address(publishing.pace), c.place, c.sent)
        append_message(publishing, c, stamp_ns + publishing.offset_ns)
        count -= 1


def append_message(publishing, c, stamp_ns):
    """One message. The caller has seen to the window, and to room in the output."""
    at: cython.pointer[uint8_t]
    form: cython.pointer[cython.const[Form]] = cython.address(publishing.form)
    at = c.output + c.output_end
    memcpy(at, c.frame, form.size)
    cython.cast(cython.pointer[uint32_t], at + form.payload_at)[0] = c.sent
    cython.cast(cython.pointer[int64_t], at + form.payload_at + 8)[0] = stamp_ns
    if form.random:
        fill_random(cython.address(publishing.noise), at + form.payload_at + 16, form.payload_size - 16)
    if form.qos:
        at[form.packet_id_at] = c.packet_id >> 8
        at[form.packet_id_at + 1] = c.packet_id & 0xFF
        c.packet_id = following_id(c.packet_id)
        c.in_flight += 1
    if form.topics > 1:
        write_hex(at + form.topic_digits_at, c.sent * TOPIC_STRIDE % form.topics_used)
    c.output_end += form.size
    c.sent += 1
    store_u64(publishing.sent_by + c.publisher, c.sent)
    publishing.sent += 1


def due_messages(pace, place, now_ns):
    """How many messages of the publisher at `place` are due by now."""
    of_all: int64_t = min((now_ns - pace.started_ns) // pace.interval_ns, cython.cast(int64_t, pace.messages))
    if of_all <= place:
        return 0
    return (of_all - place + pace.publishers - 1) // pace.publishers


def due_ns(pace, place, message):
    """When a message of the publisher at `place` is due; `message` counts from 0."""
    number: int64_t = message * pace.publishers + place + 1
    return pace.started_ns + number * pace.interval_ns
