from libc.stdint cimport int64_t

cdef int64_t clock_ms() noexcept nogil
cdef int64_t clock_ns() noexcept nogil
