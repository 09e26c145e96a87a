"""The ceiling of memory: publishers stop when it is passed, and what they send may be refused."""

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    MEMORY_BUFFERS,
    MEMORY_CACHES,
    MEMORY_CONNECTIONS,
    MEMORY_MESSAGES,
    MEMORY_RULES,
    MEMORY_SESSIONS,
)
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import (
    RELAXED,
    load_i64,
    load_int,
    store_i64,
    store_int,
)
from cython.cimports.tidemq.engine.index.retained_index import lock_shared as lock_retained
from cython.cimports.tidemq.engine.index.retained_index import unlock_shared as unlock_retained
from cython.cimports.tidemq.engine.index.subscriptions import lock_shared as lock_subscriptions
from cython.cimports.tidemq.engine.index.subscriptions import unlock_shared as unlock_subscriptions
from cython.cimports.tidemq.engine.link.backpressure import (
    pause_feeder,
    resume_feeder,
)
from cython.cimports.tidemq.engine.queues.cache import cache_bytes, shrink_cache
from cython.cimports.tidemq.engine.state.client import Connection
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.engine.state.reactor import Reactor

_SLICE = cython.declare(cython.size_t, 4096)  # publishers looked at in one turn
_NODE_BYTES = cython.declare(int64_t, 64)  # of a level, with its edge


def tree_bytes(common):
    """About what the nodes of filters and retained topics take; their levels' texts are counted elsewhere."""
    lock_subscriptions(common.subscriptions)
    nodes: int64_t = common.subscriptions.filters.node_count
    nodes += common.subscriptions.groups.node_count
    unlock_subscriptions(common.subscriptions)
    lock_retained(common.retained)
    nodes += common.retained.topics.node_count
    unlock_retained(common.retained)
    return nodes * _NODE_BYTES


def memory_used(common):
    """Bytes that count against the ceiling, as of the last turns of all reactors; any thread."""
    index: cython.size_t = 0
    used: int64_t = load_i64(cython.address(common.published[MEMORY_MESSAGES]), RELAXED)
    used += load_i64(cython.address(common.published[MEMORY_RULES]), RELAXED)
    for index in range(common.reactors.size()):
        other: cython.pointer[Reactor] = common.reactors[index]
        used += load_i64(cython.address(other.published[MEMORY_MESSAGES]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_BUFFERS]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_CONNECTIONS]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_SESSIONS]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_RULES]), RELAXED)
        used += load_i64(cython.address(other.published[MEMORY_CACHES]), RELAXED)
    return used + tree_bytes(common)


def check_memory(r):
    """Once a tick: says whether the ceiling is passed; who waits is looked at in the next turns."""
    r.tally[MEMORY_CACHES] = cache_bytes(cython.address(r.cache))
    store_i64(cython.address(r.published[MEMORY_CACHES]), r.tally[MEMORY_CACHES], RELAXED)
    passed: cython.bint = memory_used(r.common) > r.common.limits.memory_bytes_max
    if passed:
        shrink_cache(r)
    store_int(cython.address(r.common.overloaded), passed, RELAXED)
    if r.overloaded_left == 0:
        r.overloaded_left = r.overloaded.size()


def _may_go_on(r, publisher):
    """Lets a publisher go on when the ceiling is not passed.

    One that has waited for ``backpressure_s`` goes on as well, for its acknowledgements may be what frees
    memory; but what it publishes is refused as long as the ceiling is passed.
    """
    c: cython.pointer[Connection] = connection_of(r, publisher)
    if c == cython.NULL:
        return True  # it is gone
    holds(c.overloaded, b"memory ceiling: a publisher in the list of those it stopped says so")
    holds(c.pause_count > 0, b"memory ceiling: a publisher that it stopped is paused")
    passed: cython.bint = load_int(cython.address(r.common.overloaded), RELAXED) != 0
    if passed and r.now_ms - c.overloaded_ms <= r.common.limits.backpressure_ms:
        return False
    c.overloaded = False
    c.refused = passed
    resume_feeder(r, publisher)
    return True


def continue_overloaded(r):
    """Looks at some of those that the ceiling has stopped, from the last on: what takes the place of one that
    goes on has been looked at.
    """
    left: cython.size_t = _SLICE
    while left and r.overloaded_left:
        count_steps(1)
        left -= 1
        r.overloaded_left -= 1
        holds(r.overloaded_left < r.overloaded.size(), b"memory ceiling: no more are looked at than wait")
        if _may_go_on(r, r.overloaded[r.overloaded_left]):
            r.overloaded[r.overloaded_left] = r.overloaded.back()
            r.overloaded.pop_back()


def refused_by_memory(r, c):
    """Holds a publisher that sends above the memory ceiling. True: it was held for too long, refuse its
    message.
    """
    if not load_int(cython.address(r.common.overloaded), RELAXED):
        c.refused = False
    elif not c.refused and not c.overloaded:
        c.overloaded = True
        c.overloaded_ms = r.now_ms
        r.overloaded.push_back(handle_of(r, c))
        pause_feeder(r, handle_of(r, c))
    return c.refused
