"""What follows when the wall clock was set.

Each reactor looks at it ten times a second, and before anything else of a turn after a rest. Where it was
set, the offset follows, and the dates of sessions in the store are written again, some of them a turn.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.clock import clock_ns
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import (
    RELAXED,
    add_i64,
    compare_exchange_i64,
    load_i64,
)
from cython.cimports.tidemq.engine.queues.sessions import store_session
from cython.cimports.tidemq.engine.state.buckets import sessions_in
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.reactor import Common
from cython.cimports.tidemq.engine.state.wall_clock import raise_ids, read_wall_offset

_LOOK_NS = cython.declare(int64_t, 100000000)
_STEP_NS = cython.declare(int64_t, 50000000)  # less is how exactly two clocks can be read one after the other
_SLICE_NS = cython.declare(int64_t, 1000000)
_SLICE = cython.declare(cython.int, 2048)  # buckets of the table of sessions, in one turn
_IN_A_ROW = cython.declare(cython.int, 64)  # of these, before the next look at the time


def follow_clock(r):
    """Looks at the clock, at most every tenth of a second; the first reactor that sees a step counts it."""
    if r.now_ns - r.wall_ns < _LOOK_NS:
        return
    r.wall_ns = r.now_ns
    common: cython.pointer[Common] = r.common
    known: int64_t = load_i64(cython.address(common.wall_offset_ns), RELAXED)
    offset: int64_t = read_wall_offset()
    change: int64_t = offset - known
    if change >= _STEP_NS or change <= -_STEP_NS:
        raise_ids(common, offset)
        if compare_exchange_i64(
            cython.address(common.wall_offset_ns), cython.address(known), offset, False, RELAXED, RELAXED
        ):
            add_i64(cython.address(common.clock_steps), 1, RELAXED)
    steps: int64_t = load_i64(cython.address(common.clock_steps), RELAXED)
    holds(steps >= r.clock_steps, b"dating: steps of the clock are counted upwards")
    if steps != r.clock_steps:
        r.clock_steps = steps
        _begin_dating(r)


def _begin_dating(r):
    """The reactor's sessions are gone through, from the first bucket of their table on."""
    r.dating_at = 0
    r.dating_buckets = r.sessions.bucket_count()


def _date_next(r):
    """Sessions of one bucket."""
    numbers: vector[uint64_t]
    index: cython.size_t
    holds(r.dating_at < r.sessions.bucket_count(), b"dating: a bucket is one of the table")
    sessions_in(r.sessions, r.dating_at, numbers)
    r.dating_at += 1
    for index in range(numbers.size()):
        count_steps(1)
        s: cython.pointer[Session] = r.sessions[numbers[index]]
        if s.ends_ms or s.will_ms:
            store_session(r, s)


def continue_dating(r):
    """Once a turn, after a step: writes rows of some sessions again, with dates of the clock as it is now."""
    if r.dating_at >= r.dating_buckets:
        return
    left: cython.int = _SLICE
    until_ns: int64_t = clock_ns() + _SLICE_NS
    while left and r.dating_at < r.dating_buckets:
        if left % _IN_A_ROW == 0 and clock_ns() >= until_ns:
            return
        count_steps(1)
        left -= 1
        if r.sessions.bucket_count() != r.dating_buckets:
            _begin_dating(r)
        _date_next(r)
