from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t

from tidemq.engine.base.message cimport Message, MessageId, Passage
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.queue cimport Entry, StoredQueue
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.section cimport StoredRow, StoredRows

cdef enum:
    MARK_MS = 20                 # after which a QoS 1 message without acknowledgement is in flight in the store too

cdef StoredRows* new_rows() noexcept nogil
cdef void free_rows(Reactor* r, StoredRows* rows) noexcept nogil
cdef bint has_room(Reactor* r, Session* s, Passage* p) noexcept nogil
cdef bint goes_to_store(Reactor* r, Session* s, const MessageId* id) noexcept nogil
cdef void spill(
    Reactor* r, Session* s, Message* message, uint8_t qos, bint retain, const uint32_t* ids, uint32_t ids_count,
) noexcept nogil
cdef void note_spilled(Session* s, Message* message) noexcept nogil
cdef int64_t age_ms(const Reactor* r, uint64_t clock) noexcept nogil
cdef void lower_edge(Session* s, const MessageId* id) noexcept nogil
cdef void note_changed(StoredQueue* q, const MessageId* id) noexcept nogil
cdef void forget_stored(Reactor* r, Session* s, StoredRow* row) noexcept nogil
cdef void mark_sent(Reactor* r) noexcept nogil
cdef void evict_waiting(Reactor* r, Session* s) noexcept nogil
cdef Entry* append_committed(Reactor* r, Session* s, Message* message, uint8_t qos, bint retain) noexcept nogil
cdef void request_rows(Reactor* r, Session* s) noexcept nogil
cdef void accept_rows(Reactor* r, Session* s, StoredRows* rows) noexcept nogil
cdef void expire_rows(Reactor* r, Session* s, StoredRows* rows) noexcept nogil
cdef void forget_rows(Reactor* r, Session* s, StoredRows* rows) noexcept nogil
cdef uint64_t purge_queue(Reactor* r, Session* s, uint64_t messages_max) noexcept nogil
cdef void make_stored(Reactor* r, Session* s) noexcept nogil

# One more row is only in the store, with an id of this clock.
cdef inline void note_stored(StoredQueue* q, uint64_t clock) noexcept nogil:
    if q.waiting == 0 or clock < q.oldest:
        q.oldest = clock
    q.waiting += 1

# of this module alone
cdef MessageId _before(const MessageId* id) noexcept nogil
cdef bint _drop_unsent(Reactor* r, Session* s) noexcept nogil
cdef uint64_t _drop_stored(Reactor* r, Session* s, uint64_t count) noexcept nogil
cdef bint _drop_oldest(Reactor* r, Session* s) noexcept nogil
cdef void _trim_oldest(Reactor* r, Session* s, uint64_t count) noexcept nogil
cdef bint _make_room(Reactor* r, Session* s, Passage* p) noexcept nogil
cdef void _mark_entry(Reactor* r, Session* s, uint64_t sequence) noexcept nogil
cdef void _mark_session(Reactor* r, Session* s) noexcept nogil
