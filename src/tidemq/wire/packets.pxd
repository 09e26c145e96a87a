"""Control packets as C structs: parsed in place (every Span points into the bytes that were parsed), checked whole.

`first` is the packet's first byte (type and flags), `body` the bytes after the fixed header. Every parse function
returns FAULT_NONE, or the first fault, and then leaves its result undefined."""
from libc.stdint cimport uint16_t, uint32_t, uint8_t

from tidemq.wire.encoding cimport (  # so that users of packets find both halves here
    PublishHead, append_field, append_pair_property, append_string_property, append_u8_property, append_u16_property,
    append_u32_property, append_varint_property, encode_ack, encode_packet, encode_publish_head, publish_head_size)
from tidemq.wire.properties cimport Properties
from tidemq.wire.protocol cimport Fault, Span
from tidemq.wire.cursor cimport Cursor

cdef struct FixedHeader:
    uint8_t first
    uint32_t header_size   # 2 to 5 bytes
    uint32_t body_size

cdef struct Connect:
    uint8_t version        # 3, 4 or 5
    bint clean_start
    bint has_will
    uint8_t will_qos
    bint will_retain
    bint has_username
    bint has_password
    uint16_t keep_alive_s
    Span client_id
    Span will_topic
    Span will_payload
    Span username
    Span password
    Properties properties
    Properties will_properties

cdef struct Connack:
    bint session_present
    uint8_t reason
    Properties properties

cdef struct Publish:
    bint dup
    uint8_t qos
    bint retain
    uint16_t packet_id     # 0 at QoS 0
    Span topic
    Span payload
    Properties properties

cdef struct Ack:           # PUBACK, PUBREC, PUBREL, PUBCOMP
    uint16_t packet_id
    uint8_t reason
    Properties properties

cdef struct Subscribe:     # and UNSUBSCRIBE: its filters have no options
    uint16_t packet_id
    uint32_t count
    Span filters           # the payload, checked: read it with next_filter
    Properties properties

cdef struct Suback:        # and UNSUBACK
    uint16_t packet_id
    Span reasons           # one byte each; empty in an UNSUBACK below 5.0
    Properties properties

cdef struct Disconnect:    # and AUTH
    uint8_t reason
    Properties properties

# FAULT_NEED_MORE while the header itself is not whole. The caller compares header_size + body_size with what it has.
cdef Fault parse_fixed_header(const uint8_t* data, size_t size, FixedHeader* out) noexcept nogil
# `version` is written whatever the fault, so that it can be answered: 0 where the level was not read or not supported.
cdef Fault parse_connect(uint8_t first, const uint8_t* body, uint32_t size, Connect* out) noexcept nogil
cdef Fault parse_connack(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, Connack* out) noexcept nogil
cdef Fault parse_publish(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, Publish* out) noexcept nogil
cdef Fault parse_ack(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, Ack* out) noexcept nogil
cdef Fault parse_subscribe(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, uint32_t levels_max, Subscribe* out) noexcept nogil
cdef Fault parse_unsubscribe(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, uint32_t levels_max, Subscribe* out) noexcept nogil
cdef Fault parse_suback(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, Suback* out) noexcept nogil
cdef Fault parse_disconnect(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, Disconnect* out) noexcept nogil
cdef Fault parse_auth(uint8_t first, const uint8_t* body, uint32_t size, Disconnect* out) noexcept nogil
cdef Fault parse_ping(uint8_t first, uint32_t size, uint8_t version) noexcept nogil

# Takes the next entry off `rest`; options is 0 where `with_options` is false. False when none is left.
cdef bint next_filter(Span* rest, bint with_options, Span* filter, uint8_t* options) noexcept nogil

# of this module alone
cdef Fault check_flags(uint8_t first, uint8_t version) noexcept nogil
cdef Fault finish(Cursor* c) noexcept nogil
cdef uint16_t read_packet_id(Cursor* c) noexcept nogil
cdef uint8_t read_reason(Cursor* c, uint8_t packet_type, uint8_t version) noexcept nogil
cdef Fault check_protocol(Span name, uint8_t level) noexcept nogil
cdef Fault read_connect_flags(uint8_t flags, Connect* out) noexcept nogil
cdef void read_client_id(Cursor* c, Connect* out) noexcept nogil
cdef void read_will(Cursor* c, Connect* out) noexcept nogil
cdef void read_credentials(Cursor* c, Connect* out) noexcept nogil
cdef void read_optional_properties(
    Cursor* c, uint32_t packet, uint8_t version, Properties* out,
) noexcept nogil
cdef Fault parse_publish_properties(
    const uint8_t* body, uint32_t at, uint32_t size, Publish* out,
) noexcept nogil
cdef Fault read_subscribe(
    uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, uint32_t levels_max, bint with_options, Subscribe* out,
) noexcept nogil
cdef void read_filter(Cursor* c, uint8_t version, uint32_t levels_max, bint with_options) noexcept nogil
cdef Fault check_options(Span filter, uint8_t options, uint8_t version) noexcept nogil
