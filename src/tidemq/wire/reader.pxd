from libc.stdint cimport uint32_t, uint8_t

from tidemq.wire.protocol cimport Fault, Span

cdef enum:
    LEVELS_MAX = 0x10000   # more than a topic filter can have

# of this module alone
cdef object decode_first(const uint8_t* data, size_t size, uint8_t version, size_t packet_bytes_max)
cdef Fault check_packet(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version) noexcept nogil
cdef object require(Fault fault)
cdef object read_packet(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
cdef str text(Span span)
cdef bytes content(Span span)
cdef object read_connect(uint8_t first, const uint8_t* body, uint32_t size)
cdef object read_connack(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
cdef object read_publish(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
cdef object read_ack(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
cdef object read_subscribe(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
cdef object read_unsubscribe(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
cdef object read_suback(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
cdef object read_disconnect(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
cdef object read_auth(uint8_t first, const uint8_t* body, uint32_t size)
