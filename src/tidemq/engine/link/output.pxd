from libc.stdint cimport uint32_t, uint64_t, uint8_t

from tidemq.engine.base.message cimport Message
from tidemq.engine.state.client cimport Connection, LargePayloads, Output
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.base.system cimport iovec

cdef uint8_t* reserve_output(Reactor* r, Connection* c, uint32_t size) noexcept nogil
cdef void append_output(Reactor* r, Connection* c, const void* data, uint32_t size) noexcept nogil
cdef void append_large(Reactor* r, Connection* c, Message* message) noexcept nogil
cdef bint flush_output(Reactor* r, Connection* c) noexcept nogil
cdef void consume_output(Reactor* r, Output* out, uint64_t size) noexcept nogil
cdef void settle_output(Reactor* r, Output* out, uint32_t sent) noexcept nogil
cdef void free_output(Reactor* r, Connection* c) noexcept nogil
cdef bint is_drained(const Output* out) noexcept nogil
cdef void touch(Reactor* r, Connection* c) noexcept nogil
cdef void doom(Reactor* r, Connection* c, uint8_t reason, uint8_t fault) noexcept nogil

# Bytes that wait to be sent. Inline, as what is done for every message and smaller than its call.
cdef inline uint64_t pending_output(const Connection* c) noexcept nogil:
    cdef uint64_t pending = c.output.end - c.output.start
    if c.output.large != NULL:
        pending += c.output.large.bytes
    if c.transport != NULL:
        pending += c.transport.output.end - c.transport.output.start
    return pending

# of this module alone
cdef void _take_block(Reactor* r, Output* out, uint32_t size) noexcept nogil
cdef void _give_block(Reactor* r, Output* out) noexcept nogil
cdef bint _is_strained(const Connection* c) noexcept nogil
cdef void _make_room(Reactor* r, Connection* c, uint32_t size) noexcept nogil
cdef int _gather(Output* out, iovec* parts) noexcept nogil
cdef void _check_large(const LargePayloads* large) noexcept nogil
