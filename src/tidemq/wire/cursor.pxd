from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t

from tidemq.wire.protocol cimport Fault, Span

# A reader over one packet's body. After the first fault every further read returns zero and keeps it.
cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end
    Fault fault

cdef uint8_t read_u8(Cursor* c) noexcept nogil
cdef uint16_t read_u16(Cursor* c) noexcept nogil
cdef uint32_t read_u32(Cursor* c) noexcept nogil
cdef uint32_t read_varint(Cursor* c) noexcept nogil
cdef Span read_binary(Cursor* c) noexcept nogil   # two-byte length, then bytes
cdef Span read_string(Cursor* c) noexcept nogil   # the same, checked as MQTT UTF-8
cdef Span read_rest(Cursor* c) noexcept nogil

cdef Fault check_utf8(const uint8_t* data, uint32_t size) noexcept nogil
cdef void fail(Cursor* c, Fault fault) noexcept nogil  # keeps the first fault, leaves nothing to read

cdef uint32_t varint_size(uint32_t value) noexcept nogil
cdef uint8_t* write_varint(uint8_t* out, uint32_t value) noexcept nogil   # returns the byte after it
cdef uint8_t* write_u16(uint8_t* out, uint16_t value) noexcept nogil
cdef uint8_t* write_u32(uint8_t* out, uint32_t value) noexcept nogil
cdef uint8_t* write_bytes(uint8_t* out, const uint8_t* data, uint32_t size) noexcept nogil
cdef uint8_t* write_string(uint8_t* out, Span text) noexcept nogil        # two-byte length, then bytes

# of this module alone
cdef bint has(Cursor* c, uint32_t size) noexcept nogil
cdef uint64_t repeat(uint8_t byte) noexcept nogil
cdef uint64_t zero_bytes(uint64_t word) noexcept nogil
cdef Fault check_code_points(const uint8_t* at, const uint8_t* end) noexcept nogil
cdef uint32_t code_point_size(const uint8_t* at, const uint8_t* end) noexcept nogil
