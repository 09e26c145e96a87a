from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

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
