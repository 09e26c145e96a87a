from libc.stdint cimport uint8_t, uint64_t
from libcpp.string cimport string

from tidemq.engine.state cimport Reactor, Session

cdef void note_drop(Reactor* r, const Session* s, uint8_t counter, uint64_t messages) noexcept nogil
cdef void note_drop_of(
    Reactor* r, uint64_t number, const string* owner, uint8_t counter, uint64_t messages
) noexcept nogil
cdef string name_of(Reactor* r, const Session* s) noexcept nogil
cdef void check_drops(Reactor* r) noexcept nogil
cdef void report_drops(Reactor* r) noexcept nogil
