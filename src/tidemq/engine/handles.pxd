from libc.stdint cimport uint16_t, uint64_t

from tidemq.engine.state cimport Connection, Reactor

cdef uint64_t handle_of(const Reactor* r, const Connection* c) noexcept nogil
cdef uint16_t reactor_of(uint64_t handle) noexcept nogil
cdef Connection* connection_of(const Reactor* r, uint64_t handle) noexcept nogil
