from libc.stdint cimport uint16_t, uint32_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.index.topic_rules cimport ConnectSubscription
from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.mail cimport Letter
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport Subscribe
from tidemq.wire.protocol cimport Span

cdef void handle_subscribe(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void handle_unsubscribe(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void subscribe_at_connect(Reactor* r, Connection* c) noexcept nogil
cdef void answer_subscribe(Reactor* r, Connection* c, const Letter* answer) noexcept nogil

# of this module alone
cdef void _subscribe(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef bint _is_refused(Reactor* r, Span filter) noexcept nogil
cdef bint _renames(const Reactor* r, const Connection* c) noexcept nogil
cdef void _rename(
    Reactor* r, const uint8_t* body, const Subscribe* packet, bint with_options, string* renamed,
) noexcept nogil
cdef uint32_t _filters_max(const Reactor* r) noexcept nogil
cdef void _append_renamed(Reactor* r, Span filter, string* body) noexcept nogil
cdef bint _fill_in(Connection* c, const ConnectSubscription* wanted, string* filter) noexcept nogil
cdef bint _has(Connection* c, const string* filter, uint8_t options) noexcept nogil
cdef uint8_t _apply_one(
    Reactor* r, Connection* c, Span filter, uint8_t options, uint32_t subscription_id, bint fails, bint* wants_retained,
) noexcept nogil
cdef void _answer(
    Reactor* r, Connection* c, uint8_t packet_type, uint16_t packet_id, string* reasons, const string* why, bint stored,
) noexcept nogil
cdef void _apply_subscribe(
    Reactor* r, Connection* c, Subscribe* packet, const Letter* answer,
) noexcept nogil
cdef uint8_t _drop_one(Reactor* r, Connection* c, Span filter, bint fails) noexcept nogil
