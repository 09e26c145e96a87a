"""Backlogs: retained messages on their way to a new subscription, in slices, so that a million of them
neither stall a turn nor fill the output of one client.
"""

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.message import (
    Message,
    Passage,
    close_passage,
    hold_message,
    open_passage,
    release_message,
)
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.index.retained_index import (
    RetainedWalk,
    close_walk,
    continue_walk,
    lock_shared,
    open_walk,
    unlock_shared,
)
from cython.cimports.tidemq.engine.journal.journal import next_id
from cython.cimports.tidemq.engine.link.output import pending_output
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.queues.delivery import deliver
from cython.cimports.tidemq.engine.queues.retaining import forget_expired, has_retained, is_over
from cython.cimports.tidemq.engine.queues.sessions import finish_backlog
from cython.cimports.tidemq.engine.state.client import Backlog, Backlogs, Connection
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.wire.protocol import Span
from cython.cimports.tidemq.wire.topics import split_shared
from cython.operator import dereference

_SLICE = cython.declare(uint32_t, 4)  # messages between two looks at the receiver's output: they may be large
_SLICES = cython.declare(cython.int, 64)  # for one client in one turn
_SLICES_OF_TURN = cython.declare(cython.int, 256)  # for all
_LOOKS_OF_TURN = cython.declare(cython.int, 1024)  # at clients that may have no room


def _schedule(r, c):
    if not c.backlogged:
        c.backlogged = True
        r.backlogged.push_back(handle_of(r, c))
    r.backlog_ready = True


def _send_slice(r, s, walk, backlog):
    """Delivers the next retained messages; false when there are no more."""
    passage: Passage
    index: cython.size_t
    r.found.clear()
    lock_shared(r.common.retained)
    more: cython.bint = continue_walk(walk, _SLICE, cython.address(r.found))
    for index in range(r.found.size()):
        hold_message(cython.cast(cython.pointer[Message], r.found[index]))
    unlock_shared(r.common.retained)
    ids_count: uint32_t = 1 if backlog.subscription_id else 0
    for index in range(r.found.size()):
        message: cython.pointer[Message] = cython.cast(cython.pointer[Message], r.found[index])
        if is_over(r, message):
            forget_expired(r, message)
        else:
            open_passage(cython.address(passage), message)
            passage.feeder = 0
            if r.common.durable and backlog.qos and message.qos:
                # a copy with an id of its own: it comes after what is queued, and may be there twice
                passage.message = cython.NULL
                passage.id = next_id(r)
            deliver(
                r,
                s,
                cython.address(passage),
                backlog.qos,
                True,
                cython.address(backlog.subscription_id),
                ids_count,
            )
            if passage.message != message:
                release_message(message, r.tally)
            close_passage(cython.address(passage), r.tally)
        release_message(message, r.tally)
    return more


def begin_backlog(r, s, filter, qos, subscription_id):
    """A new subscription gets what is retained under its filter [MQTT-3.3.1-6].

    Most filters have few messages, which go at once; what is more goes turn by turn, and what is left when
    the client goes away waits in its session. The same filter again begins anew.
    """
    backlog: Backlog
    key: string
    key.assign(cython.cast(cython.p_char, filter.data), filter.size)
    end_backlog(r, s, filter)
    if not has_retained(r):
        finish_backlog(r, s, cython.address(key))
        return
    if s.backlogs != cython.NULL and not s.internal:  # one after the other: a client has one open walk
        keep_backlog(s, filter, qos, subscription_id)
        _schedule(r, s.connection)
        return
    walk: cython.pointer[RetainedWalk] = open_walk(r.common.retained, split_shared(filter).filter)
    backlog.qos = qos
    backlog.subscription_id = subscription_id
    room: cython.bint = s.internal or pending_output(s.connection) <= r.common.limits.output_high_bytes // 2
    if room and not _send_slice(r, s, walk, cython.address(backlog)):
        close_walk(walk)
        finish_backlog(r, s, cython.address(key))
        return
    if s.internal:  # what is too much for the embedding program is counted there
        while _send_slice(r, s, walk, cython.address(backlog)):
            pass
        close_walk(walk)
        return
    keep_backlog(s, filter, qos, subscription_id)
    s.backlogs.walk = walk
    s.backlogs.filter = key
    _schedule(r, s.connection)


