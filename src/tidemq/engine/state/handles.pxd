from libc.stdint cimport uint16_t, uint64_t

from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Reactor

cdef uint16_t reactor_of(uint64_t handle) noexcept nogil
cdef Connection* connection_of(const Reactor* r, uint64_t handle) noexcept nogil

# The connection's handle; never 0, because generations begin with 1. Inline: it is needed for every message.
cdef inline uint64_t handle_of(const Reactor* r, const Connection* c) noexcept nogil:
    return <uint64_t>r.index << 56 | <uint64_t>c.generation << 24 | c.slot
