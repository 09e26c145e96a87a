from libc.stdint cimport int64_t, uint16_t, uint64_t

from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.queue cimport Clearing, StoredQueue
from tidemq.engine.state.reactor cimport Reactor

cdef void begin_clearing(StoredQueue* q) noexcept nogil
cdef void free_clearing(StoredQueue* q) noexcept nogil
cdef uint64_t cleared_place(const StoredQueue* q) noexcept nogil
cdef bint may_take_place(Reactor* r, Session* s, Connection* c, uint64_t place) noexcept nogil
cdef bint note_cleared(Reactor* r, Session* s, Connection* c, uint16_t packet_id) noexcept nogil
cdef int64_t clearing_due_ms(const Session* s) noexcept nogil

# of this module alone
cdef void _ask(Reactor* r, Session* s, Connection* c, Clearing* k) noexcept nogil