def keep_backlog(s, filter, qos, subscription_id):
    """A subscription has still to get what is retained; its walk begins when the client is there, and those
    before it have ended.
    """
    if s.backlogs == cython.NULL:
        owner: unique_ptr[Backlogs] = make_unique[Backlogs]()
        s.backlogs = owner.release()
    backlog: Backlog
    backlog.qos = qos
    backlog.subscription_id = subscription_id
    key: string
    key.assign(cython.cast(cython.p_char, filter.data), filter.size)
    s.backlogs.by_filter[key] = backlog


def resume_backlog(r, s):
    """The client is back: subscriptions whose retained messages had not all gone out begin anew."""
    if s.backlogs != cython.NULL:
        _schedule(r, s.connection)


def suspend_backlog(s):
    """The client is gone: no walk stays open for it, only what it is to get is kept."""
    if s.backlogs != cython.NULL:
        _end_walk(s.backlogs)


def _end_walk(backlogs):
    if backlogs.walk != cython.NULL:
        close_walk(backlogs.walk)
    backlogs.walk = cython.NULL


def end_backlog(r, s, filter):
    """Nothing more that is retained goes to this subscription [MQTT-3.10.4-2]."""
    if s.backlogs == cython.NULL:
        return
    key: string
    key.assign(cython.cast(cython.p_char, filter.data), filter.size)
    if s.backlogs.filter == key:
        _end_walk(s.backlogs)
    s.backlogs.by_filter.erase(key)
    if s.backlogs.by_filter.empty():
        free_backlog(s)


def free_backlog(s):
    """Nothing that is retained goes to the session any more."""
    if s.backlogs == cython.NULL:
        return
    _end_walk(s.backlogs)
    del s.backlogs
    s.backlogs = cython.NULL


def _continue_backlog(r, c, left):
    """Sends what the connection takes in this turn, in ``left`` slices at most; false when nothing is left to
    send.
    """
    high: uint64_t = r.common.limits.output_high_bytes // 2
    slices: cython.int
    for slices in range(_SLICES):
        if pending_output(c) > high or c.session.outbox.bytes > high:
            return True  # goes on when the client has read or acknowledged some
        if left[0] == 0:
            break
        left[0] -= 1
        if not _send_next(r, c.session):
            return False
    r.backlog_ready = True
    return True


def _send_next(r, s):
    """A slice for one of the subscriptions that wait, for the same one until it has all; false when none is
    left.
    """
    waiting: cython.pointer[Backlogs] = s.backlogs
    holds(not waiting.by_filter.empty(), b"backlogs: a session's table of them is not empty")
    if waiting.walk == cython.NULL:
        waiting.filter = dereference(waiting.by_filter.begin()).first
        topics: Span = split_shared(span_of(cython.address(waiting.filter))).filter
        waiting.walk = open_walk(r.common.retained, topics)
    holds(waiting.by_filter.count(waiting.filter) == 1, b"backlogs: who is walked for waits")
    if _send_slice(r, s, waiting.walk, cython.address(waiting.by_filter[waiting.filter])):
        return True
    _end_walk(waiting)
    filter: string = waiting.filter
    waiting.by_filter.erase(filter)
    finish_backlog(r, s, cython.address(filter))
    if not waiting.by_filter.empty():
        return True
    free_backlog(s)
    return False


def continue_backlogs(r):
    """Once a turn: some slices for connections whose output has room, which take turns."""
    slices: cython.int = _SLICES_OF_TURN
    looks: cython.int = _LOOKS_OF_TURN
    if r.backlog_ready:
        r.backlog_left = r.backlogged.size()
        r.backlog_ready = False
    while r.backlog_left and slices and looks:
        count_steps(1)
        looks -= 1
        r.backlog_left -= 1
        if r.backlog_at >= r.backlogged.size():
            r.backlog_at = 0
        c: cython.pointer[Connection] = connection_of(r, r.backlogged[r.backlog_at])
        holds(c == cython.NULL or c.backlogged, b"backlogs: a connection in the list says so")
        if (
            c != cython.NULL
            and not c.doomed
            and c.session.backlogs != cython.NULL
            and _continue_backlog(r, c, cython.address(slices))
        ):
            r.backlog_at += 1
            continue
        if c != cython.NULL:
            c.backlogged = False
        r.backlogged[r.backlog_at] = r.backlogged.back()
        r.backlogged.pop_back()
