from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef void write_hex(uint8_t* out, uint32_t value) noexcept nogil
cdef void fill_random(uint64_t* state, uint8_t* data, size_t size) noexcept nogil
