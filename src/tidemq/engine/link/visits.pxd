from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef bint may_visit(Reactor* r, Connection* c, Span client_id) noexcept nogil
cdef bint count_visit(Reactor* r, Connection* c) noexcept nogil
