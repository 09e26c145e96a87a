from libc.stdint cimport uint16_t, uint64_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.state.client cimport Session
from tidemq.engine.state.reactor cimport Reactor

cdef void release_session(Reactor* r, const string* client_id, uint8_t how) noexcept nogil
cdef void continue_releases(Reactor* r) noexcept nogil

# of this module alone
cdef void _tell(Reactor* r, const string* client_id, bint here, uint64_t place) noexcept nogil
cdef bint _is_open(const Reactor* r, const Session* s) noexcept nogil
cdef void _pass_on(Reactor* r, const string* client_id, uint8_t how, uint16_t reactor) noexcept nogil
cdef void _take_back(Reactor* r, const string* client_id) noexcept nogil
cdef bint _release(Reactor* r, const string* client_id, uint8_t how) noexcept nogil
