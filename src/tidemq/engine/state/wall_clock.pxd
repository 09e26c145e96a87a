from libc.stdint cimport int64_t

from tidemq.engine.state.reactor cimport Common, Reactor

cdef int64_t read_wall_offset() noexcept nogil
cdef int64_t wall_offset(const Common* common) noexcept nogil
cdef int64_t id_offset(const Common* common) noexcept nogil
cdef void raise_ids(Common* common, int64_t offset_ns) noexcept nogil

# of this module alone
