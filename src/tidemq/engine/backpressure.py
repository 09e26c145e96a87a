"""Back-pressure before loss.

A receiver whose output passes the high-water mark is congested: the publishers that feed it are read no more
until it is below half of the mark, or until ``backpressure_s`` have passed; only then it is slow, and QoS 0
messages to it are dropped and counted. A publisher may wait for several receivers: ``pause_count`` says for
how many. The memory ceiling stops every publisher in the same way.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint16_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.cache import cache_bytes, shrink_cache
from cython.cimports.tidemq.engine.captured import CAPTURED_BYTES_MAX
from cython.cimports.tidemq.engine.counters import (
    C_PUBLISHERS_PAUSED,
    MEMORY_BUFFERS,
    MEMORY_CACHES,
    MEMORY_CONNECTIONS,
    MEMORY_MESSAGES,
    MEMORY_RULES,
    MEMORY_SESSIONS,
)
from cython.cimports.tidemq.engine.handles import connection_of, handle_of, reactor_of
from cython.cimports.tidemq.engine.mail import send_number_mail
from cython.cimports.tidemq.engine.output import pending_output
from cython.cimports.tidemq.engine.retained import lock_shared as lock_retained
from cython.cimports.tidemq.engine.retained import unlock_shared as unlock_retained
from cython.cimports.tidemq.engine.state import (
    MAIL_PAUSE,
    MAIL_RESUME,
    Connection,
    Reactor,
    Shared,
)
from cython.cimports.tidemq.engine.subscriptions import lock_shared as lock_subscriptions
from cython.cimports.tidemq.engine.subscriptions import unlock_shared as unlock_subscriptions
from cython.cimports.tidemq.engine.system import RELAXED, load_i64, load_int, store_i64, store_int

_NODE_BYTES = cython.declare(int64_t, 64)  # of a level, with its edge


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def pause_feeder(r: cython.pointer[Reactor], feeder: uint64_t) -> cython.void:
    """Reads nothing more from a publisher, on whichever reactor it lives."""
    if reactor_of(feeder) != r.index:
        send_number_mail(r, reactor_of(feeder), MAIL_PAUSE, feeder)
        return
    c: cython.pointer[Connection] = connection_of(r, feeder)
    if c != cython.NULL:
        c.pause_count += 1
        r.tally[C_PUBLISHERS_PAUSED] += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def resume_feeder(r: cython.pointer[Reactor], feeder: uint64_t) -> cython.void:
    """Takes one pause back; the last one lets the publisher go on with what it has sent meanwhile."""
    if reactor_of(feeder) != r.index:
        send_number_mail(r, reactor_of(feeder), MAIL_RESUME, feeder)
        return
    c: cython.pointer[Connection] = connection_of(r, feeder)
    if c != cython.NULL and c.pause_count:
        c.pause_count -= 1
        if c.pause_count == 0:
            r.resumed.push_back(feeder)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def congest(r: cython.pointer[Reactor], c: cython.pointer[Connection], feeder: uint64_t) -> cython.void:
    """The receiver ``c`` is above its mark because of what ``feeder`` (0: nobody that can wait) published."""
    if c.slow:
        return
    if not c.congested:
        c.congested = True
        c.congested_ms = r.now_ms
        r.congested.push_back(handle_of(r, c))
    if feeder == 0:
        return
    if c.feeders == cython.NULL:
        owner: unique_ptr[vector[uint64_t]] = make_unique[vector[uint64_t]]()
        c.feeders = owner.release()
    index: cython.size_t
    for index in range(c.feeders.size()):
        if c.feeders[0][index] == feeder:
            return
    c.feeders.push_back(feeder)
    pause_feeder(r, feeder)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def release_feeders(r: cython.pointer[Reactor], c: cython.pointer[Connection]) -> cython.void:
    """Lets everybody who waits for this receiver go on."""
    if c.feeders == cython.NULL:
        return
    index: cython.size_t
    for index in range(c.feeders.size()):
        resume_feeder(r, c.feeders[0][index])
    del c.feeders
    c.feeders = cython.NULL


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def relieve(r: cython.pointer[Reactor], c: cython.pointer[Connection]) -> cython.void:
    """Ends the congestion once the output, and what waits behind it, are below half of the mark."""
    low: uint64_t = r.shared.limits.output_high_bytes // 2
    if pending_output(c) > low:
        return
    # while it is paused its acknowledgements are not read: to wait for them would be to wait for each other
    if c.pause_count == 0 and c.session != cython.NULL and c.session.outbox.bytes > low:
        return
    c.congested = False
    c.slow = False
    release_feeders(r, c)
    index: cython.size_t
    handle: uint64_t = handle_of(r, c)
    for index in range(r.congested.size()):
        if r.congested[index] == handle:
            r.congested[index] = r.congested.back()
            r.congested.pop_back()
            return


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def wait_for_inbox(r: cython.pointer[Reactor], target: uint16_t, feeder: uint64_t) -> cython.void:
    """A publisher of this reactor that mails faster than the other reactor reads is held until that has
    caught up.
    """
    other: cython.pointer[Reactor] = r.shared.reactors[target]
    waiting: cython.int = load_int(cython.address(other.inbox_count), RELAXED)
    if waiting >= r.shared.limits.inbox_messages_max:
        hold_feeder(r, feeder)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def hold_feeder(r: cython.pointer[Reactor], feeder: uint64_t) -> cython.void:
    """Reads nothing more from a publisher of this reactor until ``check_flooding`` lets it go on."""
    if reactor_of(feeder) != r.index:
        return
    c: cython.pointer[Connection] = connection_of(r, feeder)
    if c != cython.NULL and c.pause_count == 0:
        r.flooding.push_back(feeder)
        pause_feeder(r, feeder)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check_flooding(r: cython.pointer[Reactor]) -> cython.void:
    """Once a turn: publishers go on when every reactor's inbox, and what the disk has to take for streams, is
    below half of its mark.
    """
    index: cython.size_t
    if r.flooding.empty() or r.captured_bytes > CAPTURED_BYTES_MAX // 2:
        return
    for index in range(r.shared.reactors.size()):
        waiting: cython.int = load_int(cython.address(r.shared.reactors[index].inbox_count), RELAXED)
        if waiting > r.shared.limits.inbox_messages_max // 2:
            return
    for index in range(r.flooding.size()):
        resume_feeder(r, r.flooding[index])
    r.flooding.clear()


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check_congested(r: cython.pointer[Reactor]) -> cython.void:
    """Once a tick: receivers whose publishers have waited long enough become slow."""
    index: cython.size_t = 0
    while index < r.congested.size():
        c: cython.pointer[Connection] = connection_of(r, r.congested[index])
        if c == cython.NULL:
            r.congested[index] = r.congested.back()
            r.congested.pop_back()
            continue
        if not c.slow and r.now_ms - c.congested_ms > r.shared.limits.backpressure_ms:
            c.slow = True
            release_feeders(r, c)
        index += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def tree_bytes(shared: cython.pointer[Shared]) -> int64_t:
    """About what the nodes of filters and retained topics take; their levels' texts are counted elsewhere."""
    lock_subscriptions(shared.subscriptions)
    nodes: int64_t = shared.subscriptions.filters.node_count
    nodes += shared.subscriptions.groups.node_count
    unlock_subscriptions(shared.subscriptions)
    lock_retained(shared.retained)
    nodes += shared.retained.topics.node_count
    unlock_retained(shared.retained)
    return nodes * _NODE_BYTES


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check_memory(r: cython.pointer[Reactor]) -> cython.void:
    """Once a tick: says whether the ceiling is passed, and lets publishers go on when it is not.

    One that has waited for ``backpressure_s`` goes on as well, for its acknowledgements may be what frees
    memory; but what it publishes is refused as long as the ceiling is passed.
    """
    index: cython.size_t = 0
    r.tally[MEMORY_CACHES] = cache_bytes(cython.address(r.cache))
    store_i64(cython.address(r.published[MEMORY_CACHES]), r.tally[MEMORY_CACHES], RELAXED)
    used: int64_t = load_i64(cython.address(r.shared.published[MEMORY_MESSAGES]), RELAXED)
    used += load_i64(cython.address(r.shared.published[MEMORY_RULES]), RELAXED)
    for index in range(r.shared.reactors.size()):
        other: cython.pointer[Reactor] = r.shared.reactors[index]
        used += load_i64(cython.address(other.published[MEMORY_MESSAGES]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_BUFFERS]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_CONNECTIONS]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_SESSIONS]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_RULES]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_CACHES]), RELAXED)
    used += tree_bytes(r.shared)
    passed: cython.bint = used > r.shared.limits.memory_bytes_max
    if passed:
        shrink_cache(r)
    store_int(cython.address(r.shared.overloaded), passed, RELAXED)
    index = 0
    while index < r.overloaded.size():
        c: cython.pointer[Connection] = connection_of(r, r.overloaded[index])
        if c != cython.NULL:
            late: cython.bint = r.now_ms - c.overloaded_ms > r.shared.limits.backpressure_ms
            if passed and not late:
                index += 1
                continue
            c.overloaded = False
            c.refused = passed
            resume_feeder(r, r.overloaded[index])
        r.overloaded[index] = r.overloaded.back()
        r.overloaded.pop_back()


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def refused_by_memory(r: cython.pointer[Reactor], c: cython.pointer[Connection]) -> cython.bint:
    """Holds a publisher that sends above the memory ceiling. True: it was held for too long, refuse its
    message.
    """
    if not load_int(cython.address(r.shared.overloaded), RELAXED):
        c.refused = False
    elif not c.refused and not c.overloaded:
        c.overloaded = True
        c.overloaded_ms = r.now_ms
        r.overloaded.push_back(handle_of(r, c))
        pause_feeder(r, handle_of(r, c))
    return c.refused
