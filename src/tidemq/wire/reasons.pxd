from libc.stdint cimport uint8_t

# Whether `reason` may be in a packet of that type and protocol version (the tables of 5.0 chapter 3).
cdef bint allowed_reason(uint8_t packet_type, uint8_t reason, uint8_t version) noexcept nogil
