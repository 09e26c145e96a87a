from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

# Whether it came in where only bridges of this broker do. Limits on what clients do of their own accord are not for
# them: what they bring has been accepted by the other side's broker, and what they wait for by this one.
cdef inline bint is_bridge(const Connection* c) noexcept nogil:
    return c.listener.name.compare(b"$bridge") == 0

cdef bint may_visit(Reactor* r, Connection* c, Span client_id) noexcept nogil
cdef bint count_visit(Reactor* r, Connection* c) noexcept nogil
