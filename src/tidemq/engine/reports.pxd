from libc.stdint cimport uint8_t, uint64_t

from tidemq.engine.state cimport Connection, Event, Message, Reactor, Shared

cdef Event* new_event(uint8_t kind, uint64_t connection) noexcept nogil
cdef void post_event(Shared* shared, Event* event) noexcept nogil
cdef void post_report(Reactor* r, Event* event) noexcept nogil
cdef Event* connection_event(Reactor* r, Connection* c, uint8_t kind) noexcept nogil
cdef void report_received(Reactor* r, uint64_t receiver, Message* message) noexcept nogil
