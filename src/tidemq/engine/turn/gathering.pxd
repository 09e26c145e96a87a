from libc.stdint cimport int64_t

from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.turning cimport Gathering

cdef void begin_gathering() noexcept nogil
cdef void note_turn(Reactor* r, int64_t began_ns, int64_t ended_ns) noexcept nogil
cdef void wait_for_more() noexcept nogil

# Before a turn reads: inline, as it is asked at each.
cdef inline void gather(const Reactor* r) noexcept nogil:
    if r.gathering.on:
        wait_for_more()

# of this module alone
cdef void _judge(Gathering* g, double rate, bint alone, bint fits, int64_t now_ns) noexcept nogil
cdef void _count(
    Gathering* g, int64_t messages, int64_t packets, int64_t turns, int64_t now_ns,
) noexcept nogil
