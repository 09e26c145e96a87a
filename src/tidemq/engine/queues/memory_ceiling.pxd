from libc.stdint cimport int64_t, uint64_t

from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Common, Reactor

cdef int64_t memory_used(Common* common) noexcept nogil
cdef void check_memory(Reactor* r) noexcept nogil
cdef void continue_overloaded(Reactor* r) noexcept nogil
cdef bint refused_by_memory(Reactor* r, Connection* c) noexcept nogil
cdef int64_t tree_bytes(Common* common) noexcept nogil
cdef bint _may_go_on(Reactor* r, uint64_t publisher) noexcept nogil
