"""How much the messages of one connection, or of one inbox, may do in a row: each may go to 100,000 receivers, at once, so
what stands behind it in a read buffer waits for the next turn."""
from libc.stdint cimport uint64_t

from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.base.steps cimport allow_receivers, count_steps

cdef enum:
    WORK_MAX = 131072            # receivers, and what look-ups go through

cdef inline void begin_work(Reactor* r) noexcept nogil:
    r.work_max = r.work + WORK_MAX

# Whether others come first.
cdef inline bint is_enough(const Reactor* r) noexcept nogil:
    return r.work > r.work_max

# A message goes to so many, or a look-up goes through them.
cdef inline void take_work(Reactor* r, uint64_t receivers) noexcept nogil:
    if r.work <= r.work_max:
        allow_receivers(receivers)
    r.work += receivers
    count_steps(receivers)
