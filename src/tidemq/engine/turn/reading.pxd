from libc.stdint cimport int64_t, uint32_t, uint8_t

from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport FixedHeader

cdef void read_connection(Reactor* r, Connection* c) noexcept nogil
cdef void parse_kept(Reactor* r, Connection* c) noexcept nogil
# Whether what is kept begins with a whole packet, or with what cannot become one. What does not is at most half of
# the reactor's buffer, or has a buffer of its own.
cdef bint begins_whole(const Reactor* r, const Connection* c) noexcept nogil

# of this module alone
cdef void _handle_disconnect(
    Reactor* r, Connection* c, uint8_t first, const uint8_t* body, uint32_t size,
) noexcept nogil
cdef void _handle_ping(Reactor* r, Connection* c, uint8_t first, uint32_t size) noexcept nogil
cdef void _handle_packet(Reactor* r, Connection* c, FixedHeader* header, const uint8_t* frame) noexcept nogil
cdef bint _is_tls(const uint8_t* data, uint32_t size) noexcept nogil
cdef uint32_t _parse(Reactor* r, Connection* c, const uint8_t* data, uint32_t size) noexcept nogil
cdef uint32_t _parse_within_rates(Reactor* r, Connection* c, const uint8_t* data, uint32_t size) noexcept nogil
cdef uint32_t _parse_packets(Reactor* r, Connection* c, const uint8_t* data, uint32_t size) noexcept nogil
cdef void _keep_input(
    Reactor* r, Connection* c, const uint8_t* data, uint32_t size, int64_t began_ms,
) noexcept nogil
cdef void _drop_input(Reactor* r, Connection* c) noexcept nogil
cdef uint32_t _receive(Reactor* r, Connection* c, uint8_t* into, uint32_t size) noexcept nogil
cdef void _add_input(Reactor* r, Connection* c, const uint8_t* data, uint32_t size) noexcept nogil
cdef void _read_wrapped(Reactor* r, Connection* c) noexcept nogil
cdef void _read_plain(Reactor* r, Connection* c) noexcept nogil
