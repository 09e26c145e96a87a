from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t

from tidemq.bench.linux cimport sockaddr, sockaddr_storage, socklen_t
from tidemq.net.transport cimport Transport

cdef struct Address:
    int family
    sockaddr_storage storage
    socklen_t size

cdef enum Stage:
    CLOSED = 0
    CONNECTING = 1     # TCP handshake
    GREETING = 2       # CONNECT sent, or TLS and WebSocket on their way; CONNACK awaited
    ACCEPTED = 3       # CONNACK has come
    SUBSCRIBING = 4    # SUBSCRIBEs sent, SUBACKs awaited
    READY = 5

cdef struct Gaps:          # one bit a message that was skipped and has not come since
    uint8_t* bits
    uint64_t size              # bytes; 0 until one is skipped

cdef struct Connection:
    int fd
    Stage stage
    Transport* transport       # TLS, WebSocket; NULL: the socket has the bytes of MQTT
    bint publishes
    bint subscribes
    bint echoes                # publishes only what it receives, as soon as it has
    bint timed                 # what it receives goes into the histogram of latencies
    bint readable              # the socket may hold more: it was not read empty since its last event
    bint writable              # the socket took all that it was given
    bint hung_up               # the peer closed: read to the end, then close
    bint queued                # listed in Loop.ready
    bint held                  # listed in Loop.held: too many of its messages are outstanding
    uint8_t* output            # [output_start, output_end) waits to be sent
    size_t output_start
    size_t output_end
    size_t output_size
    uint8_t* partial           # the beginning of a packet whose rest has not come yet
    size_t partial_size
    uint8_t* requests          # SUBSCRIBEs, to be sent after CONNACK
    size_t requests_size
    uint32_t answers_due       # CONNACK and SUBACKs
    # of a publisher
    uint32_t publisher
    uint32_t place             # among the publishers that begin: in pairs that bounce, every other
    uint64_t sent              # messages encoded; the next one's sequence number
    uint32_t in_flight         # QoS 1 and 2
    uint32_t window            # of these, as many as the broker allows
    int64_t asked_ns           # when it began to connect; then, when its last block of messages was encoded
    const uint64_t* confirmed  # how many of its messages its only receiver has; NULL where there are several
    uint16_t packet_id         # next PUBLISH's
    uint16_t acked_id          # next PUBACK's or PUBREC's, if the broker answers in order
    uint16_t completed_id      # next PUBCOMP's
    const uint8_t* frame       # one PUBLISH of this publisher, to be patched
    # of a subscriber
    uint32_t heard_first       # the first publisher that it hears
    uint64_t* expected         # next sequence number from each publisher that it hears
    Gaps* gaps                 # for each, what was skipped
    uint32_t releasing         # QoS 2: PUBREC sent, PUBREL awaited

cdef int open_socket(Connection* c, int epoll, uint32_t index, const Address* to, const Address* source) noexcept nogil
cdef const sockaddr* sockaddr_of(const Address* address) noexcept nogil
cdef int socket_fault(Connection* c) noexcept nogil
cdef bint send_output(Connection* c) noexcept nogil
cdef bint unsent(const Connection* c) noexcept nogil
cdef Py_ssize_t receive_wrapped(Connection* c, uint8_t* wire, size_t size, uint8_t* to) noexcept nogil
cdef void say_goodbye(Connection* c) noexcept nogil
cdef void reserve(Connection* c, size_t size) noexcept nogil
cdef void append_ack(Connection* c, uint8_t first, uint16_t packet_id) noexcept nogil
cdef uint16_t following_id(uint16_t packet_id) noexcept nogil
cdef void append_bytes(Connection* c, const uint8_t* data, size_t size) noexcept nogil

# of this module alone
cdef bint send_wrapped(Connection* c) noexcept nogil
