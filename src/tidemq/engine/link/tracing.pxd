from libc.stdint cimport uint32_t, uint64_t, uint8_t

from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

# whether what this connection sends and gets is reported: looked at for each packet and each flush
cdef inline bint is_traced(const Connection* c) noexcept nogil:
    return c.trace != 0

cdef void look_for_trace(Reactor* r, Connection* c, Span client_id) noexcept nogil
cdef void begin_trace(Reactor* r, Connection* c) noexcept nogil
cdef void trace_in(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void trace_out(Reactor* r, Connection* c) noexcept nogil
cdef void note_flushed(Connection* c) noexcept nogil
cdef void trace_end(Reactor* r, Connection* c) noexcept nogil

# of this module alone
cdef bint _goes_on(Reactor* r, Connection* c) noexcept nogil
cdef bint _may_report(Reactor* r) noexcept nogil
cdef bint _is_meant(Reactor* r, Connection* c, Span client_id) noexcept nogil
cdef void _report(
    Reactor* r, Connection* c, bint out, uint8_t first, const uint8_t* body, uint32_t there, uint32_t size
) noexcept nogil
cdef uint32_t _body_there(Connection* c, uint64_t begin, uint32_t size, uint32_t room) noexcept nogil
