from libc.stdint cimport uint8_t, uint16_t

from tidemq.engine.state cimport Connection, Mail, Reactor, Section, Session

cdef enum:
    KEPT_A_TURN = 8192           # promises

cdef void answer_kept(Reactor* r, Mail* mail) noexcept nogil
cdef bint keep_promises(Reactor* r) noexcept nogil
cdef void section_answered(Reactor* r, Section* section, uint8_t reason) noexcept nogil
cdef void settle_published(
    Reactor* r, Connection* c, Session* s, uint8_t packet_type, uint16_t packet_id, uint8_t reason,
) noexcept nogil
