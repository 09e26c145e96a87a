from libc.stdint cimport uint16_t, uint32_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.queues.sessions cimport Found
from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.mail cimport Letter
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport Connect
from tidemq.wire.protocol cimport Fault, Span

cdef void handle_connect(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void handle_auth(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void answer_connect(Reactor* r, Connection* c, uint8_t reason, Letter* letter) noexcept nogil
cdef void answer_auth(Reactor* r, Connection* c, uint8_t reason, Letter* letter) noexcept nogil
cdef void answer_session(Reactor* r, Connection* c, uint8_t reason) noexcept nogil
cdef void admit(
    Reactor* r, Connection* c, const string* client_id, const string* auth_data, bint asks,
) noexcept nogil

# of this module alone
cdef void _refuse(Reactor* r, Connection* c, uint8_t reason, Fault fault) noexcept nogil
cdef void _refuse_with(
    Reactor* r, Connection* c, uint8_t reason, Fault fault, const string* why,
) noexcept nogil
cdef bint _may_come_in(Reactor* r, Connection* c, Span client_id) noexcept nogil
cdef Fault _check_will(Reactor* r, Connection* c, const Connect* connect) noexcept nogil
cdef bint _name_will(
    Reactor* r, const Connect* connect, const uint8_t* body, uint32_t size, string* named,
) noexcept nogil
cdef void _let_in(Reactor* r, Connection* c, const string* client_id, const string* auth_data) noexcept nogil
cdef void _send_elsewhere(
    Reactor* r, Connection* c, uint16_t target, const string* client_id, const string* auth_data,
) noexcept nogil
cdef bint _may_be(const Connection* c, const string* client_id) noexcept nogil
cdef bint _needs_store(Reactor* r, const string* client_id, const Connect* connect) noexcept nogil
cdef bint _clear_the_way(Reactor* r, const string* client_id, bint clean_start) noexcept nogil
cdef void _answer_connack(
    Reactor* r, Connection* c, bint present, const string* properties, bint removal,
) noexcept nogil
cdef void _attach(
    Reactor* r, Connection* c, const Found* found, Connect* connect, const string* auth_data,
) noexcept nogil
