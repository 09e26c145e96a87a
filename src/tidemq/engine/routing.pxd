from libc.stdint cimport uint64_t

from tidemq.engine.state cimport Connection, Message, Passage, Reactor, Session

cdef void route(Reactor* r, Passage* p) noexcept nogil
cdef void route_message(Reactor* r, Message* message) noexcept nogil
cdef void deliver_mailed(Reactor* r, Message* message, uint64_t token, bint offered) noexcept nogil
cdef void deliver_to_group(
    Reactor* r, Message* message, uint64_t group, uint64_t token, bint offered
) noexcept nogil
