from libc.stdint cimport uint8_t, uint32_t
from libcpp.string cimport string

from tidemq.engine.state cimport Connection, Letter, Reactor

cdef void handle_connect(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void handle_auth(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void answer_connect(Reactor* r, Connection* c, uint8_t reason, Letter* letter) noexcept nogil
cdef void answer_auth(Reactor* r, Connection* c, uint8_t reason, Letter* letter) noexcept nogil
cdef void admit(Reactor* r, Connection* c, const string* client_id, const string* auth_data) noexcept nogil
