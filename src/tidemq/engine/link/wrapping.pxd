from libc.stdint cimport int64_t, uint32_t, uint8_t

from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Reactor
from tidemq.net.transport cimport ENDED, Transport

cdef enum:
    TLS_BYTES = 32768            # of a connection

# About what a connection takes by itself: with its part of the tables, and what OpenSSL holds for it.
cdef inline int64_t connection_bytes(const Connection* c) noexcept nogil:
    cdef int64_t size = sizeof(Connection) + 256
    if c.listener.secure:
        size += TLS_BYTES
    return size

# Whether the client has ended what its bytes are wrapped in, and takes no more.
cdef inline bint has_ended(const Connection* c) noexcept nogil:
    return c.transport != NULL and c.transport.phase >= ENDED

cdef bint open_transport(Connection* c) noexcept nogil
cdef uint32_t receive_wrapped(Reactor* r, Connection* c, uint8_t* into, uint32_t room) noexcept nogil
cdef void check_transport(Reactor* r, Connection* c) noexcept nogil
cdef bint flush_wrapped(Reactor* r, Connection* c) noexcept nogil
cdef void conclude_transport(Reactor* r, Connection* c) noexcept nogil
cdef void drop_transport(Reactor* r, Connection* c) noexcept nogil

# of this module alone
cdef void _count_memory(Reactor* r, Connection* c) noexcept nogil
cdef bint _note_client(Reactor* r, Connection* c) noexcept nogil
cdef void _note_handshake(Reactor* r, Connection* c) noexcept nogil
cdef bint _wrap_some(Reactor* r, Connection* c) noexcept nogil
cdef void _give_spare(Reactor* r, Transport* t) noexcept nogil
