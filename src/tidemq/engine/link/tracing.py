"""What one client sends and gets, for an operator who wants to see it: the packets go up as events,
so many a second, and no more of each than its beginning.

There is one trace at a time. A connection that it is about has its number; where that is no more the one of
now, the trace is over.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_TRACE_PACKETS_LEFT_OUT
from cython.cimports.tidemq.engine.base.event import EVENT_PACKET, Event
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.system import RELAXED, load_int
from cython.cimports.tidemq.engine.link.reports import connection_event, name_peer, post_report
from cython.cimports.tidemq.wire.packets import FixedHeader, parse_fixed_header
from cython.cimports.tidemq.wire.protocol import FAULT_NONE

_PACKETS_MAX = cython.declare(uint32_t, 1000)  # a second, of one reactor
_BODY_BYTES_MAX = cython.declare(uint32_t, 16384)  # of one packet


def look_for_trace(r, c, client_id):
    """At CONNECT: whether it is about this client."""
    if load_int(cython.address(r.common.trace_number), RELAXED) != 0 and _is_meant(r, c, client_id):
        begin_trace(r, c)


def _is_meant(r, c, client_id):
    common = r.common
    name_peer(c)
    host: string = c.peer.substr(0, c.peer.rfind(b":"))
    if host.compare(0, 7, b"::ffff:") == 0 and host.find(b".") < host.size():
        host = host.substr(7)  # of IPv4, at a listener for both
    lock(cython.address(common.events_lock))
    meant: cython.bint = not common.trace_address.empty() and common.trace_address == host
    if not common.trace_client.empty():
        name: string = string(cython.cast(cython.p_char, client_id.data), client_id.size)
        meant = meant or common.trace_client == name
    unlock(cython.address(common.events_lock))
    return meant


def begin_trace(r, c):
    """From now on: what waits to be sent is not of it."""
    c.trace = load_int(cython.address(r.common.trace_number), RELAXED)
    note_flushed(c)


def note_flushed(c):
    """What waits now has been reported."""
    c.traced_bytes = c.output.end - c.output.start


def _goes_on(r, c):
    if c.trace != load_int(cython.address(r.common.trace_number), RELAXED):
        c.trace = 0
    return c.trace != 0


def _may_report(r):
    """Whether one more may go up in this second."""
    second: int64_t = r.now_ms // 1000
    if r.traced_s != second:
        r.traced_s = second
        r.traced_packets = 0
    if r.traced_packets >= _PACKETS_MAX:
        r.tally[C_TRACE_PACKETS_LEFT_OUT] += 1
        return False
    r.traced_packets += 1
    return True


def _report(r, c, out, first, body, there, size):
    if not _may_report(r):
        return
    event: cython.pointer[Event] = connection_event(r, c, EVENT_PACKET)
    event.flag = out
    event.packet.push_back(cython.cast(cython.char, first))
    event.packet.append(cython.cast(cython.p_char, body), min(there, _BODY_BYTES_MAX))
    event.packet_bytes_max = size
    post_report(r, event)


def trace_in(r, c, first, body, size):
    """A packet from the client, whole."""
    if _goes_on(r, c):
        _report(r, c, False, first, body, size, size)


def trace_out(r, c):
    """Before a flush: what was appended since the last one, which is whole packets."""
    header: FixedHeader
    if not _goes_on(r, c):
        return
    data: cython.pointer[uint8_t] = c.output.data + c.output.start
    waiting: uint32_t = c.output.end - c.output.start
    at: uint32_t = c.traced_bytes
    holds(at <= waiting, b"tracing: what was reported of an output still waits in it")
    while at < waiting:
        if parse_fixed_header(data + at, waiting - at, cython.address(header)) != FAULT_NONE:
            break
        body: uint32_t = at + header.header_size
        there: uint32_t = _body_there(c, body, header.body_size, waiting - body)
        _report(r, c, True, header.first, data + body, there, header.body_size)
        at = body + there
    holds(at == waiting, b"tracing: what goes out is whole packets")
    c.traced_bytes = waiting


def _body_there(c, begin, size, room):
    """How much of a body is in the buffer: a large payload is sent from its message."""
    index: cython.size_t
    if c.output.large != cython.NULL:
        for index in range(c.output.large.parts.size()):
            at: uint64_t = c.output.large.parts[index].at - c.output.large.streamed
            missing: uint64_t = c.output.large.parts[index].message.payload_size
            if at >= begin and at - begin + missing == size:
                return cython.cast(uint32_t, at - begin)
    return min(size, room)


def trace_end(r, c):
    """The connection ends; `doom_reason`, which a DISCONNECT says to a client of 5.0, and `doom_fault`."""
    trace_out(r, c)
    if not _goes_on(r, c):
        return
    event: cython.pointer[Event] = connection_event(r, c, EVENT_PACKET)
    event.reason = c.doom_reason
    event.fault = c.doom_fault
    post_report(r, event)
