from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp.string cimport string

from tidemq.engine.base.message cimport Message, MessageId, Passage
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.reactor cimport Reactor

cdef void note_offer(
    Reactor* r, Session* s, Message* message, uint8_t qos, bint retain, const uint32_t* ids, uint32_t ids_count
) noexcept nogil
cdef string* describe_offer(Reactor* r, uint64_t clock) noexcept nogil
cdef bint is_offered(Reactor* r, const Session* s, const MessageId* id) noexcept nogil
cdef void free_offers(Reactor* r) noexcept nogil
