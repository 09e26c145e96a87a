"""A reactor that wakes comes before threads that compute on its core.

Python's threads may have a core in common with a reactor: they answer who looks at the broker, or decide who
may connect. Linux lets a thread that runs finish its slice, of some milliseconds, before one that wakes,
unless that one has a shorter slice (EEVDF, since Linux 6.12). A reactor's turn is much shorter than a slice,
so it asks for the shortest there is. Its share of the core is the same. On an older Linux nothing changes.
"""

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.tidemq.engine.base.system import (
    SCHED_BATCH,
    SCHED_OTHER,
    SYS_sched_getattr,
    SYS_sched_setattr,
    syscall,
)
from cython.cimports.tidemq.engine.turn.scheduling import Attributes

_SLICE_NS = cython.declare(uint64_t, 100000)  # the least that Linux takes


def ask_for_short_slices():
    """For the thread that calls it. Policy and niceness stay; where the system does not want it, all does."""
    attributes: Attributes
    memset(cython.address(attributes), 0, cython.sizeof(Attributes))
    if syscall(SYS_sched_getattr, 0, cython.address(attributes), cython.sizeof(Attributes), 0) != 0:
        return
    policy: cython.int = cython.cast(cython.int, attributes.policy)
    if policy in (SCHED_OTHER, SCHED_BATCH):
        attributes.slice_ns = _SLICE_NS
        syscall(SYS_sched_setattr, 0, cython.address(attributes), 0)
