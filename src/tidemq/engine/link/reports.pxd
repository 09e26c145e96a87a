from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.base.event cimport Event
from tidemq.engine.base.message cimport Message
from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.queue cimport Entry
from tidemq.engine.state.reactor cimport Common, Reactor

cdef Event* new_event(uint8_t kind, uint64_t connection) noexcept nogil
cdef void post_event(Common* common, Event* event) noexcept nogil
cdef void post_report(Reactor* r, Event* event) noexcept nogil
cdef void set_peer(Connection* c, const char* text) noexcept nogil
cdef void name_peer(Connection* c) noexcept nogil
cdef Event* connection_event(Reactor* r, Connection* c, uint8_t kind) noexcept nogil
cdef void count_watched(Common* common, uint8_t watch, uint32_t payload_bytes) noexcept nogil
cdef void report_received(Reactor* r, uint64_t receiver, Message* message) noexcept nogil
# Of a session that has acknowledged what is in its outbox.
cdef void report_acknowledged(Reactor* r, const Session* s, const Entry* entry) noexcept nogil
cdef bint is_local(Connection* c) noexcept nogil
# A copy of a packet, first byte and body, for as long as a decision about it takes: `drop_packet`, also of NULL.
cdef string* keep_packet(Reactor* r, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
cdef void drop_packet(Reactor* r, string* kept) noexcept nogil

# of this module alone
cdef bint _is_full(Common* common) noexcept nogil
cdef void _name_process(Connection* c) noexcept nogil
