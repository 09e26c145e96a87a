from libc.stdint cimport uint32_t, uint64_t

from tidemq.engine.state.reactor cimport Reactor

cdef void watch(Reactor* r, int fd, uint64_t key, uint32_t options) noexcept nogil
