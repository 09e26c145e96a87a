"""The wall clock, which may be set while we run.

Whatever lasts is measured by the monotonic clock, and has a date of the wall clock only in the store: an
offset turns one into the other, which follows where the clock is set (``dating``).

Ids have an offset of their own, which never goes back, and at the start is such that they go on from the
highest one that was ever given: so they rise over all reactors also where the clock is set back, and are
dates only as far as it is not.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.clock import clock_ns
from cython.cimports.tidemq.engine.base.system import (
    CLOCK_REALTIME,
    RELAXED,
    clock_gettime,
    compare_exchange_i64,
    load_i64,
    timespec,
)


def read_wall_offset():
    """The wall clock less the monotonic one, now."""
    now: timespec
    clock_gettime(CLOCK_REALTIME, cython.address(now))
    return cython.cast(int64_t, now.tv_sec) * 1000000000 + now.tv_nsec - clock_ns()


def wall_offset(common):
    """What a time of the monotonic clock is to be added to for a date; any thread."""
    return load_i64(cython.cast(cython.pointer[int64_t], cython.address(common.wall_offset_ns)), RELAXED)


def id_offset(common):
    """The same for ids; any thread."""
    return load_i64(cython.cast(cython.pointer[int64_t], cython.address(common.id_offset_ns)), RELAXED)


def raise_ids(common, offset_ns):
    """From now on ids are at least of that offset."""
    known: int64_t = load_i64(cython.address(common.id_offset_ns), RELAXED)
    while known < offset_ns:
        if compare_exchange_i64(
            cython.address(common.id_offset_ns), cython.address(known), offset_ns, False, RELAXED, RELAXED
        ):
            known = offset_ns
    holds(id_offset(common) >= offset_ns, b"wall clock: ids are as high as they were raised")
