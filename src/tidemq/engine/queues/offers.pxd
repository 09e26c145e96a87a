from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp.string cimport string

from tidemq.engine.base.message cimport Message, MessageId, Passage
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.section cimport Taker

cdef void note_offer(
    Reactor* r, Session* s, Message* message, uint8_t qos, bint retain, const uint32_t* ids, uint32_t ids_count
) noexcept nogil
cdef string* describe_offer(Reactor* r, const MessageId* id) noexcept nogil
cdef bint is_foreign(const Reactor* r, const MessageId* id) noexcept nogil
cdef bint is_offered(Reactor* r, const Session* s, const MessageId* id) noexcept nogil
cdef void free_offers(Reactor* r) noexcept nogil

# of this module alone
cdef void _append_taker(string* takers, uint64_t queue, const Taker* taker) noexcept nogil
cdef string* _name_takers(Reactor* r, uint64_t clock) noexcept nogil
