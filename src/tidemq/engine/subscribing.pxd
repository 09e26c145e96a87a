from libc.stdint cimport uint8_t, uint32_t
from libcpp.string cimport string

from tidemq.engine.state cimport Connection, Reactor

cdef void handle_subscribe(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void handle_unsubscribe(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void answer_subscribe(Reactor* r, Connection* c, const string* reasons) noexcept nogil
