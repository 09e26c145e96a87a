from libc.stdint cimport int64_t, uint32_t, uint64_t

from tidemq.engine.base.listener cimport Listener
from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.reactor cimport Reactor

cdef bint open_connection(Reactor* r, int fd, Listener* listener, uint64_t address) noexcept nogil
cdef void place_connection(Reactor* r, Connection* c) noexcept nogil
cdef void remove_connection(Reactor* r, Connection* c) noexcept nogil
cdef void close_connection(Reactor* r, Connection* c) noexcept nogil
cdef void update_interest(Reactor* r, Connection* c) noexcept nogil
cdef int session_due(Reactor* r, uint64_t number, int64_t due_ms) noexcept nogil

# of this module alone
cdef bint _is_on_its_way(const Session* s) noexcept nogil
cdef void _leave_session(Reactor* r, Connection* c, Session* s) noexcept nogil
cdef void _free_parts(Reactor* r, Connection* c) noexcept nogil
cdef void _say_goodbye(Reactor* r, Connection* c) noexcept nogil
