from libc.stdint cimport uint16_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef Span span_of(const string* text) noexcept nogil
cdef void write_ack(Reactor* r, Connection* c, uint8_t packet_type, uint16_t packet_id, uint8_t reason) noexcept nogil
cdef void encode_connack(const Connection* c, bint session_present, uint8_t reason, const string* properties, string* packet) noexcept nogil
cdef void write_disconnect(Reactor* r, Connection* c, uint8_t reason) noexcept nogil
cdef void write_auth(Reactor* r, Connection* c, uint8_t reason, const string* data) noexcept nogil
cdef void append_packet(Reactor* r, Connection* c, const string* packet) noexcept nogil
cdef void encode_reasons(uint8_t version, uint8_t packet_type, uint16_t packet_id, string* reasons, const string* why, string* packet) noexcept nogil
cdef void refuse_late(Reactor* r, Connection* c, uint8_t reason, uint8_t fault) noexcept nogil

# of this module alone
cdef Span _no_bytes() noexcept nogil
cdef uint8_t _old_return_code(uint8_t reason) noexcept nogil
