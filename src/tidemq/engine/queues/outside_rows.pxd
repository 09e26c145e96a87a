from tidemq.engine.state.client cimport Session
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.section cimport StoredRows

cdef void note_added(Reactor* r, Session* s, StoredRows* rows) noexcept nogil
cdef void note_taken(Reactor* r, Session* s, StoredRows* rows) noexcept nogil
