from libc.stdint cimport uint64_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.state.client cimport Session
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.strain cimport Drop

cdef void note_drop(Reactor* r, const Session* s, uint8_t counter, uint64_t messages) noexcept nogil
cdef void note_drop_of(
    Reactor* r, uint64_t number, const string* owner, uint8_t counter, uint64_t messages
) noexcept nogil
cdef string name_of(Reactor* r, const Session* s) noexcept nogil
cdef void check_drops(Reactor* r) noexcept nogil
cdef void report_drops(Reactor* r) noexcept nogil

# of this module alone
cdef Drop* _add(Reactor* r, uint64_t number, uint8_t counter, uint64_t messages) noexcept nogil
