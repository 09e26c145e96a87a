"""What becomes of a message that carries ``traceparent``, as spans of its trace: received, committed,
delivered. So many a second go up to Python.

The broker's own span of a message begins when it comes in. The message goes on, to receivers and to the
store, with this span as the parent, so what receivers do hangs below it; it takes as many bytes as the one
that it replaces. One that is left out, as there are too many, goes on as it came.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.clock import clock_ns
from cython.cimports.tidemq.engine.base.counters import C_SPANS_LEFT_OUT
from cython.cimports.tidemq.engine.base.event import (
    EVENT_SPAN,
    SPAN_COMMIT,
    SPAN_DELIVER,
    SPAN_RECEIVE,
    Event,
)
from cython.cimports.tidemq.engine.base.message import Passage
from cython.cimports.tidemq.engine.base.system import RELAXED, getrandom, load_i64
from cython.cimports.tidemq.engine.link.reports import connection_event, new_event, post_report
from cython.cimports.tidemq.engine.link.spans import TRACE_PARENT_BYTES
from cython.cimports.tidemq.engine.state.promise import Committing
from cython.cimports.tidemq.wire.protocol import Span
from cython.cimports.tidemq.wire.trace_parent import (
    SPAN_ID_BYTES,
    TRACE_PARENT_SPAN_AT,
    find_trace_parent,
)

_COMMITTING_MAX = cython.declare(cython.size_t, 10000)  # messages that wait for the store


def _may_report(r):
    """Whether one more may go up in this second; each reactor has its share."""
    second: int64_t = r.now_ms // 1000
    reactors: uint32_t = cython.cast(uint32_t, r.common.reactors.size())
    share: uint32_t = r.common.limits.spans_per_s // reactors
    if r.index < r.common.limits.spans_per_s % reactors:
        share += 1
    if r.spans_s != second:
        r.spans_s = second
        r.spans = 0
    if r.spans >= share:
        r.tally[C_SPANS_LEFT_OUT] += 1
        return False
    r.spans += 1
    holds(r.spans <= share, b"spans: no more a second than a reactor's share")
    return True


def _draw_span_id(digits):
    """Sixteen hexadecimal digits that no other span has; not all 0."""
    drawn: uint8_t[SPAN_ID_BYTES]
    index: uint32_t
    alphabet: cython.p_char = b"0123456789abcdef"
    getrandom(drawn, SPAN_ID_BYTES, 0)
    drawn[0] |= 1
    for index in range(SPAN_ID_BYTES):
        digits[2 * index] = alphabet[drawn[index] >> 4]
        digits[2 * index + 1] = alphabet[drawn[index] & 15]


def begin_received(r, span, properties):
    """``properties`` of a message that comes in, as it will go on: they get the broker's span as parent."""
    block: Span
    block.data = cython.cast(cython.pointer[uint8_t], properties.data())
    block.size = cython.cast(uint32_t, properties.size())
    found: cython.pointer[cython.const[uint8_t]] = find_trace_parent(block)
    if found == cython.NULL or not _may_report(r):
        return
    span.begun = True
    memcpy(span.parent, found, TRACE_PARENT_BYTES)
    memcpy(span.own, found, TRACE_PARENT_BYTES)
    _draw_span_id(cython.cast(cython.pointer[uint8_t], span.own) + TRACE_PARENT_SPAN_AT)
    at: cython.size_t = found - block.data
    memcpy(cython.cast(cython.pointer[uint8_t], properties.data()) + at, span.own, TRACE_PARENT_BYTES)
    holds(
        memcmp(block.data + at, span.parent, TRACE_PARENT_SPAN_AT) == 0,
        b"spans: a message goes on in the trace that it came in",
    )


def end_received(r, c, span, p):
    """The message is with all its receivers, or in their queues."""
    event: cython.pointer[Event] = _span_event(r, c, SPAN_RECEIVE, span.parent)
    event.packet.assign(cython.cast(cython.p_char, span.own) + TRACE_PARENT_SPAN_AT, 2 * SPAN_ID_BYTES)
    _post_span(r, event, p, r.now_ns)


def begin_commit(r, span, p, slot):
    """The publisher's answer, which is in this slot of the ledger, waits until all have kept the message."""
    if r.committing.size() >= _COMMITTING_MAX or not _may_report(r):
        return
    waits: cython.pointer[Committing] = cython.address(r.committing[slot])
    waits.parent.assign(cython.cast(cython.p_char, span.own), TRACE_PARENT_BYTES)
    waits.topic.assign(cython.cast(cython.p_char, p.topic.data), p.topic.size)
    waits.began_ns = clock_ns()
    waits.qos = p.qos
    waits.payload_size = p.payload.size


def end_commit(r, c, slot, reason):
    """The slot's promise is kept. ``c``: NULL when the publisher has gone; ``reason``: what it is told."""
    p: Passage
    if r.committing.count(slot) == 0:
        return
    waits: cython.pointer[Committing] = cython.address(r.committing[slot])
    parent: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], waits.parent.data())
    event: cython.pointer[Event] = _span_event(r, c, SPAN_COMMIT, parent)
    event.reason = reason
    p.topic.data = cython.cast(cython.pointer[uint8_t], waits.topic.data())
    p.topic.size = cython.cast(uint32_t, waits.topic.size())
    p.payload.size = waits.payload_size
    p.qos = waits.qos
    _post_span(r, event, cython.address(p), waits.began_ns)
    r.committing.erase(slot)


def report_delivered(r, c, p, waited_ns):
    """A message is in a receiver's output, after so long a wait in its queue."""
    parent: cython.pointer[cython.const[uint8_t]] = find_trace_parent(p.properties)
    if parent != cython.NULL and _may_report(r):
        _post_span(r, _span_event(r, c, SPAN_DELIVER, parent), p, r.now_ns - waited_ns)


def _span_event(r, c, step, parent):
    none: cython.bint = c == cython.NULL
    event: cython.pointer[Event] = new_event(EVENT_SPAN, 0) if none else connection_event(r, c, EVENT_SPAN)
    event.version = step
    event.data.assign(cython.cast(cython.p_char, parent), TRACE_PARENT_BYTES)
    return event


def _post_span(r, event, p, began_ns):
    """It ends now."""
    wall_ns: int64_t = load_i64(cython.address(r.common.wall_offset_ns), RELAXED)
    event.text.assign(cython.cast(cython.p_char, p.topic.data), p.topic.size)
    event.fault = p.qos
    event.packet_bytes_max = p.payload.size
    event.offset = began_ns + wall_ns
    event.epoch = clock_ns() + wall_ns
    post_report(r, event)
