from libc.stdint cimport int64_t

from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Common, Reactor
from tidemq.engine.base.system cimport epoll_event

cdef Reactor* new_reactor(Common* common, unsigned short index) noexcept nogil
cdef void free_reactor(Reactor* r) noexcept nogil
cdef void run_reactor(Reactor* r) noexcept nogil
cdef void publish_tally(Reactor* r) noexcept nogil

# of this module alone
cdef void _handle_event(Reactor* r, epoll_event* event) noexcept nogil
cdef void _resend_overdue(Reactor* r, Connection* c) noexcept nogil
cdef void _check_connect(Reactor* r, Connection* c) noexcept nogil
cdef int64_t _check_flow(Reactor* r, Connection* c) noexcept nogil
cdef void _connection_due(Reactor* r, Connection* c, int64_t due_ms) noexcept nogil
cdef void _run_timers(Reactor* r) noexcept nogil
cdef void _run_resumed(Reactor* r) noexcept nogil
cdef bint _flush(Reactor* r, Connection* c) noexcept nogil
cdef void _settle(Reactor* r, Connection* c) noexcept nogil
cdef void _end_turn(Reactor* r) noexcept nogil
cdef void _observe_turn(Reactor* r, int64_t ns) noexcept nogil
cdef int _wait_ms(Reactor* r) noexcept nogil
cdef void _read_mail(Reactor* r) noexcept nogil
cdef bint _all_written(Reactor* r) noexcept nogil
