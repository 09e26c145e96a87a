"""How a message for streams lies in its section: `capturing` writes it, `columns` reads it."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    CAPTURED_BYTES_MAX = 16777216     # of one reactor's messages for streams, above which their publishers wait

cdef enum:   # flags of a CapturedHead
    CAPTURED_RETAIN = 1
    CAPTURED_DUP = 2

cdef struct CapturedHead:        # then topic, client identifier, payload and properties
    uint64_t streams             # bit mask
    uint64_t clock               # of the message's id
    int64_t received_us          # wall clock
    uint32_t payload_size
    uint32_t properties_size
    uint16_t topic_size
    uint16_t client_id_size
    uint16_t packet_id
    uint8_t qos
    uint8_t flags
