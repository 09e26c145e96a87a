from libc.stdint cimport uint8_t

# Whether `reason` may be in a packet of that type and protocol version (the tables of 5.0 chapter 3).
cdef bint allowed_reason(uint8_t packet_type, uint8_t reason, uint8_t version) noexcept nogil

# of this module alone
cdef bint allowed_below_5(uint8_t packet_type, uint8_t reason) noexcept nogil
cdef bint allowed_in_connack(uint8_t reason) noexcept nogil
cdef bint allowed_in_puback(uint8_t reason) noexcept nogil
cdef bint allowed_in_suback(uint8_t reason) noexcept nogil
cdef bint allowed_in_unsuback(uint8_t reason) noexcept nogil
cdef bint allowed_in_disconnect(uint8_t reason) noexcept nogil
