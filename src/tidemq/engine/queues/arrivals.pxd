from libc.stdint cimport int64_t, uint64_t

from tidemq.engine.state.arrival cimport Arrival, StoredEntry, StoredSession, StoredSubscription
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.queue cimport Outbox
from tidemq.engine.state.reactor cimport Reactor

cdef void fill_session(Reactor* r, Session* s, StoredSession* row) noexcept nogil
cdef void let_go_on(Reactor* r, Session* s) noexcept nogil
cdef void restore_subscription(Reactor* r, Session* s, const StoredSubscription* subscription) noexcept nogil
cdef bint restore_entry(Reactor* r, Session* s, StoredEntry* row) noexcept nogil
cdef void free_entry(StoredEntry* row, int64_t* tally) noexcept nogil
cdef void free_arrival(Arrival* arrival, int64_t* tally) noexcept nogil
cdef void begin_arrival(Reactor* r, Arrival* arrival) noexcept nogil
cdef void continue_arrivals(Reactor* r) noexcept nogil
cdef void free_arrivals(Reactor* r) noexcept nogil

# of this module alone
cdef void _add_holes(Reactor* r, Outbox* box, uint64_t place) noexcept nogil
cdef void _answer(Reactor* r, const Arrival* arrival, bint taken) noexcept nogil
cdef size_t _install(Reactor* r, Arrival* arrival, size_t left) noexcept nogil
cdef void _finish(Reactor* r, Arrival* arrival) noexcept nogil
