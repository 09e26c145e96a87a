from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.state.client cimport Session
from tidemq.engine.state.promise cimport Promise
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef void add_takers(Promise* promise, Span takers) noexcept nogil
cdef void accept_offer(Reactor* r, Promise* promise, const string* takers, uint16_t reactor) noexcept nogil
cdef void record_offers(Reactor* r, Session* s) noexcept nogil
cdef void close_offer(Reactor* r, Promise* promise) noexcept nogil
cdef void settle_offer(Reactor* r, uint64_t clock, uint8_t reason) noexcept nogil

# of this module alone
cdef void _record_takers(Reactor* r, Promise* promise) noexcept nogil
cdef void _capture_offer(Reactor* r, Promise* promise) noexcept nogil
cdef void _record_offer(Reactor* r, Session* publisher, Promise* promise) noexcept nogil
cdef bint _record_will(Reactor* r, Session* s, Promise* promise, uint32_t slot) noexcept nogil
