from tidemq.engine.state cimport Shared, StoredRows

cdef bint load_session(Shared* shared, bytes client_id, bytes value) except? False
cdef bint load_subscription(Shared* shared, bytes key, bytes value) except? False
cdef bint load_received(Shared* shared, bytes key) except? False
cdef bint load_retained(Shared* shared, bytes topic, bytes value) except? False
cdef list load_queue_rows(Shared* shared, rows, set orphans, list corrupt)
cdef bint load_inflight(Shared* shared, bytes key, bytes value, bytes payload) except? False
cdef StoredRows* make_rows(Shared* shared, list rows, list corrupt)
