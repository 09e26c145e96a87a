from tidemq.engine.state cimport Passage, Reactor, Session
from libc.stdint cimport uint8_t, uint32_t
from tidemq.wire.protocol cimport Span

cdef void retain_passage(Reactor* r, Passage* p) noexcept nogil
cdef bint has_retained(Reactor* r) noexcept nogil
cdef void keep_backlog(Session* s, Span filter, uint8_t qos, uint32_t subscription_id) noexcept nogil
cdef void begin_backlog(Reactor* r, Session* s, Span filter, uint8_t qos, uint32_t subscription_id) noexcept nogil
cdef void continue_backlogs(Reactor* r) noexcept nogil
cdef void end_backlog(Reactor* r, Session* s, Span filter) noexcept nogil
cdef void free_backlog(Session* s) noexcept nogil
cdef void suspend_backlog(Session* s) noexcept nogil
cdef void resume_backlog(Reactor* r, Session* s) noexcept nogil
cdef void sweep_retained(Reactor* r) noexcept nogil
cdef void end_sweep(Reactor* r) noexcept nogil
