"""From a readable socket to packets: one big read a turn, parsed in place.

Everything is read into one buffer of the reactor; only what is left of a packet that has not come whole is
copied to the connection. A packet larger than that buffer gets a buffer of its own size, which the rest is
read into directly.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcpy
from cython.cimports.tidemq.engine.base.allocation import obtain
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_BYTES_RECEIVED,
    C_MESSAGES_RECEIVED,
    C_PACKETS_RECEIVED,
    LIVE_BUFFERS,
    MEMORY_BUFFERS,
)
from cython.cimports.tidemq.engine.base.steps import allow_steps
from cython.cimports.tidemq.engine.base.system import EAGAIN, EINTR, MSG_DONTWAIT, errno, recv
from cython.cimports.tidemq.engine.clients.authorising import bring_up_to_date
from cython.cimports.tidemq.engine.clients.connecting import handle_auth, handle_connect
from cython.cimports.tidemq.engine.clients.publishing import handle_ack, handle_publish
from cython.cimports.tidemq.engine.clients.subscribing import handle_subscribe, handle_unsubscribe
from cython.cimports.tidemq.engine.link.backpressure import wait_behind
from cython.cimports.tidemq.engine.link.output import append_output, doom, pending_output, touch
from cython.cimports.tidemq.engine.link.rates import (
    charge_bytes,
    charge_messages,
    is_limited,
    room_within_rates,
    within_rates,
)
from cython.cimports.tidemq.engine.link.timers import time_connection
from cython.cimports.tidemq.engine.link.tracing import is_traced, trace_in
from cython.cimports.tidemq.engine.link.wrapping import check_transport, receive_wrapped
from cython.cimports.tidemq.engine.state.client import AUTHENTICATING, CONNECTED, CONNECTING
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.work import begin_work, is_enough
from cython.cimports.tidemq.net.transport import RECORD_BYTES_MAX
from cython.cimports.tidemq.wire.packets import (
    Disconnect,
    FixedHeader,
    parse_disconnect,
    parse_fixed_header,
    parse_ping,
)
from cython.cimports.tidemq.wire.properties import has_property
from cython.cimports.tidemq.wire.protocol import (
    AUTH,
    CONNECT,
    DISCONNECT,
    FAULT_BEFORE_CONNECT,
    FAULT_NEED_MORE,
    FAULT_NONE,
    FAULT_PACKET_TOO_LARGE,
    FAULT_PACKET_TYPE,
    FAULT_SESSION_EXPIRY,
    FAULT_TLS,
    PINGREQ,
    PROP_SESSION_EXPIRY,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    RC_SUCCESS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Fault,
    fault_reason,
)

_SEARCHED_MAX = cython.declare(uint64_t, 4096)  # what look-ups for one connection go through in a row
_ROOM_FIRST = cython.declare(uint32_t, 65536)  # bytes, for a packet that is larger than the read buffer


def _handle_disconnect(r, c, first, body, size):
    """DISCONNECT: the end, without the will where the reason is 0 [MQTT-3.14.4-1..3]."""
    packet: Disconnect
    fault: Fault = parse_disconnect(first, body, size, c.version, cython.address(packet))
    if (
        fault == FAULT_NONE
        and c.version == 5
        and has_property(cython.address(packet.properties), PROP_SESSION_EXPIRY)
    ):
        expiry_s: uint32_t = packet.properties.session_expiry_s
        if c.session.expiry_s == 0 and expiry_s:
            fault = FAULT_SESSION_EXPIRY  # [MQTT-3.14.2-2]
        else:
            limit: uint32_t = r.common.limits.session_expiry_s_max
            c.session.expiry_s = expiry_s if expiry_s < limit else limit
    if fault != FAULT_NONE:
        doom(r, c, fault_reason(fault), fault)
        return
    c.clean_disconnect = packet.reason == RC_SUCCESS or c.version < 5
    c.departed = True
    c.session.left_reason = packet.reason if c.version == 5 else cython.cast(uint8_t, RC_SUCCESS)
    doom(r, c, 0, FAULT_NONE)


def _handle_ping(r, c, first, size):
    """PINGREQ is answered at once [MQTT-3.12.4-1]."""
    fault: Fault = parse_ping(first, size, c.version)
    if fault != FAULT_NONE:
        doom(r, c, fault_reason(fault), fault)
        return
    append_output(r, c, cython.cast(cython.p_char, b"\xd0\x00"), 2)


def _handle_packet(r, c, header, frame):
    """Gives a whole packet to what handles its type."""
    kind: uint8_t = header.first >> 4
    body: cython.pointer[cython.const[uint8_t]] = frame + header.header_size
    size: uint32_t = header.body_size
    if c.state != CONNECTED:
        if kind == CONNECT:
            handle_connect(r, c, header.first, body, size)
        elif kind == AUTH and c.state == AUTHENTICATING:
            handle_auth(r, c, header.first, body, size)
        else:
            doom(r, c, fault_reason(FAULT_BEFORE_CONNECT), FAULT_BEFORE_CONNECT)  # [MQTT-3.1.0-1]
    elif kind == PUBLISH:
        handle_publish(r, c, header.first, body, size, frame, header.header_size + size)
    elif PUBACK <= kind <= PUBCOMP:
        handle_ack(r, c, header.first, body, size)
    elif kind == SUBSCRIBE:
        handle_subscribe(r, c, header.first, body, size)
    elif kind == UNSUBSCRIBE:
        handle_unsubscribe(r, c, header.first, body, size)
    elif kind == PINGREQ:
        _handle_ping(r, c, header.first, size)
    elif kind == DISCONNECT:
        _handle_disconnect(r, c, header.first, body, size)
    elif kind == CONNECT:
        handle_connect(r, c, header.first, body, size)
    elif kind == AUTH and c.version == 5:
        handle_auth(r, c, header.first, body, size)
    else:
        doom(r, c, fault_reason(FAULT_PACKET_TYPE), FAULT_PACKET_TYPE)


def _is_tls(data, size):
    """Whether a connection begins with a record of a TLS handshake (RFC 8446 section 5.1). As a CONNECT it
    would have three bytes.
    """
    return size > 1 and data[0] == 22 and data[1] == 3


def _parse(r, c, data, size):
    """Handles the whole packets in it, as many as the rates allow now; returns the bytes used."""
    if r.review_left:
        bring_up_to_date(r, c)
    before: int64_t = r.tally[C_MESSAGES_RECEIVED]
    used: uint32_t = _parse_within_rates(r, c, data, size)
    c.messages_received += r.tally[C_MESSAGES_RECEIVED] - before
    return used


def _parse_within_rates(r, c, data, size):
    if not is_limited(c):
        return _parse_packets(r, c, data, size)
    allowed: uint32_t = within_rates(r, c, data, size)
    used: uint32_t = _parse_packets(r, c, data, allowed)
    charge_messages(r, c, data, used, allowed < size)
    return used


def _parse_packets(r, c, data, size):
    """Handles all whole packets; returns the bytes used. Stops when a decision or a slow receiver is waited
    for, or where its messages were hard to look up or went to very many.
    """
    header: FixedHeader
    at: uint32_t = 0
    searched_max: uint64_t = r.searched + _SEARCHED_MAX
    begin_work(r)
    while at < size and not (c.doomed or c.asked or c.leaving or c.pause_count):
        if pending_output(c) > r.common.limits.output_high_bytes:
            c.stalled = True
            touch(r, c)
            break
        fault: Fault = parse_fixed_header(data + at, size - at, cython.address(header))
        if c.state == CONNECTING and data[at] >> 4 != CONNECT:
            fault = FAULT_BEFORE_CONNECT  # said at once: what is no MQTT may never look whole [MQTT-3.1.0-1]
        elif c.state == CONNECTING and _is_tls(data + at, size - at):
            fault = FAULT_TLS
        if fault == FAULT_NEED_MORE:
            break
        if fault == FAULT_NONE and header.header_size + header.body_size > r.common.limits.packet_bytes_max:
            fault = FAULT_PACKET_TOO_LARGE
        if fault != FAULT_NONE:
            doom(r, c, fault_reason(fault), fault)
            break
        if c.held != cython.NULL and header.first >> 4 != PUBLISH:
            wait_behind(r, c)
            break
        if header.body_size > size - at - header.header_size:
            break
        r.tally[C_PACKETS_RECEIVED] += 1
        whole: cython.bint = at + header.header_size + header.body_size <= size
        holds(whole, b"reading: a packet that is handled has come whole")
        allow_steps(1)
        c.last_read_ms = r.now_ms
        if is_traced(c):
            trace_in(r, c, data[at], data + at + header.header_size, header.body_size)
        _handle_packet(r, c, cython.address(header), data + at)
        at += header.header_size + header.body_size
        if (r.searched > searched_max or is_enough(r)) and at < size:
            r.resumed.push_back(handle_of(r, c))  # others first
            break
    return at


def _keep_input(r, c, data, size, began_ms):
    """Copies what was not used to the connection; where a large packet has begun, with room for more of it.

    ``began_ms``: when its first byte came.
    """
    header: FixedHeader
    capacity: uint32_t = size
    c.packet_ms = began_ms
    if r.common.limits.packet_ms_max and c.state == CONNECTED:
        time_connection(r, c, began_ms + r.common.limits.packet_ms_max)
    if parse_fixed_header(data, size, cython.address(header)) == FAULT_NONE:
        whole: uint32_t = header.header_size + header.body_size
        # a small packet's rest comes by way of the reactor's buffer, one that is not allowed gets no room at
        # all
        if size < whole <= r.common.limits.packet_bytes_max:
            if whole > r.read_capacity or size > r.read_capacity // 2:
                # twice what has come: a header alone, which may claim much, gets little
                capacity = min(whole, max(2 * size, _ROOM_FIRST))
    holds(c.input == cython.NULL, b"reading: what has come of a packet is in one buffer")
    c.input = cython.cast(cython.pointer[uint8_t], obtain(capacity))
    memcpy(c.input, data, size)
    c.input_size = size
    c.input_capacity = capacity
    r.tally[LIVE_BUFFERS] += 1
    r.tally[MEMORY_BUFFERS] += capacity


def _drop_input(r, c):
    free(c.input)
    r.tally[LIVE_BUFFERS] -= 1
    r.tally[MEMORY_BUFFERS] -= c.input_capacity
    c.input = cython.NULL
    c.input_size = c.input_capacity = 0


def parse_kept(r, c):
    """Handles what a pause or a decision left unread."""
    touch(r, c)
    if c.input == cython.NULL or c.doomed:
        return
    data: cython.pointer[uint8_t] = c.input
    size: uint32_t = c.input_size
    capacity: uint32_t = c.input_capacity
    c.input = cython.NULL
    c.input_size = c.input_capacity = 0
    used: uint32_t = _parse(r, c, data, size)
    if used < size and not c.doomed:
        _keep_input(r, c, data + used, size - used, r.now_ms if used else c.packet_ms)
    free(data)
    r.tally[LIVE_BUFFERS] -= 1
    r.tally[MEMORY_BUFFERS] -= capacity


def _receive(r, c, into, size):
    """One read. 0: nothing came, or the connection is over and doomed."""
    if is_limited(c):
        size = room_within_rates(r, c, size)
    got: cython.Py_ssize_t = recv(c.fd, into, size, MSG_DONTWAIT)
    if got > 0:
        r.tally[C_BYTES_RECEIVED] += got
        c.bytes_received += got
        return cython.cast(uint32_t, got)
    if got == 0 and c.held != cython.NULL:
        wait_behind(r, c)  # its end is read again when its last messages have gone on
    elif got == 0 or (errno != EAGAIN and errno != EINTR):
        doom(r, c, 0, FAULT_NONE)
    return 0


def begins_whole(r, c):
    header: FixedHeader
    fault: Fault = parse_fixed_header(c.input, c.input_size, cython.address(header))
    if fault == FAULT_NEED_MORE:
        return False
    whole: uint32_t = header.header_size + header.body_size
    return fault != FAULT_NONE or whole <= c.input_size or whole > r.common.limits.packet_bytes_max


def _add_input(r, c, data, size):
    """Keeps more, after what a pause has left."""
    before: uint32_t = c.input_size
    whole: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], obtain(before + size))
    memcpy(whole, c.input, before)
    memcpy(whole + before, data, size)
    _drop_input(r, c)
    _keep_input(r, c, whole, before + size, c.packet_ms)
    free(whole)


def _read_wrapped(r, c):
    """As `read_connection`, through the connection's transport: what comes out of that may be more than what
    a large packet still wants.
    """
    large: cython.bint = c.input_capacity > c.input_size
    kept: uint32_t = 0
    data: cython.pointer[uint8_t] = r.read_buffer
    if pending_output(c) > r.common.limits.output_high_bytes:
        c.stalled = True  # it sends Pings, and reads none of the answers
        touch(r, c)
        return
    if c.input_size and not large:
        if begins_whole(r, c):
            parse_kept(r, c)
            check_transport(r, c)
            return
        kept = c.input_size
        if kept + RECORD_BYTES_MAX >= r.read_capacity:  # it would be large, or whole, or refused
            doom(r, c, 0, 0)
            return
        memcpy(data, c.input, kept)
        _drop_input(r, c)
    got: uint32_t = receive_wrapped(r, c, data + kept, r.read_capacity - kept)
    size: uint32_t = kept + got
    while size and not c.doomed and c.input_capacity > c.input_size:  # the large packet that has begun
        part: uint32_t = min(size, c.input_capacity - c.input_size)
        memcpy(c.input + c.input_size, data, part)
        c.input_size += part
        c.last_read_ms = r.now_ms
        data += part
        size -= part
        if c.input_size == c.input_capacity:
            parse_kept(r, c)
    if size and not c.doomed:
        if c.input != cython.NULL:
            _add_input(r, c, data, size)
        else:
            used: uint32_t = _parse(r, c, data, size) if got else 0
            if used < size and not c.doomed:
                _keep_input(r, c, data + used, size - used, r.now_ms if used or not kept else c.packet_ms)
    check_transport(r, c)
    if c.asked or c.pause_count:
        touch(r, c)


def read_connection(r, c):
    """Reads once and handles all packets that are whole. The caller has seen that the socket is readable."""
    if c.doomed or c.asked or c.leaving or c.pause_count or c.stalled:
        touch(r, c)  # its interest in reading is taken back at the end of the turn
        return
    before: int64_t = r.tally[C_BYTES_RECEIVED]
    if c.transport != cython.NULL:
        _read_wrapped(r, c)
    else:
        _read_plain(r, c)
    if is_limited(c):
        charge_bytes(r, c, r.tally[C_BYTES_RECEIVED] - before)


def _read_plain(r, c):
    got: uint32_t
    if c.input_capacity > c.input_size:
        got = _receive(r, c, c.input + c.input_size, c.input_capacity - c.input_size)
        if got:
            c.last_read_ms = r.now_ms  # a large packet over a slow line is alive; a trickle of bytes is not
        c.input_size += got
        holds(c.input_size <= c.input_capacity, b"reading: no more is kept than the buffer has room for")
        if c.input_size == c.input_capacity:
            parse_kept(r, c)
        return
    kept: uint32_t = c.input_size
    if kept:
        if begins_whole(r, c):
            # left over from a pause: handled first, for what comes next may be the end of the connection
            parse_kept(r, c)
            return
        memcpy(r.read_buffer, c.input, kept)
        _drop_input(r, c)
    got = _receive(r, c, r.read_buffer + kept, r.read_capacity - kept)
    if got == 0:
        if kept and not c.doomed:
            _keep_input(r, c, r.read_buffer, kept, c.packet_ms)
        return
    used: uint32_t = _parse(r, c, r.read_buffer, kept + got)
    if used < kept + got and not c.doomed:
        began_ms: int64_t = r.now_ms if used or not kept else c.packet_ms
        _keep_input(r, c, r.read_buffer + used, kept + got - used, began_ms)
    if c.asked or c.pause_count:
        touch(r, c)
