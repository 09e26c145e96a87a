from libc.stdint cimport uint32_t, uint64_t, uint8_t

from tidemq.engine.state.state cimport Message, Reactor, Session, Shared, StoredRows

cdef bint load_session(Shared* shared, bytes client_id, bytes value)
cdef bint load_subscription(Shared* shared, bytes key, bytes value)
cdef bint load_shared(Shared* shared, bytes key, bytes value)
cdef bint load_received(Shared* shared, bytes key)
cdef bint load_retained(Shared* shared, bytes topic, bytes value)
cdef list load_queue_rows(Shared* shared, rows, set orphans, list held, list corrupt)
cdef bint load_inflight(Shared* shared, bytes key, bytes value, bytes payload)
cdef StoredRows* make_rows(Shared* shared, rows, list corrupt)
cdef StoredRows* make_sizes(sizes)
cdef void doubt_sessions(Shared* shared) noexcept

# of this module alone
cdef Reactor* _reactor_for(Shared* shared, bytes client_id) noexcept
cdef Session* _session_of(Shared* shared, uint64_t queue) noexcept
cdef const uint8_t* _bytes_at(bytes value, size_t at) noexcept
cdef bint _is_queue_value(bytes value) noexcept
cdef uint32_t* _read_ids(bytes value) noexcept
cdef Message* _read_payload(Shared* shared, bytes key, bytes value, bytes payload) noexcept
