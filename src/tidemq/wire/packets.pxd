"""Control packets as C structs: parsed in place (every Span points into the bytes that were parsed), checked whole.

`first` is the packet's first byte (type and flags), `body` the bytes after the fixed header. Every parse function
returns FAULT_NONE, or the first fault, and then leaves its result undefined."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libcpp.string cimport string

from tidemq.wire.properties cimport Properties
from tidemq.wire.protocol cimport Fault, Span

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
cdef Fault parse_ping(uint8_t first, uint32_t size) noexcept nogil

# Takes the next entry off `rest`; options is 0 where `with_options` is false. False when none is left.
cdef bint next_filter(Span* rest, bint with_options, Span* filter, uint8_t* options) noexcept nogil

# The head of an outgoing PUBLISH: everything before the payload.
cdef struct PublishHead:
    uint8_t version
    bint dup
    uint8_t qos
    bint retain
    uint16_t packet_id
    uint16_t topic_alias               # 0: none; with an alias the topic may be empty
    int64_t message_expiry_s           # -1: none
    Span topic
    Span forwarded                     # properties as copy_forwarded made them
    const uint32_t* subscription_ids
    uint32_t subscription_id_count
    uint32_t payload_size

cdef uint32_t publish_head_size(const PublishHead* head, uint32_t* packet_id_at) noexcept nogil  # exact bytes of the head; offset of the packet identifier in it
cdef uint32_t encode_publish_head(const PublishHead* head, uint8_t* out) noexcept nogil  # returns the same size

# PUBACK, PUBREC, PUBREL, PUBCOMP in their shortest form, 4 or 5 bytes (5.0 with a reason other than success). Returns the size.
cdef uint32_t encode_ack(uint8_t packet_type, uint16_t packet_id, uint8_t reason, uint8_t version, uint8_t* out) noexcept nogil

# Rare packets are appended to a string. `properties` are encoded property bytes without their length (see append_*).
cdef void encode_packet(uint8_t first, Span head, Span properties, bint with_properties, Span tail, string* out) noexcept nogil  # fixed header, head, [properties], tail
cdef void append_u8_property(uint8_t property_id, uint8_t value, string* out) noexcept nogil
cdef void append_u16_property(uint8_t property_id, uint16_t value, string* out) noexcept nogil
cdef void append_u32_property(uint8_t property_id, uint32_t value, string* out) noexcept nogil
cdef void append_string_property(uint8_t property_id, Span value, string* out) noexcept nogil
cdef void append_varint_property(uint8_t property_id, uint32_t value, string* out) noexcept nogil
cdef void append_pair_property(uint8_t property_id, Span key, Span value, string* out) noexcept nogil
