from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t

from tidemq.wire.cursor cimport Cursor
from tidemq.wire.protocol cimport Fault, PacketType, Span

cdef enum:
    WILL = 16   # stands for a packet type where the properties of a will are meant

# A field holds a value only where bit (1 << property id) of `present` is set: only `present`, `raw`,
# `user_count` and `subscription_id_count` are always written.
cdef struct Properties:
    uint64_t present
    Span raw                        # the block without its length; user properties are read from it in order
    uint32_t user_count
    uint32_t subscription_id_count  # a client may receive several: read them from `raw`
    uint32_t subscription_id        # the first
    uint32_t message_expiry_s
    uint32_t session_expiry_s
    uint32_t will_delay_s
    uint32_t maximum_packet_size
    uint16_t server_keep_alive_s
    uint16_t receive_maximum
    uint16_t topic_alias_maximum
    uint16_t topic_alias
    uint8_t payload_format
    uint8_t request_problem_info
    uint8_t request_response_info
    uint8_t maximum_qos
    uint8_t retain_available
    uint8_t wildcard_available
    uint8_t subscription_ids_available
    uint8_t shared_available
    Span content_type
    Span response_topic
    Span correlation_data
    Span assigned_client_id
    Span auth_method
    Span auth_data
    Span response_info
    Span server_reference
    Span reason_string

cdef bint has_property(const Properties* p, uint32_t property_id) noexcept nogil
cdef void clear_properties(Properties* p) noexcept nogil
# Reads a length and that many bytes; faults go to the cursor. `packet` is a PacketType, or WILL.
cdef void read_properties(Cursor* c, uint32_t packet, Properties* out) noexcept nogil
# Steps over the value of a property in a block that was checked.
cdef void skip_value(Cursor* c, uint32_t property_id) noexcept nogil
# Copies the block of a PUBLISH or will as a server must forward it: all but message expiry, topic alias,
# subscription identifier and will delay, in the order it came. `out` must have room for raw.size. Returns the bytes written.
cdef uint32_t copy_forwarded(Span raw, uint8_t* out) noexcept nogil

# of this module alone
cdef uint64_t bit(uint32_t property_id) noexcept nogil
cdef uint64_t message_properties() noexcept nogil
cdef uint64_t connect_properties() noexcept nogil
cdef uint64_t connack_properties() noexcept nogil
cdef uint64_t allowed_properties(uint32_t packet) noexcept nogil
cdef uint64_t known_properties() noexcept nogil
cdef Fault check_placement(
    uint32_t property_id, uint32_t packet, uint64_t allowed, uint64_t present,
) noexcept nogil
cdef void read_value(Cursor* c, uint32_t property_id, Properties* out) noexcept nogil
cdef uint8_t read_flag(Cursor* c) noexcept nogil
cdef uint16_t read_positive_u16(Cursor* c, Fault fault) noexcept nogil
cdef uint32_t read_packet_size(Cursor* c) noexcept nogil
cdef void read_subscription_id(Cursor* c, Properties* out) noexcept nogil
cdef Span read_topic(Cursor* c) noexcept nogil
cdef void skip_pair(Cursor* c) noexcept nogil
