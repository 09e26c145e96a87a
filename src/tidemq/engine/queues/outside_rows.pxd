from tidemq.engine.state.client cimport Session
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.section cimport StoredRows
from tidemq.wire.protocol cimport Span
from libc.stdint cimport uint8_t, uint32_t

cdef void note_added(Reactor* r, Session* s, StoredRows* rows) noexcept nogil
cdef void note_subscription(Reactor* r, Session* s, Span filter, bint there, uint8_t options, uint32_t subscription_id) noexcept nogil
cdef void note_taken(Reactor* r, Session* s, StoredRows* rows) noexcept nogil
