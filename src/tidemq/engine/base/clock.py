"""The monotonic clock."""

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.tidemq.engine.base.system import CLOCK_MONOTONIC, clock_gettime, timespec


def clock_ms():
    """The monotonic clock in milliseconds."""
    return clock_ns() // 1000000


def clock_ns():
    """The monotonic clock in nanoseconds."""
    now: timespec
    clock_gettime(CLOCK_MONOTONIC, cython.address(now))
    return cython.cast(int64_t, now.tv_sec) * 1000000000 + now.tv_nsec
