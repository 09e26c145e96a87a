from libc.stdint cimport uint64_t

from tidemq.engine.base.message cimport Passage
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef void capture(Reactor* r, Passage* p, uint64_t streams) noexcept nogil

# of this module alone
cdef Span _publisher_name(Reactor* r, const Passage* p) noexcept nogil
