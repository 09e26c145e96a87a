from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t

from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.promise cimport Promise
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.section cimport Record, Section

cdef enum:
    KEPT_A_TURN = 4096           # promises to publishers, and as many others

cdef void answer_kept(Reactor* r, Mail* mail) noexcept nogil
cdef bint keep_promises(Reactor* r) noexcept nogil
cdef void section_answered(Reactor* r, Section* section, uint8_t reason) noexcept nogil
cdef void settle_published(
    Reactor* r, Connection* c, Session* s, uint8_t packet_type, uint16_t packet_id, uint8_t reason,
) noexcept nogil

# of this module alone
cdef Session* _publisher_of(Reactor* r, const Promise* promise) noexcept nogil
cdef void _disconnect_publisher(Reactor* r, Session* s, Promise* refused) noexcept nogil
cdef void _refuse_repeated(Reactor* r, Session* s, Promise* refused) noexcept nogil
cdef void _undo_published(Reactor* r, uint32_t slot, uint8_t reason) noexcept nogil
cdef void _settle_refused(
    Reactor* r, Connection* c, Session* s, uint8_t packet_type, uint16_t packet_id, uint8_t reason,
) noexcept nogil
cdef void _settle_debt(Reactor* r, Connection* c) noexcept nogil
cdef void _keep_published(Reactor* r, Promise* promise, uint32_t slot) noexcept nogil
cdef void _keep_backlog(Reactor* r, Session* s, Promise* promise) noexcept nogil
cdef void _keep_other(Reactor* r, Promise* promise) noexcept nogil
cdef void _keep_from(Reactor* r, uint32_t slot) noexcept nogil
cdef void _keep_committed(Reactor* r) noexcept nogil
cdef void _undo_added(Reactor* r, Record* record, uint64_t number) noexcept nogil
cdef void _break_promise(Reactor* r, Promise* promise) noexcept nogil
cdef size_t _first_due(Reactor* r, uint64_t section) noexcept nogil
cdef size_t _first_promise(Reactor* r, uint64_t section) noexcept nogil
cdef bint _fails_with(Reactor* r, uint32_t slot, uint64_t section) noexcept nogil
cdef void _section_failed(Reactor* r, Section* section, uint8_t reason) noexcept nogil
cdef void _leave_unanswered(Reactor* r, Promise* promise) noexcept nogil
cdef void _section_uncopied(Reactor* r, Section* section) noexcept nogil
