from libc.stdint cimport int64_t

from tidemq.engine.state.state cimport Reactor, Shared

cdef int64_t read_wall_offset() noexcept nogil
cdef int64_t wall_offset(const Shared* shared) noexcept nogil
cdef int64_t id_offset(const Shared* shared) noexcept nogil
cdef void raise_ids(Shared* shared, int64_t offset_ns) noexcept nogil

# of this module alone
