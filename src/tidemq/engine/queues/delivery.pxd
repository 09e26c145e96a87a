from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t

from tidemq.engine.base.message cimport Message, Passage
from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.queue cimport Entry
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport PublishHead

cdef void deliver(Reactor* r, Session* s, Passage* p, uint8_t qos, bint retain, const uint32_t* ids, uint32_t ids_count) noexcept nogil
cdef bint write_publish(Reactor* r, Connection* c, Passage* p, uint8_t qos, bint retain, bint dup, uint16_t packet_id, const uint32_t* ids, uint32_t ids_count) noexcept nogil
cdef void take_over(Reactor* r, Session* s, Message* message, uint8_t qos, bint retain, uint32_t subscription_id, uint64_t queue) noexcept nogil
cdef void arrive(Reactor* r, Session* s, Message* message, uint8_t qos, bint retain, const uint32_t* ids) noexcept nogil
cdef void send_waiting(Reactor* r, Session* s) noexcept nogil

# of this module alone
cdef bint _comes_as_row(const Reactor* r, const Passage* p, uint8_t qos) noexcept nogil
cdef void _choose_alias(Connection* c, PublishHead* head) noexcept nogil
cdef void _fill_head(PublishHead* head, Passage* p, uint8_t version, uint8_t qos, bint retain) noexcept nogil
cdef void _append_payload(Reactor* r, Connection* c, Passage* p, uint8_t* out, bint large) noexcept nogil
cdef bint _write_common(
    Reactor* r, Connection* c, Passage* p, uint8_t qos, bint retain, bint dup, uint16_t packet_id,
) noexcept nogil
cdef bint _write_own(Reactor* r, Connection* c, Passage* p, PublishHead* head) noexcept nogil
cdef void _deliver_now(
    Reactor* r, Session* s, Passage* p, bint retain, const uint32_t* ids, uint32_t ids_count,
) noexcept nogil
cdef void _enqueue(
    Reactor* r, Session* s, Passage* p, uint8_t qos, bint retain, const uint32_t* ids, uint32_t ids_count,
) noexcept nogil
cdef bint _may_send_twice(Reactor* r, Session* s, Connection* c, Entry* entry) noexcept nogil
cdef bint _may_be_hidden(Reactor* r, Session* s, Connection* c, const Entry* entry) noexcept nogil
cdef bint _may_be_undone(Reactor* r, const Entry* entry) noexcept nogil
cdef bint _send_entry(Reactor* r, Session* s, Connection* c, Passage* p, Entry* entry) noexcept nogil
