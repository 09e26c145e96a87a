from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libcpp.string cimport string

from tidemq.engine.state cimport Promise, Reactor, Session

cdef void accept_offer(Reactor* r, Promise* promise, const string* takers, uint16_t reactor) noexcept nogil
cdef void record_offers(Reactor* r, Session* s) noexcept nogil
cdef void close_offer(Reactor* r, Promise* promise) noexcept nogil
cdef void settle_offer(Reactor* r, uint64_t clock, uint8_t reason) noexcept nogil
