from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libcpp.map cimport map as ordered_map
from libcpp.string cimport string

from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.queue cimport StoredQueue
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport Publish

ctypedef ordered_map[uint16_t, uint64_t] Fingerprints

cdef uint64_t fingerprint_of(Reactor* r, Connection* c, const Publish* publish) noexcept nogil
cdef void note_fingerprint(Session* s, uint16_t packet_id, uint64_t fingerprint) noexcept nogil
cdef void free_fingerprints(StoredQueue* q) noexcept nogil
cdef bint is_received(Session* s, uint16_t packet_id) noexcept nogil
cdef bint is_sent_again(Reactor* r, Connection* c, const Publish* publish) noexcept nogil
cdef void note_received(Session* s, uint16_t packet_id) noexcept nogil
cdef void store_received(Reactor* r, Session* s, uint16_t packet_id) noexcept nogil
cdef void store_all_received(Reactor* r, Session* s) noexcept nogil
cdef bint forget_received(Reactor* r, Session* s, uint16_t packet_id) noexcept nogil
cdef void restore_received(Session* s, uint64_t mark) noexcept nogil

# of this module alone
cdef bint _has_bit(Session* s, uint32_t bit) noexcept nogil
cdef void _note_stored(Session* s, uint16_t packet_id) noexcept nogil
cdef uint64_t _known_fingerprint(Session* s, uint16_t packet_id) noexcept nogil
cdef string _key(Session* s, uint16_t packet_id) noexcept nogil
cdef bint _forget_stored(Reactor* r, Session* s, uint16_t packet_id) noexcept nogil
