"""What goes out to one connection: gathered over a turn, sent at its end in one call.

Small packets are copied into one buffer; a large payload is sent from its message (scatter-gather). The
buffer is taken when the first byte is written and given back when the last has been sent, so an idle
connection holds none.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcpy, memmove, memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.allocation import enlarge, obtain
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.base.counters import (
    C_BYTES_SENT,
    LIVE_BUFFERS,
    MEMORY_BUFFERS,
)
from cython.cimports.tidemq.engine.base.message import hold_message, payload_of, release_message
from cython.cimports.tidemq.engine.base.system import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    errno,
    iovec,
    msghdr,
    send,
    sendmsg,
)
from cython.cimports.tidemq.engine.link.backpressure import is_waited_for
from cython.cimports.tidemq.engine.link.wrapping import flush_wrapped
from cython.cimports.tidemq.engine.state.client import (
    CLOSING,
    OUTPUT_BLOCK,
    LargePayload,
    LargePayloads,
    Output,
)
from cython.cimports.tidemq.wire.protocol import Span

_SMALL_BLOCK = cython.declare(uint32_t, 4096)  # the first of a connection, in bytes
_SPARE_BLOCKS_MAX = cython.declare(uint32_t, 64)  # kept by a reactor for the next who needs one
_VECTOR_MAX = cython.declare(cython.int, 64)  # parts of one scatter-gather send


def touch(r, c):
    """The connection is looked at when the turn ends."""
    # NULL while it is closed
    holds(
        c.slot < r.connections.size() and r.connections[c.slot] in (c, cython.NULL),
        b"output: a reactor alone writes to its connections",
    )
    if not c.touched:
        c.touched = True
        r.touched.push_back(c)


def doom(r, c, reason, fault):
    """Closes the connection at the end of the turn, after what is written; the first reason stays."""
    if c.doomed:
        return
    c.doomed = True
    c.doom_reason = reason
    c.doom_fault = fault
    if c.state != CLOSING:
        touch(r, c)


def _take_block(r, out, size):
    capacity: uint32_t = _SMALL_BLOCK
    if size > capacity or out.usual > capacity:
        capacity = OUTPUT_BLOCK
    while capacity < size:
        capacity *= 2
    if capacity == OUTPUT_BLOCK and r.spare_blocks.size():
        out.data = r.spare_blocks.back()
        r.spare_blocks.pop_back()
    else:
        out.data = cython.cast(cython.pointer[uint8_t], obtain(capacity))
        r.tally[LIVE_BUFFERS] += 1
        r.tally[MEMORY_BUFFERS] += capacity
    out.capacity = capacity
    out.start = out.end = 0


def _give_block(r, out):
    if out.data == cython.NULL:
        return
    if out.capacity == OUTPUT_BLOCK and r.spare_blocks.size() < _SPARE_BLOCKS_MAX:
        r.spare_blocks.push_back(out.data)
    else:
        free(out.data)
        r.tally[LIVE_BUFFERS] -= 1
        r.tally[MEMORY_BUFFERS] -= out.capacity
    out.data = cython.NULL
    out.capacity = out.start = out.end = 0


def _is_strained(c):
    """Whether publishers wait for it already."""
    return c.session != cython.NULL and is_waited_for(c.session)


def _make_room(r, c, size):
    """Room for ``size`` more bytes: by sending a full block, closing the gap in front, or a larger block."""
    out: cython.pointer[Output] = cython.address(c.output)
    # of one that is traced whole packets are looked at, at the end of the turn
    may_flush: cython.bint = not c.doomed and not _is_strained(c) and c.trace == 0
    if out.end - out.start >= OUTPUT_BLOCK // 2 and may_flush:
        if not flush_output(r, c):
            doom(r, c, 0, 0)
        if out.data == cython.NULL:
            _take_block(r, out, size)
            return
    used: uint32_t = out.end - out.start
    if out.start and used + size <= out.capacity:
        memmove(out.data, out.data + out.start, used)
    else:
        capacity: uint32_t = out.capacity
        while capacity < used + size:
            capacity = capacity * 4 if capacity < OUTPUT_BLOCK else capacity * 2
        if out.start:
            memmove(out.data, out.data + out.start, used)
        out.data = cython.cast(cython.pointer[uint8_t], enlarge(out.data, capacity))
        r.tally[MEMORY_BUFFERS] += cython.cast(int64_t, capacity) - out.capacity
        out.capacity = capacity
    out.start = 0
    out.end = used


def reserve_output(r, c, size):
    """Adds ``size`` bytes to what goes out; the caller fills them in before anything else is appended."""
    out: cython.pointer[Output] = cython.address(c.output)
    touch(r, c)
    if out.data == cython.NULL:
        _take_block(r, out, size)
    elif out.capacity - out.end < size:
        _make_room(r, c, size)
    at: cython.pointer[uint8_t] = out.data + out.end
    out.end += size
    holds(out.start <= out.end and out.end <= out.capacity, b"output: start <= end <= capacity")
    return at


def append_output(r, c, data, size):
    """Copies ``size`` bytes to what goes out."""
    memcpy(reserve_output(r, c, size), data, size)


def append_large(r, c, message):
    """Lets a message's payload follow what was appended so far, sent from the message itself."""
    out: cython.pointer[Output] = cython.address(c.output)
    touch(r, c)
    if out.large == cython.NULL:
        owner: unique_ptr[LargePayloads] = make_unique[LargePayloads]()
        out.large = owner.release()
    part: LargePayload
    part.at = out.large.streamed + (out.end - out.start)
    part.message = message
    part.sent = 0
    hold_message(message)
    out.large.parts.push_back(part)
    out.large.bytes += message.payload_size


