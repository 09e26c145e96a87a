from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum Stage:
    CLOSED = 0
    CONNECTING = 1     # TCP handshake
    GREETING = 2       # CONNECT sent, CONNACK awaited
    ACCEPTED = 3       # CONNACK has come
    SUBSCRIBING = 4    # SUBSCRIBEs sent, SUBACKs awaited
    READY = 5

cdef struct Connection:
    int fd
    Stage stage
    bint publishes
    bint subscribes
    bint readable              # the socket may hold more: it was not read empty since its last event
    bint writable              # the socket took all that it was given
    bint hung_up               # the peer closed: read to the end, then close
    bint queued                # listed in Generator.ready
    bint held                  # listed in Generator.held: too many of its messages are outstanding
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
    uint64_t sent              # messages encoded; the next one's sequence number
    uint32_t in_flight         # QoS 1 and 2
    int64_t asked_ns           # when the last block of messages was encoded
    uint16_t packet_id         # next PUBLISH's
    uint16_t acked_id          # next PUBACK's or PUBREC's, if the broker answers in order
    uint16_t completed_id      # next PUBCOMP's
    const uint8_t* frame       # one PUBLISH of this publisher, to be patched
    # of a subscriber
    uint32_t subscriber
    uint64_t* expected         # next sequence number from each publisher that it hears
    uint8_t** missing          # for each, the bits of skipped messages; NULL until one is skipped
    uint32_t releasing         # QoS 2: PUBREC sent, PUBREL awaited

cdef bint open_socket(Connection* c, int epoll, uint32_t index, uint16_t port) noexcept nogil
cdef bint is_connected(Connection* c) noexcept nogil
cdef bint send_output(Connection* c) noexcept nogil
cdef void reserve(Connection* c, size_t size) noexcept nogil
cdef void append_ack(Connection* c, uint8_t first, uint16_t packet_id) noexcept nogil
cdef uint16_t following_id(uint16_t packet_id) noexcept nogil
cdef void append_bytes(Connection* c, const uint8_t* data, size_t size) noexcept nogil
