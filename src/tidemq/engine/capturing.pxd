from libc.stdint cimport uint64_t

from tidemq.engine.state cimport Passage, Reactor

cdef void capture(Reactor* r, Passage* p, uint64_t streams) noexcept nogil
