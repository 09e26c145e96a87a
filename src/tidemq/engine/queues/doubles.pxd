from libc.stdint cimport int64_t, uint64_t

from tidemq.engine.base.message cimport MessageId, Passage
from tidemq.engine.state.arrival cimport Arrival
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.queue cimport Doubles, StoredQueue
from tidemq.engine.state.reactor cimport Reactor

cdef void begin_doubles(Reactor* r, Session* s, const Arrival* arrival) noexcept nogil
cdef void await_doubles(Reactor* r, Session* s, int64_t for_ms) noexcept nogil
cdef bint comes_twice(Reactor* r, Session* s, const Passage* p) noexcept nogil
cdef bint is_here(Reactor* r, Session* s, const MessageId* id) noexcept nogil
cdef void forget_double(Reactor* r, Session* s, const MessageId* id) noexcept nogil
cdef void time_doubles(Reactor* r, const Session* s) noexcept nogil
cdef int doubles_due(Reactor* r, uint64_t number) noexcept nogil
cdef void free_doubles(Reactor* r, StoredQueue* q) noexcept nogil

# of this module alone
cdef int64_t _size_of(const Doubles* doubles) noexcept nogil
cdef bint _is_over(Reactor* r, Session* s) noexcept nogil
cdef bint _remember(Reactor* r, Session* s, const MessageId* id) noexcept nogil
