"""Connections whose bytes are wrapped: in TLS, in WebSocket, behind a PROXY header (`tidemq.net.transport`).

What is read goes through a buffer of the reactor's into its read buffer, and from there on its way is that of
every other connection. What is written is wrapped when it is flushed, as much as the socket takes, so what
waits there is MQTT as it is, and one record holds what a turn has gathered.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_BYTES_RECEIVED,
    C_BYTES_SENT,
    C_CONNECTIONS_REFUSED,
    C_HANDSHAKES,
    C_HANDSHAKES_FAILED,
    C_REFUSED_ADDRESS,
    MEMORY_BUFFERS,
)
from cython.cimports.tidemq.engine.base.guarding import address_of_bytes, take_place
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import payload_of
from cython.cimports.tidemq.engine.base.system import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    errno,
    recv,
    send,
)
from cython.cimports.tidemq.engine.link.backpressure import wait_behind
from cython.cimports.tidemq.engine.link.output import (
    consume_output,
    doom,
    free_output,
    is_drained,
    settle_output,
    touch,
)
from cython.cimports.tidemq.engine.link.rates import is_limited, room_within_rates
from cython.cimports.tidemq.engine.link.reports import set_peer
from cython.cimports.tidemq.engine.link.wrapping import has_ended
from cython.cimports.tidemq.engine.state.client import LargePayload, Output
from cython.cimports.tidemq.net.buffer import Buffer, discard, release
from cython.cimports.tidemq.net.transport import (
    ENDED,
    FAULTY,
    OPEN,
    PROXYING,
    RECORD_BYTES_MAX,
    Phase,
    Transport,
    conclude,
    free_transport,
    is_plain,
    serve,
    unwrap,
    wrap,
)
from cython.cimports.tidemq.wire.protocol import FAULT_NONE, FAULT_TRANSPORT, RC_PROTOCOL_ERROR, Span

# wrapped at a time: what the socket does not take of it has been wrapped for later
_CLEAR_BYTES = cython.declare(uint64_t, 65536)


def open_transport(c):
    """Wraps a connection that was just accepted as its listener wants it. False: no memory."""
    # the terms may be changed by the control plane at any time, and the old ones freed
    lock(cython.address(c.listener.terms_lock))
    wrapped: cython.bint = c.listener.terms != cython.NULL
    if wrapped:
        c.transport = serve(c.listener.terms)
    unlock(cython.address(c.listener.terms_lock))
    return not wrapped or c.transport != cython.NULL


def _count_memory(r, c):
    t: cython.pointer[Transport] = c.transport
    held: int64_t = t.output.size + t.clear.size + t.upgrade.request.size + t.proxy.header.size
    r.tally[MEMORY_BUFFERS] += held - c.transport_bytes
    c.transport_bytes = held


def receive_wrapped(r, c, into, room):
    """One read, unwrapped. 0: no MQTT came. Whether the connection is over with it, `check_transport` says
    once all that came is handled.
    """
    t: cython.pointer[Transport] = c.transport
    before: Phase = t.phase
    if before >= ENDED:
        return 0
    room -= RECORD_BYTES_MAX
    if is_limited(c):
        room = room_within_rates(r, c, room)
    got: cython.Py_ssize_t = recv(c.fd, r.wrapped_buffer, room, MSG_DONTWAIT)
    if got <= 0:
        if got == 0 and c.held != cython.NULL:
            wait_behind(r, c)
        elif got == 0 or (errno != EAGAIN and errno != EINTR):
            doom(r, c, 0, FAULT_NONE)
        return 0
    r.tally[C_BYTES_RECEIVED] += got
    c.bytes_received += got
    clear: uint32_t = cython.cast(uint32_t, unwrap(t, r.wrapped_buffer, got, into))
    _count_memory(r, c)
    touch(r, c)  # it may have something to send: its part of a handshake, a Pong
    if before == PROXYING and t.phase != PROXYING and not _note_client(r, c):
        return 0
    if before < OPEN and t.phase >= OPEN:
        _note_handshake(r, c)
    return clear


def _note_client(r, c):
    """The PROXY header has come: from now on it is known whose connection it is, where the proxy says so.
    False: its address has enough connections.
    """
    t: cython.pointer[Transport] = c.transport
    if t.proxy.peer[0]:
        set_peer(c, t.proxy.peer)
    most: int64_t = c.listener.connections_per_address_max
    if t.proxy.known:
        c.address = address_of_bytes(t.proxy.address)
    if most == 0 or c.address == 0:
        return True
    holds(not c.placed, b"wrapping: a client behind a proxy is counted once")
    if not take_place(cython.address(r.common.guard), c.address, most):
        r.tally[C_REFUSED_ADDRESS] += 1
        r.tally[C_CONNECTIONS_REFUSED] += 1
        doom(r, c, 0, FAULT_NONE)
        return False
    c.placed = True
    return True


def _note_handshake(r, c):
    """The handshakes are over. After a PROXY header alone, what follows is MQTT as it is."""
    t: cython.pointer[Transport] = c.transport
    if t.phase == FAULTY or (t.framed and not t.upgrade.done):
        r.tally[C_HANDSHAKES_FAILED] += 1
    elif not is_plain(t):
        r.tally[C_HANDSHAKES] += 1
    elif t.phase == OPEN:
        drop_transport(r, c)


def check_transport(r, c):
    """Ends a connection whose peer broke TLS or WebSocket, or has ended them and has nothing left to be
    handled.
    """
    if not has_ended(c):
        return
    if c.transport.phase == FAULTY:
        doom(r, c, RC_PROTOCOL_ERROR, FAULT_TRANSPORT)
    elif c.held != cython.NULL:
        wait_behind(r, c)
    elif not (c.asked or c.pause_count or c.stalled or c.leaving):
        doom(r, c, 0, FAULT_NONE)


def _wrap_some(r, c):
    """Wraps the first bytes that wait. False: that failed."""
    out: cython.pointer[Output] = cython.address(c.output)
    data: cython.pointer[cython.const[uint8_t]] = out.data + out.start
    size: uint64_t = out.end - out.start
    if out.large != cython.NULL and out.large.bytes:
        part: LargePayload = out.large.parts[0]
        size = part.at - out.large.streamed
        if size == 0:
            payload: Span = payload_of(part.message)
            data = payload.data + part.sent
            size = payload.size - part.sent
    holds(size > 0, b"wrapping: what is wrapped is something")
    if size > _CLEAR_BYTES:
        size = _CLEAR_BYTES
    if not wrap(c.transport, data, size):
        return False
    consume_output(r, out, size)
    return True


def flush_wrapped(r, c):
    """Wraps and sends what the socket takes now. False when the connection is broken."""
    t: cython.pointer[Transport] = c.transport
    out: cython.pointer[Output] = cython.address(c.output)
    total: uint32_t = 0
    if t.output.bytes == cython.NULL:
        t.output = r.spare_output
        memset(cython.address(r.spare_output), 0, cython.sizeof(Buffer))
    while True:
        size: cython.size_t = t.output.end - t.output.start
        if size == 0:
            if t.phase != OPEN or is_drained(out):
                break
            if not _wrap_some(r, c):
                return False
            continue
        sent: cython.Py_ssize_t = send(
            c.fd, t.output.bytes + t.output.start, size, MSG_NOSIGNAL | MSG_DONTWAIT
        )
        if sent < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                break
            return False
        discard(cython.address(t.output), sent)
        total += cython.cast(uint32_t, sent)
        if cython.cast(cython.size_t, sent) < size:
            break
    r.tally[C_BYTES_SENT] += total
    c.bytes_sent += total
    settle_output(r, out, total)
    if has_ended(c):
        free_output(r, c)
    _give_spare(r, t)
    _count_memory(r, c)
    return True


def _give_spare(r, t):
    """A transport that has nothing to send holds no memory for it."""
    if t.clear.end == 0:
        release(cython.address(t.clear))
    if t.output.end != t.output.start or t.output.bytes == cython.NULL:
        return
    if r.spare_output.bytes == cython.NULL and t.output.size <= 4 * _CLEAR_BYTES:
        r.spare_output = t.output
        memset(cython.address(t.output), 0, cython.sizeof(Buffer))
    else:
        release(cython.address(t.output))


def conclude_transport(r, c):
    """Says in its own words that nothing more comes (Close, close_notify), where all has been sent."""
    if c.transport.output.end == c.transport.output.start:
        conclude(c.transport)
        flush_wrapped(r, c)


def drop_transport(r, c):
    """Frees the transport, if there is one."""
    if c.transport == cython.NULL:
        return
    if c.transport.phase < OPEN:
        r.tally[C_HANDSHAKES_FAILED] += 1
    free_transport(c.transport)
    c.transport = cython.NULL
    r.tally[MEMORY_BUFFERS] -= c.transport_bytes
    c.transport_bytes = 0
