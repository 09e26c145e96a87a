from libc.stdint cimport uint16_t

from tidemq.engine.state cimport Reactor, Session

cdef bint is_received(Session* s, uint16_t packet_id) noexcept nogil
cdef void note_received(Session* s, uint16_t packet_id) noexcept nogil
cdef void store_received(Reactor* r, Session* s, uint16_t packet_id) noexcept nogil
cdef bint forget_received(Reactor* r, Session* s, uint16_t packet_id) noexcept nogil
cdef void restore_received(Session* s, uint16_t packet_id) noexcept nogil
