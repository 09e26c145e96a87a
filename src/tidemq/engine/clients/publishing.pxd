from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t

from tidemq.engine.index.rules cimport Judgement
from tidemq.engine.base.message cimport Passage
from tidemq.engine.link.spans cimport Received
from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.queue cimport Entry
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.routing cimport CacheEntry
from tidemq.wire.packets cimport Ack, Publish
from tidemq.wire.protocol cimport Fault

cdef struct Meant:               # stands behind a PUBLISH that the control plane decides on, and its topic
    uint32_t topic_size          # of the topic that is decided on; 0: the packet's own
    uint32_t delay_s             # it is to wait for so long afterwards (`$delayed/`)
    int64_t came_ms

cdef void handle_publish(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size, const uint8_t* frame, uint32_t frame_size) noexcept nogil
cdef void answer_publish(Reactor* r, Connection* c, uint8_t reason, uint64_t ttl_ms) noexcept nogil
cdef void handle_ack(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void accept_publish(
    Reactor* r, Connection* c, Publish* publish, const uint8_t* frame, uint32_t frame_size, CacheEntry* entry,
    int64_t came_ms,
) noexcept nogil
cdef void write_denial(Reactor* r, Connection* c, Publish* publish, uint8_t reason) noexcept nogil
cdef void write_refusal(Reactor* r, Connection* c, Publish* publish, uint8_t reason) noexcept nogil

# of this module alone
cdef Fault _resolve_alias(Reactor* r, Connection* c, Publish* publish) noexcept nogil
cdef Fault _check_publish(Reactor* r, Connection* c, Publish* publish) noexcept nogil
cdef Judgement* _answered(Reactor* r, Connection* c, CacheEntry* entry, Publish* publish) noexcept nogil
cdef void _ask_publish(
    Reactor* r, Connection* c, Publish* publish, uint8_t first, const uint8_t* body, uint32_t size,
) noexcept nogil
cdef uint32_t _held_count(const Connection* c) noexcept nogil
cdef void _admit_publish(
    Reactor* r, Connection* c, Publish* publish, uint8_t first, const uint8_t* body, uint32_t size,
    const uint8_t* frame, uint32_t frame_size, CacheEntry* entry, int64_t came_ms,
) noexcept nogil
cdef bint _is_over(const Reactor* r, const Publish* publish, int64_t came_ms) noexcept nogil
cdef void _deny_publish(
    Reactor* r, Connection* c, Publish* publish, uint8_t reason, int counter,
) noexcept nogil
cdef void _refuse_publish(Reactor* r, Connection* c, Publish* publish, uint8_t reason) noexcept nogil
cdef bint _may_be_uncopied(Reactor* r, Connection* c) noexcept nogil
cdef bint _refused_by_store(Reactor* r, Connection* c, Publish* publish, CacheEntry* entry) noexcept nogil
cdef void _acknowledge(Reactor* r, Connection* c, Passage* p, uint16_t packet_id) noexcept nogil
cdef void _report_span(Reactor* r, Connection* c, const Received* span, const Passage* p) noexcept nogil
cdef void _handle_pubrel(Reactor* r, Connection* c, uint16_t packet_id) noexcept nogil
cdef void _release_entry(Reactor* r, Connection* c, Entry* entry, uint16_t packet_id) noexcept nogil
cdef bint _handle_pubrec(Reactor* r, Connection* c, Entry* entry, const Ack* ack) noexcept nogil
