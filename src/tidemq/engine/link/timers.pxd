from libc.stdint cimport int64_t, uint64_t, uint8_t

from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.mail cimport Timer
from tidemq.engine.state.reactor cimport Reactor

cdef void add_timer(Reactor* r, int64_t due_ms, uint64_t key, uint8_t kind) noexcept nogil
cdef Timer take_timer(Reactor* r) noexcept nogil
cdef void time_connection(Reactor* r, Connection* c, int64_t due_ms) noexcept nogil
cdef void begin_expiry(Reactor* r, Session* s) noexcept nogil
cdef void time_session(Reactor* r, Session* s) noexcept nogil

# of this module alone
cdef void _swap(Reactor* r, size_t a, size_t b) noexcept nogil
