from libc.stdint cimport uint8_t

cdef struct Buffer:            # all zero: empty
    uint8_t* bytes             # [start, end) is what it holds
    size_t start
    size_t end
    size_t size

cdef uint8_t* reserve(Buffer* buffer, size_t size) noexcept nogil
cdef void append(Buffer* buffer, const uint8_t* data, size_t size) noexcept nogil
cdef void discard(Buffer* buffer, size_t size) noexcept nogil
cdef void release(Buffer* buffer) noexcept nogil
