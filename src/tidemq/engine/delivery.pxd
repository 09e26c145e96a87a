from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from tidemq.engine.state cimport Connection, Message, Passage, Reactor, Session

cdef void deliver(Reactor* r, Session* s, Passage* p, uint8_t qos, bint retain, const uint32_t* ids, uint32_t ids_count) noexcept nogil
cdef bint write_publish(Reactor* r, Connection* c, Passage* p, uint8_t qos, bint retain, bint dup, uint16_t packet_id, const uint32_t* ids, uint32_t ids_count) noexcept nogil
cdef void take_over(Reactor* r, Session* s, Message* message, uint8_t qos, bint retain, uint32_t subscription_id, uint64_t queue) noexcept nogil
cdef void arrive(Reactor* r, Session* s, Message* message, uint8_t qos, bint retain, const uint32_t* ids) noexcept nogil
cdef void send_waiting(Reactor* r, Session* s) noexcept nogil
