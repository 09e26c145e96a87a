from libc.stdint cimport uint16_t, uint64_t

from tidemq.engine.state cimport Connection, Reactor

cdef void pause_feeder(Reactor* r, uint64_t feeder) noexcept nogil
cdef void resume_feeder(Reactor* r, uint64_t feeder) noexcept nogil
cdef void congest(Reactor* r, Connection* c, uint64_t feeder) noexcept nogil
cdef void relieve(Reactor* r, Connection* c) noexcept nogil
cdef void release_feeders(Reactor* r, Connection* c) noexcept nogil
cdef void wait_for_inbox(Reactor* r, uint16_t target, uint64_t feeder) noexcept nogil
cdef void hold_feeder(Reactor* r, uint64_t feeder) noexcept nogil
cdef void check_flooding(Reactor* r) noexcept nogil
cdef void check_congested(Reactor* r) noexcept nogil
cdef void check_memory(Reactor* r) noexcept nogil
cdef bint refused_by_memory(Reactor* r, Connection* c) noexcept nogil