def _gather(out, parts):
    """Lays out what is to be sent, buffer and large payloads in turn; returns how many parts."""
    count: cython.int = 0
    at: uint64_t = out.large.streamed
    data: cython.pointer[uint8_t] = out.data + out.start
    index: cython.size_t
    for index in range(out.large.parts.size()):
        if count + 2 >= _VECTOR_MAX:
            return count
        part: LargePayload = out.large.parts[index]
        if part.at > at:
            parts[count].iov_base = data
            parts[count].iov_len = part.at - at
            data += part.at - at
            at = part.at
            count += 1
        payload: Span = payload_of(part.message)
        parts[count].iov_base = cython.cast(cython.p_void, payload.data + part.sent)
        parts[count].iov_len = payload.size - part.sent
        count += 1
    rest: cython.size_t = out.data + out.end - data
    if rest:
        parts[count].iov_base = data
        parts[count].iov_len = rest
        count += 1
    return count


def consume_output(r, out, size):
    """Marks ``size`` bytes as sent, over buffer and large payloads in their order."""
    large: cython.pointer[LargePayloads] = out.large
    done: cython.size_t = 0
    while size:
        run: uint64_t = out.end - out.start
        if large != cython.NULL and done < large.parts.size():
            run = large.parts[done].at - large.streamed
        if run:
            if run > size:
                run = size
            out.start += cython.cast(uint32_t, run)
            if large != cython.NULL:
                large.streamed += run
            size -= run
            continue
        part: cython.pointer[LargePayload] = cython.address(large.parts[done])
        left: uint64_t = part.message.payload_size - part.sent
        if left > size:
            part.sent += cython.cast(uint32_t, size)
            large.bytes -= size
            break
        large.bytes -= left
        size -= left
        release_message(part.message, r.tally)
        done += 1
    if done:
        large.parts.erase(large.parts.begin(), large.parts.begin() + done)
    if ASSERTS and large != cython.NULL:
        _check_large(large)


def _check_large(large):
    """Where there are few: each change of what waits is looked at."""
    index: cython.size_t
    left: uint64_t = 0
    if large.parts.size() > cython.cast(cython.size_t, _VECTOR_MAX):
        return
    for index in range(large.parts.size()):
        left += large.parts[index].message.payload_size - large.parts[index].sent
    holds(left == large.bytes, b"output: large payloads count what is left of them")


def is_drained(out):
    """Whether all that was appended has gone."""
    return out.end == out.start and (out.large == cython.NULL or out.large.bytes == 0)


def flush_output(r, c):
    """Sends what the socket takes now. False when the connection is broken."""
    out: cython.pointer[Output] = cython.address(c.output)
    total: uint32_t = 0
    if c.transport != cython.NULL:
        return flush_wrapped(r, c)
    while True:
        sent: cython.Py_ssize_t
        if out.large == cython.NULL or out.large.bytes == 0:
            size: uint32_t = out.end - out.start
            if size == 0:
                break
            sent = send(c.fd, out.data + out.start, size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent > 0:
                out.start += cython.cast(uint32_t, sent)
                if out.large != cython.NULL:
                    out.large.streamed += sent
                if sent < size:
                    total += cython.cast(uint32_t, sent)
                    break
        else:
            parts: iovec[64]
            header: msghdr
            memset(cython.address(header), 0, cython.sizeof(msghdr))
            header.msg_iov = parts
            header.msg_iovlen = _gather(out, parts)
            sent = sendmsg(c.fd, cython.address(header), MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent > 0:
                consume_output(r, out, sent)
        if sent < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                break
            return False
        total += cython.cast(uint32_t, sent)
    r.tally[C_BYTES_SENT] += total
    c.bytes_sent += total
    settle_output(r, out, total)
    return True


def settle_output(r, out, sent):
    """Gives the buffer back where all of it has gone; ``sent``: bytes that this turn sent."""
    out.taken += sent
    if is_drained(out):
        out.usual = sent if sent > out.usual // 2 else out.usual // 2
        _give_block(r, out)


def free_output(r, c):
    """Lets go of everything that was not sent."""
    out: cython.pointer[Output] = cython.address(c.output)
    index: cython.size_t
    if out.large != cython.NULL:
        for index in range(out.large.parts.size()):
            release_message(out.large.parts[index].message, r.tally)
        del out.large
        out.large = cython.NULL
    _give_block(r, out)
