from libc.stdint cimport uint8_t

from tidemq.net.buffer cimport Buffer
from tidemq.net.tls cimport Tls, TlsContext
from tidemq.net.upgrade cimport Upgrade
from tidemq.net.websocket cimport WebSocket

cdef enum:
    RECORD_BYTES_MAX = 16384   # in clear

cdef enum Phase:
    WAITING = 0                # for the socket's connection
    SECURING = 1               # TLS handshake
    UPGRADING = 2              # to WebSocket
    OPEN = 3
    ENDED = 4                  # by the peer, in order
    FAULTY = 5                 # `transport_text` says why

cdef struct Transport:         # of one connection; it must not move in memory
    bint secure
    bint framed
    Phase phase
    Tls tls
    Upgrade upgrade
    WebSocket websocket
    Buffer clear               # frames to be encrypted
    Buffer output              # to be sent to the peer

cdef class Scheme:
    cdef TlsContext tls
    cdef bytes server_name
    cdef bint named
    cdef str host, resource

    cdef Transport* make(self) except *

cdef void begin(Transport* t) noexcept nogil
cdef size_t unwrap(Transport* t, const uint8_t* data, size_t size, uint8_t* to) noexcept nogil
cdef bint wrap(Transport* t, const uint8_t* data, size_t size) noexcept nogil
cdef void conclude(Transport* t) noexcept nogil
cdef void free_transport(Transport* t) noexcept nogil
cdef object transport_text(const Transport* t)
