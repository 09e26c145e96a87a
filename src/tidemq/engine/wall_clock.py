"""The wall clock, which may be set while we run.

Whatever lasts is measured by the monotonic clock, and has a date of the wall clock only in the store: an
offset turns one into the other. Each reactor looks at the clock ten times a second, and before anything else
of a turn after a rest; where it was set, the offset follows, and the dates of sessions in the store are
written again.

Ids have an offset of their own, which never goes back, and at the start is such that they go on from the
highest one that was ever given: so they rise over all reactors also where the clock is set back, and are
dates only as far as it is not.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.tidemq.engine.sessions import store_session
from cython.cimports.tidemq.engine.state import Reactor, Session, Shared
from cython.cimports.tidemq.engine.system import (
    CLOCK_REALTIME,
    RELAXED,
    add_i64,
    clock_gettime,
    compare_exchange_i64,
    load_i64,
    timespec,
)
from cython.cimports.tidemq.engine.timers import clock_ns
from cython.operator import dereference, preincrement

_LOOK_NS = cython.declare(int64_t, 100000000)
_STEP_NS = cython.declare(int64_t, 50000000)  # less is how exactly two clocks can be read one after the other
_SLICE_NS = cython.declare(int64_t, 1000000)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_wall_offset() -> int64_t:
    """The wall clock less the monotonic one, now."""
    now: timespec
    clock_gettime(CLOCK_REALTIME, cython.address(now))
    return cython.cast(int64_t, now.tv_sec) * 1000000000 + now.tv_nsec - clock_ns()


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def wall_offset(shared: cython.pointer[cython.const[Shared]]) -> int64_t:
    """What a time of the monotonic clock is to be added to for a date; any thread."""
    return load_i64(cython.cast(cython.pointer[int64_t], cython.address(shared.wall_offset_ns)), RELAXED)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def id_offset(shared: cython.pointer[cython.const[Shared]]) -> int64_t:
    """The same for ids; any thread."""
    return load_i64(cython.cast(cython.pointer[int64_t], cython.address(shared.id_offset_ns)), RELAXED)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def raise_ids(shared: cython.pointer[Shared], offset_ns: int64_t) -> cython.void:
    """From now on ids are at least of that offset."""
    known: int64_t = load_i64(cython.address(shared.id_offset_ns), RELAXED)
    while known < offset_ns:
        if compare_exchange_i64(
            cython.address(shared.id_offset_ns), cython.address(known), offset_ns, False, RELAXED, RELAXED
        ):
            return


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def follow_clock(r: cython.pointer[Reactor]) -> cython.void:
    """Looks at the clock, at most every tenth of a second; the first reactor that sees a step counts it."""
    if r.now_ns - r.wall_ns < _LOOK_NS:
        return
    r.wall_ns = r.now_ns
    shared: cython.pointer[Shared] = r.shared
    known: int64_t = load_i64(cython.address(shared.wall_offset_ns), RELAXED)
    offset: int64_t = read_wall_offset()
    change: int64_t = offset - known
    if change >= _STEP_NS or change <= -_STEP_NS:
        raise_ids(shared, offset)
        if compare_exchange_i64(
            cython.address(shared.wall_offset_ns), cython.address(known), offset, False, RELAXED, RELAXED
        ):
            add_i64(cython.address(shared.clock_steps), 1, RELAXED)
    steps: int64_t = load_i64(cython.address(shared.clock_steps), RELAXED)
    if steps != r.clock_steps:
        r.clock_steps = steps
        _find_dated(r)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_dated(r: cython.pointer[Reactor]) -> cython.void:
    """All numbers at once, 0.01 µs each: the table may change before the last of them has had its turn."""
    r.dated.clear()
    item = r.sessions.begin()
    while item != r.sessions.end():
        if dereference(item).second.ends_ms or dereference(item).second.will_ms:
            r.dated.push_back(dereference(item).first)
        preincrement(item)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def continue_dating(r: cython.pointer[Reactor]) -> cython.void:
    """Once a turn, after a step: writes rows of some sessions again, with dates of the clock as it is now."""
    if r.dated.empty():
        return
    until_ns: int64_t = clock_ns() + _SLICE_NS
    while not r.dated.empty() and clock_ns() < until_ns:
        if r.sessions.count(r.dated.back()):
            s: cython.pointer[Session] = r.sessions[r.dated.back()]
            if s.ends_ms or s.will_ms:
                store_session(r, s)
        r.dated.pop_back()
