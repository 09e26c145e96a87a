from libc.stdint cimport uint64_t

from tidemq.engine.state.reactor cimport Reactor

cdef enum:
    LINGERING_MAX = 1024         # of a reactor
    LINGER_MS = 1000

# Whether the key of an epoll event is that of a socket that lingers.
cdef inline bint is_lingering(uint64_t key) noexcept nogil:
    return key >> 62 == 1

cdef void linger(Reactor* r, int fd) noexcept nogil
cdef void drain_lingering(Reactor* r, uint64_t key) noexcept nogil
cdef void end_lingering(Reactor* r, bint all) noexcept nogil

# of this module alone
cdef bint _drain(int fd) noexcept nogil
cdef void _end(Reactor* r, size_t index) noexcept nogil
