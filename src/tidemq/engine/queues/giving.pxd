from libc.stdint cimport uint64_t, uint8_t

from tidemq.engine.base.message cimport Message
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef void give_to_group(Reactor* r, Message* message, Span group, uint64_t token) noexcept nogil
cdef void tell_given(Reactor* r, uint64_t token, uint8_t reason) noexcept nogil
