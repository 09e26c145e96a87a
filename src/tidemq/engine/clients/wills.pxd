from libc.stdint cimport uint64_t

from tidemq.engine.state.client cimport Session
from tidemq.engine.state.promise cimport Promise
from tidemq.engine.state.reactor cimport Reactor

cdef void discard_will(Reactor* r, Session* s) noexcept nogil
cdef void leave_will(Reactor* r, Session* s) noexcept nogil
cdef void publish_will(Reactor* r, Session* s) noexcept nogil
cdef void publish_last_will(Reactor* r, Session* s) noexcept nogil
cdef bint waits_for_store(Reactor* r, const Session* s) noexcept nogil
cdef void settle_will(Reactor* r, Session* s, const Promise* promise, uint64_t token) noexcept nogil
