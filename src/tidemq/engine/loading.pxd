from tidemq.engine.state cimport Shared, StoredRows

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
