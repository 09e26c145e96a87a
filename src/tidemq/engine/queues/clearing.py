"""Packet identifiers that a client may hold, of QoS 2 messages that this broker knows nothing of: another
node of a cluster had its session, and was not there to say what it had sent.

A client takes what comes under an identifier that it holds for the message that it has, and acknowledges it:
it would be lost. So before a QoS 2 message takes a place in its outbox the client is told to release the
identifier (PUBREL), a few places ahead, and the message goes when it says that it has (PUBCOMP): whether it
held it or not, for it answers both [MQTT-4.3.3-11]. When it has been through all identifiers none is left.

Who does not answer, or ends its connection each time instead, gets its messages all the same, and is counted.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_IDENTIFIERS_NOT_CLEARED
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.link.output import reserve_output
from cython.cimports.tidemq.engine.link.timers import time_connection
from cython.cimports.tidemq.engine.queues.outbox import packet_id_of
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.queue import Clearing, Outbox
from cython.cimports.tidemq.wire.packets import encode_ack
from cython.cimports.tidemq.wire.protocol import PUBREL, RC_SUCCESS

_AT_ONCE = cython.declare(uint32_t, 64)  # identifiers: bits of `awaited`
_AT_LEAST = cython.declare(uint32_t, 8)
_AHEAD = cython.declare(uint64_t, 16)  # places that are asked for before a message needs them
_IDENTIFIERS = cython.declare(uint64_t, 65535)
_PATIENCE_MS = cython.declare(int64_t, 20000)
_TRIES = cython.declare(cython.uchar, 5)  # connections that ended before the client answered
_ANY_PLACE = cython.declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


def begin_clearing(q):
    """From the next place on that a QoS 2 message is to take."""
    if q.clearing == cython.NULL:
        owner: unique_ptr[Clearing] = make_unique[Clearing]()
        q.clearing = owner.release()
    q.clearing.connection = 0
    q.clearing.cleared = q.clearing.asked = q.clearing.until = 0
    q.clearing.awaited = 0
    q.clearing.tries = 0
    q.clearing.given_up = False


def free_clearing(q):
    """The client holds nothing that is not known, or will not say."""
    if q != cython.NULL and q.clearing != cython.NULL:
        del q.clearing
        q.clearing = cython.NULL


def cleared_place(q):
    """The place before which the client holds no identifier but those of what is in flight."""
    if q == cython.NULL or q.clearing == cython.NULL or q.clearing.given_up:
        return _ANY_PLACE
    return q.clearing.cleared


def may_take_place(r, s, c, place):
    """Whether a QoS 2 message may go out at the next place of the outbox; where not, the client is asked."""
    k: cython.pointer[Clearing] = s.stored.clearing
    if k.given_up:
        return True
    if k.connection != handle_of(r, c):
        k.tries += k.awaited != 0
        k.connection = handle_of(r, c)
        k.asked = k.cleared
        k.awaited = 0
    if k.tries >= _TRIES or (k.awaited and r.now_ms - k.since_ms >= _PATIENCE_MS):
        r.tally[C_IDENTIFIERS_NOT_CLEARED] += 1
        k.given_up = True  # what it answers late is still an answer to this
        return True
    if k.awaited == 0 and (k.until == 0 or place > k.asked):  # at first, or where QoS 1 has taken more places
        k.cleared = k.asked = place
        k.until = place + _IDENTIFIERS
    if k.awaited == 0 and place + _AHEAD >= k.asked:
        _ask(r, s, c, k)
    return place < k.cleared


def _ask(r, s, c, k):
    """For the next places, but none whose identifier is in flight."""
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    count: uint64_t = min(_AT_ONCE, max(_AT_LEAST, box.waiting))
    end: uint64_t = min(k.asked + count, box.head + _IDENTIFIERS)
    bit: uint64_t = 1
    holds(k.asked == k.cleared, b"clearing: the client is asked for more when it has answered")
    while k.asked < end:
        count_steps(1)
        encode_ack(PUBREL, packet_id_of(k.asked), RC_SUCCESS, c.version, reserve_output(r, c, 4))
        k.awaited |= bit
        bit <<= 1
        k.asked += 1
    k.since_ms = r.now_ms
    time_connection(r, c, r.now_ms + _PATIENCE_MS)


def note_cleared(r, s, c, packet_id):
    """Whether a PUBCOMP answers what the client was asked, which it does also where a QoS 1 message has
    taken the place meanwhile. When all have come more can be sent.
    """
    if s.stored == cython.NULL or s.stored.clearing == cython.NULL:
        return False
    k: cython.pointer[Clearing] = s.stored.clearing
    # of the places from `cleared` on, wherever the outbox begins by now
    ahead: uint64_t = (packet_id + _IDENTIFIERS - packet_id_of(k.cleared)) % _IDENTIFIERS
    if k.connection != handle_of(r, c) or ahead >= _AT_ONCE or not k.awaited >> ahead & 1:
        return False
    k.awaited &= ~(cython.cast(uint64_t, 1) << ahead)
    if k.awaited == 0:
        k.cleared = k.asked
        k.tries = 0
        if k.given_up or k.cleared >= k.until:
            free_clearing(s.stored)
    return True


def clearing_due_ms(s):
    """When the client's answer is waited for no more; 0: none is."""
    if s.stored == cython.NULL or s.stored.clearing == cython.NULL:
        return 0
    k: cython.pointer[Clearing] = s.stored.clearing
    return 0 if k.awaited == 0 or k.given_up else k.since_ms + _PATIENCE_MS
