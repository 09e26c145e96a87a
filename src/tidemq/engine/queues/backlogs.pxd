from libc.stdint cimport uint32_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.base.message cimport Message, Passage
from tidemq.engine.index.retained_index cimport RetainedWalk
from tidemq.engine.state.client cimport Backlog, Backlogs, Connection, Session
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef void keep_backlog(Session* s, Span filter, uint8_t qos, uint32_t subscription_id) noexcept nogil
cdef void begin_backlog(Reactor* r, Session* s, Span filter, uint8_t qos, uint32_t subscription_id) noexcept nogil
cdef void continue_backlogs(Reactor* r) noexcept nogil
cdef void end_backlog(Reactor* r, Session* s, Span filter) noexcept nogil
cdef void free_backlog(Session* s) noexcept nogil
cdef void suspend_backlog(Session* s) noexcept nogil
cdef void resume_backlog(Reactor* r, Session* s) noexcept nogil

# of this module alone
cdef void _schedule(Reactor* r, Connection* c) noexcept nogil
cdef bint _send_slice(Reactor* r, Session* s, RetainedWalk* walk, Backlog* backlog) noexcept nogil
cdef bint _send_next(Reactor* r, Session* s) noexcept nogil
cdef void _end_walk(Backlogs* backlogs) noexcept nogil
cdef bint _continue_backlog(Reactor* r, Connection* c, int* left) noexcept nogil
