"""Retained messages: kept by topic for all reactors, and removed when their time is over."""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_DROPPED_EXPIRED,
    C_DROPPED_RETAINED_FULL,
    C_MESSAGES_RETAINED,
)
from cython.cimports.tidemq.engine.base.message import (
    Message,
    Passage,
    close_passage,
    copy_passage,
    hold_message,
    passage_message,
    release_message,
    topic_of,
)
from cython.cimports.tidemq.engine.index.retained_index import (
    RetainedIndex,
    close_walk,
    continue_walk,
    find_retained,
    lock_exclusive,
    lock_shared,
    open_walk,
    put_retained,
    remove_retained,
    unlock_exclusive,
    unlock_shared,
)
from cython.cimports.tidemq.engine.journal.journal import note_retained
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.queues.cache import find_receivers
from cython.cimports.tidemq.engine.state.client import Connection
from cython.cimports.tidemq.engine.state.handles import connection_of
from cython.cimports.tidemq.engine.state.routing import CacheEntry
from cython.cimports.tidemq.engine.state.wall_clock import wall_offset
from cython.cimports.tidemq.wire.protocol import Span

_SWEEP_SLICE = cython.declare(uint32_t, 512)  # messages that a tick looks at in search of expired ones
_SWEEP_PAUSE_MS = cython.declare(int64_t, 5000)  # between two sweeps


def retain_passage(r, p):
    """Keeps the message for its topic, or forgets the topic's when the payload is empty [MQTT-3.3.1-5..8].

    The limit is for clients: what the broker itself retains, its $SYS topics, always finds room.
    """
    short: Passage
    if r.topic_rules != cython.NULL and p.payload.size and _shorten(r, p, cython.address(short)):
        _retain(r, cython.address(short))
        close_passage(cython.address(short), r.tally)
        p.kept = p.kept or short.kept
    else:
        _retain(r, p)


def _shorten(r, p, short):
    """Whether the operator lets such a message be retained for a shorter time than it lasts: then that is a
    message of its own, and who is subscribed now gets it as it was published.
    """
    topic: Span = p.topic
    p.entry = cython.NULL  # the look-up may forget it; and who subscribes meanwhile is to get the message
    entry: cython.pointer[CacheEntry] = find_receivers(r, cython.address(topic))
    if entry.lifetime == 0:
        return False
    ends_ms: int64_t = r.now_ms + r.topic_rules.lifetimes[entry.lifetime - 1].ttl_ms
    if p.expires_ms and p.expires_ms <= ends_ms:
        return False
    short[0] = copy_passage(p, p.id)
    short.expires_ms = ends_ms
    return True


def _retain(r, p):
    index: cython.pointer[RetainedIndex] = r.common.retained
    old: cython.p_void = cython.NULL
    full: cython.bint = False
    message: cython.pointer[Message] = cython.NULL
    if p.payload.size:
        message = passage_message(p, r.tally)
        hold_message(message)
    holds(p.id.clock != 0, b"retaining: what is retained has an id")
    if r.common.durable and p.topic.data[0] != 0x24:  # '$': what the broker says of itself is not kept
        note_retained(r, passage_message(p, r.tally))
        p.kept = True
    lock_exclusive(index)
    if message == cython.NULL:
        old = remove_retained(index, p.topic)
    elif (
        p.publisher == 0
        or index.count < r.common.limits.retained_messages_max
        or find_retained(index, p.topic) != cython.NULL
    ):
        old = put_retained(index, p.topic, message)
        r.tally[C_MESSAGES_RETAINED] += 1
    else:
        old = message
        full = True
    unlock_exclusive(index)
    if full:
        c: cython.pointer[Connection] = connection_of(r, p.feeder) if p.feeder else cython.NULL
        note_drop(r, c.session if c != cython.NULL else cython.NULL, C_DROPPED_RETAINED_FULL, 1)
    if old != cython.NULL:
        release_message(cython.cast(cython.pointer[Message], old), r.tally)


def forget_expired(r, message):
    """Removes a retained message that has expired, unless another took its place meanwhile."""
    r.tally[C_DROPPED_EXPIRED] += remove_if_same(r, message)


def remove_if_same(r, message):
    """Removes a retained message that the caller holds; false if another took its place meanwhile."""
    index: cython.pointer[RetainedIndex] = r.common.retained
    lock_exclusive(index)
    same: cython.bint = find_retained(index, topic_of(message)) == message
    if same:
        remove_retained(index, topic_of(message))
    unlock_exclusive(index)
    if same:
        if r.common.durable and topic_of(message).data[0] != 0x24:  # '$', as above
            note_retained(r, message)
        release_message(message, r.tally)
    return same


def is_over(r, message):
    """Whether a retained message has expired, by its own wish or by ``retained_ttl_s``."""
    if message.expires_ms and message.expires_ms <= r.now_ms:
        return True
    ttl_ms: int64_t = r.common.limits.retained_ttl_ms
    if ttl_ms == 0 or message.id.clock == 0:
        return False
    now_ns: int64_t = r.now_ns + wall_offset(r.common)
    return now_ns - cython.cast(int64_t, message.id.clock) >= ttl_ms * 1000000


def sweep_retained(r):
    """Once a tick, on one reactor: looks at some retained messages and removes those whose time is over,
    which else go when somebody would get them.
    """
    index: cython.size_t
    everything: string
    if r.index or (r.sweep == cython.NULL and r.now_ms - r.swept_ms < _SWEEP_PAUSE_MS):
        return
    r.found.clear()
    holds(r.index == 0, b"retaining: one reactor sweeps for all")
    lock_shared(r.common.retained)
    if r.sweep == cython.NULL:
        everything.push_back(0x23)  # '#'
        r.sweep = open_walk(r.common.retained, span_of(cython.address(everything)))
    more: cython.bint = continue_walk(r.sweep, _SWEEP_SLICE, cython.address(r.found))
    for index in range(r.found.size()):
        hold_message(cython.cast(cython.pointer[Message], r.found[index]))
    unlock_shared(r.common.retained)
    for index in range(r.found.size()):
        message: cython.pointer[Message] = cython.cast(cython.pointer[Message], r.found[index])
        if is_over(r, message):
            forget_expired(r, message)
        release_message(message, r.tally)
    if not more:
        end_sweep(r)


def end_sweep(r):
    """The sweep has come to its end, or to the reactor's."""
    if r.sweep != cython.NULL:
        close_walk(r.sweep)
        r.sweep = cython.NULL
        r.swept_ms = r.now_ms


def has_retained(r):
    """Whether anything is retained."""
    lock_shared(r.common.retained)
    found: cython.bint = r.common.retained.count > 0
    unlock_shared(r.common.retained)
    return found
