"""How much may come in a second: messages and bytes of one client, and of a listener's clients together;
connections of a listener. Who sends more is read later; nothing is dropped.

A bucket is one time: when all that was taken from it is paid for, at so much a second. It holds a second's
worth, so who was silent may send that much at once. A listener's is shared by the reactors; each takes its
part with one atomic addition, so in the long run the rate is exact. Over a short time it may be passed, by
what each connection may take in advance: a twentieth of a second's worth of messages, one read of bytes.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_CLIENTS_THROTTLED, C_THROTTLED_MS
from cython.cimports.tidemq.engine.base.engine_limits import Rates
from cython.cimports.tidemq.engine.base.system import RELAXED, add_i64, compare_exchange_i64, load_i64
from cython.cimports.tidemq.engine.link.output import touch
from cython.cimports.tidemq.engine.link.timers import add_timer
from cython.cimports.tidemq.engine.state.client import ClientUsage, Connection
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.engine.state.mail import TIMER_THROTTLED
from cython.cimports.tidemq.wire.packets import FixedHeader, parse_fixed_header
from cython.cimports.tidemq.wire.protocol import FAULT_NONE, PUBACK, PUBCOMP

_SECOND_NS = cython.declare(int64_t, 1000000000)
_STEPS = cython.declare(int64_t, 20)  # of a second: who has waited gets one step's worth
_READ_LEAST = cython.declare(int64_t, 4096)  # bytes
_ANY = cython.declare(int64_t, 0x7FFFFFFF)


def _left(paid_ns, now_ns, per_s):
    """What the bucket holds; a step's worth at least, for who comes to it has waited."""
    if per_s == 0:
        return _ANY
    least: int64_t = max(per_s // _STEPS, cython.cast(int64_t, 1))
    free_ns: int64_t = now_ns + _SECOND_NS - load_i64(paid_ns, RELAXED)
    if free_ns >= _SECOND_NS:
        return per_s
    return max(free_ns * per_s // _SECOND_NS, least) if free_ns > 0 else least


def _take(paid_ns, now_ns, count, per_s):
    """Takes from the bucket; returns when there is something in it again, 0 where it is not bounded."""
    if per_s == 0:
        return 0
    before: int64_t = load_i64(paid_ns, RELAXED)
    while before < now_ns:
        if compare_exchange_i64(paid_ns, cython.address(before), now_ns, True, RELAXED, RELAXED):
            break
    paid: int64_t = add_i64(paid_ns, count * _SECOND_NS // per_s, RELAXED)
    return paid - _SECOND_NS + _SECOND_NS // min(per_s, _STEPS)


def _usage_of(c):
    if c.usage == cython.NULL:
        owner: unique_ptr[ClientUsage] = make_unique[ClientUsage]()
        c.usage = owner.release()
    return c.usage


def _hold(r, c, until_ns):
    """Reads nothing more from the client until then."""
    if until_ns <= r.now_ns or c.throttled or c.doomed or c.leaving:
        return
    c.throttled = True
    _usage_of(c).throttled_ms = r.now_ms
    c.pause_count += 1
    r.tally[C_CLIENTS_THROTTLED] += 1
    touch(r, c)
    add_timer(r, until_ns // 1000000 + 1, handle_of(r, c), TIMER_THROTTLED)


def end_hold(r, c):
    """It waits for no bucket any more, because the time is over or because it leaves this reactor."""
    if c.throttled:
        c.throttled = False
        r.tally[C_THROTTLED_MS] += r.now_ms - c.usage.throttled_ms


def hold_is_over(r, handle):
    """A throttled client's timer."""
    c: cython.pointer[Connection] = connection_of(r, handle)
    if c == cython.NULL or not c.throttled:
        return
    end_hold(r, c)
    holds(c.pause_count > 0, b"rates: who waits for a bucket is paused")
    c.pause_count -= 1
    if c.pause_count == 0:
        r.resumed.push_back(handle)


def _walk(data, size, most, end):
    """Counts the messages: all whole packets but acknowledgements, which answer to what we send. Stops before
    there are more than ``most``, and says where.
    """
    header: FixedHeader
    at: uint32_t = 0
    count: int64_t = 0
    end[0] = size
    while at < size:
        if parse_fixed_header(data + at, size - at, cython.address(header)) != FAULT_NONE:
            return count
        if header.body_size > size - at - header.header_size:
            return count
        if not PUBACK <= header.first >> 4 <= PUBCOMP:
            if count == most:
                end[0] = at
                return count
            count += 1
        at += header.header_size + header.body_size
        holds(at <= size, b"rates: packets that are counted have come whole")
    return count


def within_rates(r, c, data, size):
    """How many bytes of it may be handled now, in whole packets: one packet at least."""
    rates: cython.pointer[Rates] = cython.address(c.listener.rates)
    end: uint32_t = size
    if rates.client_messages or rates.messages:
        most: int64_t = min(
            _left(cython.address(_usage_of(c).buckets.messages_ns), r.now_ns, rates.client_messages),
            _left(cython.address(c.listener.usage.messages_ns), r.now_ns, rates.messages),
        )
        _walk(data, size, most, cython.address(end))
    return end


def charge_messages(r, c, data, size, more):
    """After so many bytes were handled. ``more``: others had to be left, so the client waits in any case."""
    rates: cython.pointer[Rates] = cython.address(c.listener.rates)
    if not (rates.client_messages or rates.messages):
        return
    end: uint32_t
    count: int64_t = _walk(data, size, _ANY, cython.address(end))
    until_ns: int64_t = max(
        _take(cython.address(_usage_of(c).buckets.messages_ns), r.now_ns, count, rates.client_messages),
        _take(cython.address(c.listener.usage.messages_ns), r.now_ns, count, rates.messages),
    )
    if more:
        until_ns = max(until_ns, r.now_ns + 1)
    _hold(r, c, until_ns)


def room_within_rates(r, c, room):
    """How many bytes the next read may bring."""
    rates: cython.pointer[Rates] = cython.address(c.listener.rates)
    left: int64_t = min(
        _left(cython.address(_usage_of(c).buckets.bytes_ns), r.now_ns, rates.client_bytes),
        _left(cython.address(c.listener.usage.bytes_ns), r.now_ns, rates.bytes),
    )
    return cython.cast(uint32_t, min(cython.cast(int64_t, room), max(left, _READ_LEAST)))


def charge_bytes(r, c, size):
    """After a read."""
    rates: cython.pointer[Rates] = cython.address(c.listener.rates)
    until_ns: int64_t = max(
        _take(cython.address(_usage_of(c).buckets.bytes_ns), r.now_ns, size, rates.client_bytes),
        _take(cython.address(c.listener.usage.bytes_ns), r.now_ns, size, rates.bytes),
    )
    _hold(r, c, until_ns)


def may_accept_at(r, listener):
    """When the listener may take one more connection, in ms of the monotonic clock. 0: now."""
    per_s: int64_t = listener.rates.connects
    if per_s == 0:
        return 0
    at_ns: int64_t = (
        load_i64(cython.address(listener.connects_ns), RELAXED) - _SECOND_NS + _SECOND_NS // per_s
    )
    return 0 if at_ns <= r.now_ns else at_ns // 1000000 + 1


def charge_accept(r, listener):
    """After a connection was taken."""
    _take(cython.address(listener.connects_ns), r.now_ns, 1, listener.rates.connects)
