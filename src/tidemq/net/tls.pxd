from libc.stdint cimport uint16_t, uint32_t, uint8_t
from libcpp.string cimport string

from tidemq.net.buffer cimport Buffer

cdef enum Step:
    FAILED = -1            # Tls.fault says why; nothing more can be done with it
    WANTS_INPUT = 0        # give it more of what the peer sends
    FINISHED = 1

cdef struct Tls:           # one connection's end; it must not move in memory
    void* ssl              # NULL: not open
    const uint8_t* input   # [input, input + input_size): from the peer, not taken yet; the caller's
    size_t input_size
    bint in_clear          # a server's: the handshake is not encrypted yet, and followed by check_claims
    bint begun             # the first byte has come
    bint foreign           # which begins no record: the client does not speak TLS
    uint8_t record_head    # bytes of a record's header that have come
    uint8_t record_kind
    uint16_t record_left   # bytes of the record that are to come
    uint8_t message_head   # bytes of a message's header that have come
    uint32_t message_size  # in its header, as far as that has come
    uint32_t message_left  # bytes of the message that are to come
    Buffer* output         # what is to be sent to the peer is appended here; the caller's
    unsigned long fault    # OpenSSL's code of the first failure; 0: none, or a broken record stream
    long verify_fault      # why the peer's certificate is not accepted; 0: it is
    bint framed            # WebSocket is above it, else MQTT: what ALPN has to name
    bint failed
    bint ended             # the peer has sent close_notify

cdef class TlsContext:
    cdef void* handle

cdef void* load_openssl(str what) except *
cdef void* new_context(const void* method) except *
cdef void trust(void* context, str cafile) except *
cdef void show(void* context, str cert, str key) except *
cdef bint open_client(Tls* tls, void* context, const char* server_name, bint named, Buffer* output) noexcept nogil
cdef bint open_server(Tls* tls, void* context, bint framed, Buffer* output) noexcept nogil
cdef Step shake_hands(Tls* tls) noexcept nogil
cdef size_t decrypt(Tls* tls, uint8_t* to, size_t room) noexcept nogil
cdef bint encrypt(Tls* tls, const uint8_t* data, size_t size) noexcept nogil
cdef void say_end(Tls* tls) noexcept nogil
cdef void close_tls(Tls* tls) noexcept nogil
cdef const char* tls_fault_name(const Tls* tls) noexcept nogil
cdef bint peer_certificate(const Tls* tls, string* der) noexcept nogil
cdef object fault_text(const Tls* tls, str peer)

# of this module alone
cdef int read_input(void* bio, char* to, int room) noexcept nogil
cdef int write_output(void* bio, const char* data, int size) noexcept nogil
cdef long control_bio(void* bio, int command, long number, void* pointer) noexcept nogil
cdef int refuse_password(char* to, int room, int writing, void* data) noexcept nogil
cdef object reason_text(unsigned long code)
cdef const char* reason_name(unsigned long code) noexcept nogil
cdef bint open_end(Tls* tls, void* context, Buffer* output) noexcept nogil
cdef size_t check_claims(Tls* tls) noexcept nogil
cdef void fail(Tls* tls) noexcept nogil
