"""Control packets written: the head of a PUBLISH, acknowledgements, and every other packet from its parts."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint8_t
from libcpp.string cimport string

from tidemq.wire.protocol cimport Span

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
cdef void append_field(Span value, string* out) noexcept nogil   # two-byte length, then bytes
cdef void append_u8_property(uint8_t property_id, uint8_t value, string* out) noexcept nogil
cdef void append_u16_property(uint8_t property_id, uint16_t value, string* out) noexcept nogil
cdef void append_u32_property(uint8_t property_id, uint32_t value, string* out) noexcept nogil
cdef void append_string_property(uint8_t property_id, Span value, string* out) noexcept nogil
cdef void append_varint_property(uint8_t property_id, uint32_t value, string* out) noexcept nogil
cdef void append_pair_property(uint8_t property_id, Span key, Span value, string* out) noexcept nogil

# of this module alone
cdef uint32_t publish_properties_size(const PublishHead* head) noexcept nogil
cdef uint32_t publish_variable_size(const PublishHead* head) noexcept nogil
cdef uint8_t* write_publish_properties(uint8_t* at, const PublishHead* head) noexcept nogil
cdef void append(const uint8_t* data, uint32_t size, string* out) noexcept nogil
