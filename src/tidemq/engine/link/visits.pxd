from tidemq.engine.state.state cimport Connection, Reactor
from tidemq.wire.protocol cimport Span

cdef bint may_visit(Reactor* r, Connection* c, Span client_id) noexcept nogil
cdef bint count_visit(Reactor* r, Connection* c) noexcept nogil
