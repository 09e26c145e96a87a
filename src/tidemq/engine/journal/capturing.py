"""Messages for streams: the reactor that a message came to notes it in its open section.

So a stream needs no mail, and what waits for the section, waits until the message is safe in the stream. The
messages lie one after the other, as bytes; the store's thread makes columns of them (``columns``). The order
of one publisher's messages is that of the sections, also when its connection moves (``departing``).
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_MESSAGES_CAPTURED, MEMORY_BUFFERS
from cython.cimports.tidemq.engine.journal.journal import ask_store, next_id
from cython.cimports.tidemq.engine.link.backpressure import hold_feeder
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.state.captured import (
    CAPTURED_BYTES_MAX,
    CAPTURED_DUP,
    CAPTURED_RETAIN,
    CapturedHead,
)
from cython.cimports.tidemq.engine.state.client import Connection
from cython.cimports.tidemq.engine.state.handles import connection_of
from cython.cimports.tidemq.engine.state.section import RECORD_CAPTURED, Section
from cython.cimports.tidemq.engine.state.wall_clock import wall_offset
from cython.cimports.tidemq.wire.protocol import Span


def _publisher_name(r, p):
    """The publisher's client identifier; nothing where it is no client, or is gone."""
    c: cython.pointer[Connection] = connection_of(r, p.feeder)
    if c != cython.NULL and c.session != cython.NULL:
        return span_of(cython.address(c.session.client_id))
    if p.publisher and r.sessions.count(p.publisher):
        return span_of(cython.address(r.sessions[p.publisher].client_id))
    return Span(cython.NULL, 0)


def capture(r, p, streams):
    """Notes a message for each of ``streams``, a bit mask. A publisher that is faster than the disk is held
    until that has caught up.
    """
    head: CapturedHead
    section: cython.pointer[Section] = r.section
    name: Span = _publisher_name(r, p)
    if section.captured.empty():
        ask_store(r, RECORD_CAPTURED, 0)
    head.streams = streams
    head.clock = p.id.clock if p.id.clock else next_id(r).clock
    head.received_us = (r.now_ns + wall_offset(r.common)) // 1000
    head.payload_size = p.payload.size
    head.properties_size = p.properties.size
    head.topic_size = cython.cast(uint16_t, p.topic.size)
    head.client_id_size = cython.cast(uint16_t, name.size)
    head.packet_id = p.packet_id
    head.qos = p.qos
    head.flags = cython.cast(uint8_t, (CAPTURED_RETAIN if p.retain else 0) | (CAPTURED_DUP if p.dup else 0))
    before: cython.size_t = section.captured.size()
    into: cython.pointer[string] = cython.address(section.captured)
    into.append(cython.cast(cython.p_char, cython.address(head)), cython.sizeof(CapturedHead))
    into.append(cython.cast(cython.p_char, p.topic.data), p.topic.size)
    into.append(cython.cast(cython.p_char, name.data), name.size)
    into.append(cython.cast(cython.p_char, p.payload.data), p.payload.size)
    into.append(cython.cast(cython.p_char, p.properties.data), p.properties.size)
    added: int64_t = section.captured.size() - before
    holds(
        added
        == cython.cast(int64_t, cython.sizeof(CapturedHead))
        + head.topic_size
        + head.client_id_size
        + head.payload_size
        + head.properties_size,
        b"capturing: a head says how long its message is",
    )
    section.captured_streams |= streams
    r.captured_bytes += added
    holds(
        r.captured_bytes >= cython.cast(int64_t, section.captured.size()),
        b"capturing: what is in the open section is counted",
    )
    r.tally[MEMORY_BUFFERS] += added
    r.tally[C_MESSAGES_CAPTURED] += 1
    if p.qos:
        section.captured_waits = True
        p.kept = True
    if r.captured_bytes > CAPTURED_BYTES_MAX:
        hold_feeder(r, p.feeder)
