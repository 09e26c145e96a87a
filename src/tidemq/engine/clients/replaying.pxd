from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef bint names_stream(Span filter) noexcept nogil
cdef bint asks_for_stream(Span filters) noexcept nogil
cdef void report_unsubscribed(Reactor* r, Connection* c, Span filter) noexcept nogil
cdef void deliver_replayed(Reactor* r, Mail* mail) noexcept nogil
cdef void report_delivered(Reactor* r, Connection* c, bint gone) noexcept nogil
