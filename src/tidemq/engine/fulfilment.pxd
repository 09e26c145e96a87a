from libc.stdint cimport uint8_t, uint16_t, uint64_t

from tidemq.engine.state cimport Connection, Reactor, Section, Session

cdef void answer_kept(Reactor* r, uint64_t token, uint8_t reason) noexcept nogil
cdef void keep_promises(Reactor* r) noexcept nogil
cdef void section_answered(Reactor* r, Section* section, uint8_t reason) noexcept nogil
cdef void settle_published(
    Reactor* r, Connection* c, Session* s, uint8_t packet_type, uint16_t packet_id, uint8_t reason,
) noexcept nogil
