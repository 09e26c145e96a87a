from libc.stdint cimport uint64_t

from tidemq.engine.base.message cimport Passage
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.promise cimport Promise
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport Publish
from tidemq.wire.protocol cimport Span

cdef void take_delay(Reactor* r, Span* topic) noexcept nogil
cdef bint refused_delay(Reactor* r, const Publish* publish) noexcept nogil
cdef void delay(Reactor* r, Passage* p) noexcept nogil
cdef void discard_will(Reactor* r, Session* s) noexcept nogil
cdef void leave_will(Reactor* r, Session* s) noexcept nogil
cdef void publish_will(Reactor* r, Session* s) noexcept nogil
cdef void publish_last_will(Reactor* r, Session* s) noexcept nogil
cdef bint waits_for_store(Reactor* r, const Session* s) noexcept nogil
cdef void settle_will(Reactor* r, Session* s, const Promise* promise, uint64_t token) noexcept nogil
