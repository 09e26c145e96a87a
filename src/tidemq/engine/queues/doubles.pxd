from libc.stdint cimport int64_t

from tidemq.engine.base.message cimport MessageId, Passage
from tidemq.engine.state.arrival cimport Arrival
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.queue cimport StoredQueue
from tidemq.engine.state.reactor cimport Reactor

cdef void begin_doubles(Reactor* r, Session* s, const Arrival* arrival) noexcept nogil
cdef void await_doubles(Reactor* r, Session* s, int64_t for_ms) noexcept nogil
cdef bint comes_twice(Reactor* r, Session* s, const Passage* p) noexcept nogil
cdef bint is_here(Reactor* r, Session* s, const MessageId* id) noexcept nogil
cdef void forget_double(Session* s, const MessageId* id) noexcept nogil
cdef void free_doubles(StoredQueue* q) noexcept nogil

# of this module alone
cdef bint _remember(Reactor* r, Session* s, const MessageId* id) noexcept nogil
