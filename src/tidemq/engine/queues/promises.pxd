from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.base.message cimport Passage
from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.promise cimport Promise
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef void promise_published(
    Reactor* r, Connection* c, const Passage* p, uint8_t packet_type, uint16_t packet_id, uint8_t reason, bint again,
) noexcept nogil
cdef void promise_will(Reactor* r, Session* s, const Passage* p) noexcept nogil
cdef void promise_node(Reactor* r, const Passage* p, uint8_t node, uint64_t asked, string* takers) noexcept nogil
cdef void promise_ack(Reactor* r, Connection* c, uint8_t packet_type, uint16_t packet_id, uint8_t reason) noexcept nogil
cdef void promise_packet(Reactor* r, Connection* c, const string* packet) noexcept nogil
cdef void promise_connack(Reactor* r, Connection* c, const string* packet) noexcept nogil
cdef void promise_backlog(
    Reactor* r, Connection* c, Span filter, uint8_t qos, uint32_t subscription_id
) noexcept nogil
cdef void promise_sending(Reactor* r, Connection* c) noexcept nogil
cdef void mail_kept(Reactor* r, uint64_t token, uint8_t reason, string* takers) noexcept nogil
cdef void promise_kept(Reactor* r, const Passage* p, uint64_t token) noexcept nogil
cdef void free_promises(Reactor* r) noexcept nogil

# of this module alone
cdef void _check_order(Reactor* r) noexcept nogil
cdef Promise _new_promise(Reactor* r, Connection* c, uint8_t kind) noexcept nogil
cdef void _enter(Reactor* r, Session* s, Promise* promise, const Passage* p) noexcept nogil
