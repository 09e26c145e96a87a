from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from tidemq.engine.state cimport Connection, Reactor, Session

cdef void handle_publish(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size, const uint8_t* frame, uint32_t frame_size) noexcept nogil
cdef void answer_publish(Reactor* r, Connection* c, uint8_t reason, uint64_t ttl_ms) noexcept nogil
cdef void handle_ack(Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
