from libc.stdint cimport int64_t

cdef void* allocate(size_t size) noexcept nogil    # zeroed; ends the process where there is none left
cdef void release(void* block) noexcept nogil      # what allocate gave, or NULL
cdef int64_t live_blocks() noexcept nogil          # allocated and not released, in the whole process
