from libc.stdint cimport uint32_t, uint64_t, uint8_t

from tidemq.engine.base.message cimport Message
from tidemq.engine.state.arrival cimport StoredEntry, StoredSession, StoredSubscription
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.reactor cimport Common, Reactor
from tidemq.engine.state.section cimport StoredRows

cdef Reactor* reactor_for(Common* common, bytes client_id) noexcept
cdef bint is_queue_value(bytes value) noexcept
cdef bint parse_session(Common* common, bytes client_id, bytes value, StoredSession* row)
cdef object parse_subscription(Common* common, bytes key, bytes value, StoredSubscription* subscription)
cdef bint parse_entry(Common* common, bytes key, bytes value, bytes payload, StoredEntry* entry)
cdef bint load_session(Common* common, bytes client_id, bytes value, bint unasked)
cdef bint load_subscription(Common* common, bytes key, bytes value)
cdef bint load_shared(Common* common, bytes key, bytes value)
cdef uint64_t mark_of(bytes key)
cdef bint load_received(Common* common, bytes key)
cdef bint load_retained(Common* common, bytes topic, bytes value)
cdef void clear_retained(Common* common, bytes topic, bytes value)
cdef list load_queue_rows(Common* common, rows, set orphans, list held, list corrupt)
cdef bint load_inflight(Common* common, bytes key, bytes value, bytes payload)
cdef StoredRows* make_rows(Common* common, rows, list corrupt)
cdef StoredRows* make_sizes(sizes)
cdef StoredRows* make_ids(list ids, list sizes)
cdef void doubt_sessions(Common* common) noexcept

# of this module alone
cdef Session* _session_of(Common* common, uint64_t queue) noexcept
cdef const uint8_t* _bytes_at(bytes value, size_t at) noexcept
cdef uint32_t* _read_ids(bytes value) noexcept
cdef Message* _read_payload(Common* common, bytes key, bytes value, bytes payload) noexcept
cdef Message* _retained_of(Common* common, bytes topic, bytes value) noexcept
