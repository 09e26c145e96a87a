from libc.stdint cimport uint8_t
from libcpp.string cimport string

from tidemq.net.buffer cimport Buffer
from tidemq.net.proxy cimport Proxy
from tidemq.net.server_tls cimport ServerTls
from tidemq.net.server_upgrade cimport WebSocketRules, WebSocketTerms
from tidemq.net.tls cimport Tls, TlsContext
from tidemq.net.upgrade cimport Upgrade
from tidemq.net.websocket cimport WebSocket

cdef enum:
    RECORD_BYTES_MAX = 16384   # in clear

cdef enum Phase:               # in their order
    WAITING = 0                # a client's: for the socket's connection
    PROXYING = 1               # a server's: for the PROXY header
    SECURING = 2               # TLS handshake
    UPGRADING = 3              # to WebSocket
    OPEN = 4
    ENDED = 5                  # by the peer, in order
    FAULTY = 6                 # `fault` says what is wrong; the output may say it to the peer

cdef enum TransportFault:
    NO_FAULT = 0
    PROXY_FAULT = 1
    TLS_FAULT = 2
    UPGRADE_FAULT = 3
    FRAME_FAULT = 4

cdef struct Transport:         # of one connection; it must not move in memory; one thread at a time
    bint serves                # the peer is a client
    bint secure
    bint framed
    Phase phase
    Proxy proxy                # at OPEN: who the client is
    Tls tls
    Upgrade upgrade
    WebSocket websocket
    WebSocketRules* rules      # of a server's upgrade, held; NULL: it makes none
    Buffer clear               # frames to be encrypted
    Buffer output              # to be sent to the peer, whatever the phase: a fault is answered too;
                               # while it is empty it may be released, as `clear` may

cdef class Scheme:
    cdef TlsContext tls
    cdef bytes server_name
    cdef bint named
    cdef str host, resource

    cdef Transport* make(self) except *

cdef struct Terms:             # what a listener's connections are wrapped in; owned by its ServerScheme
    void* tls                  # SSL_CTX; NULL: none
    bint framed
    bint proxied               # begin with a PROXY header
    WebSocketRules* rules

cdef class ServerScheme:       # its transports keep what they need of it
    cdef readonly ServerTls tls
    cdef readonly WebSocketTerms websocket
    cdef Terms terms

cdef Transport* serve(const Terms* terms) noexcept nogil
cdef void begin(Transport* t) noexcept nogil
cdef size_t unwrap(Transport* t, const uint8_t* data, size_t size, uint8_t* to) noexcept nogil
cdef bint wrap(Transport* t, const uint8_t* data, size_t size) noexcept nogil
cdef void conclude(Transport* t) noexcept nogil
cdef void free_transport(Transport* t) noexcept nogil

cdef inline bint is_plain(const Transport* t) noexcept nogil:
    """There is only a PROXY header: at OPEN, when unwrap has given what came after it, it can be freed."""
    return not t.secure and not t.framed

cdef TransportFault fault_kind(const Transport* t) noexcept nogil
cdef const char* fault_name(const Transport* t) noexcept nogil
cdef bint certificate_of(const Transport* t, string* der) noexcept nogil
cdef object transport_text(const Transport* t)

# of this module alone
cdef object step_text(const Transport* t)
cdef object name_text(const Transport* t)
cdef void shake(Transport* t) noexcept nogil
cdef void secured(Transport* t) noexcept nogil
cdef void emit(Transport* t, const uint8_t* data, size_t size) noexcept nogil
cdef size_t proxied(Transport* t, const uint8_t* data, size_t size) noexcept nogil
cdef size_t upgraded(Transport* t, const uint8_t* data, size_t size) noexcept nogil
cdef size_t unframed(Transport* t, uint8_t* data, size_t size) noexcept nogil
cdef void encrypt_clear(Transport* t) noexcept nogil
