from libc.stdint cimport int64_t

cdef enum:
    HUGE_PAGE_BYTES = 2097152

cdef void* allocate(size_t size) noexcept nogil    # zeroed; ends the process where there is none left
cdef void release(void* block) noexcept nogil      # what allocate gave, or NULL
cdef void* obtain(size_t size) noexcept nogil       # not zeroed, not counted: for what has a live counter of its own; free()
cdef void* enlarge(void* block, size_t size) noexcept nogil
cdef void* map_pages(size_t size, size_t ordinary) noexcept nogil
cdef void unmap_pages(void* block, size_t size) noexcept nogil
cdef int64_t live_blocks() noexcept nogil          # allocated and not released, in the whole process
