from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from tidemq.bench.histogram cimport Histogram

cdef enum Stage:
    CLOSED = 0
    CONNECTING = 1     # TCP handshake
    GREETING = 2       # CONNECT sent, CONNACK awaited
    SUBSCRIBING = 3    # SUBSCRIBE sent, SUBACK awaited
    READY = 4

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
    # of a publisher
    uint32_t publisher
    uint64_t sent              # messages encoded; the next one's sequence number
    uint32_t in_flight         # QoS 1 and 2
    uint16_t packet_id         # next PUBLISH's
    uint16_t acked_id          # next PUBACK's or PUBREC's, if the broker answers in order
    uint16_t completed_id      # next PUBCOMP's
    const uint8_t* frame       # one PUBLISH of this publisher, to be patched
    # of a subscriber
    uint32_t subscriber
    uint64_t* expected         # next sequence number from each publisher that it hears
    uint8_t** missing          # for each, the bits of skipped messages; NULL until one is skipped
    uint32_t releasing         # QoS 2: PUBREC sent, PUBREL awaited
    uint32_t filters_sent

cdef class Generator:
    cdef readonly object workload
    cdef vector[Connection] connections
    cdef vector[uint32_t] ready        # connections with something to do now
    cdef vector[uint32_t] serving      # the same of the running turn
    cdef vector[uint32_t] held
    cdef vector[uint8_t] frames
    cdef vector[uint64_t] expected
    cdef vector[uint8_t*] missing
    cdef vector[uint8_t] input
    cdef Histogram latency
    cdef int epoll
    cdef int timer
    cdef uint16_t port
    # the workload as C numbers
    cdef uint32_t publishers, subscribers, first_subscriber, heard, topics, topics_used, window, payload_size
    cdef uint64_t messages, outstanding_max, interval_ns
    cdef int qos, version
    cdef bint pairs
    cdef size_t frame_size, topic_at, topic_size, packet_id_at, payload_at, block_size
    # progress
    cdef uint32_t opened, ready_count, closed_count
    cdef bint publishing
    cdef uint64_t due                  # paced: messages encoded, all publishers
    cdef uint64_t arrived, missing_count, duplicates, disordered, foreign, ack_errors
    cdef int64_t now_ns, started_ns, progress_ns, cpu_ns
    cdef int refusal                   # CONNACK or SUBACK code that refused us

    cdef void turn(self, int timeout_ms) noexcept nogil
    cdef void open_next(self) noexcept nogil
    cdef void enqueue(self, uint32_t index) noexcept nogil
    cdef void take_event(self, uint32_t index, uint32_t events) noexcept nogil
    cdef void serve(self, uint32_t index) noexcept nogil
    cdef void shut(self, Connection* c) noexcept nogil
    cdef void receive(self, Connection* c) noexcept nogil
    cdef size_t parse(self, Connection* c, const uint8_t* data, size_t size) noexcept nogil
    cdef void take_packet(self, Connection* c, uint8_t first, const uint8_t* body, size_t size) noexcept nogil
    cdef void take_publish(self, Connection* c, uint8_t first, const uint8_t* body, size_t size) noexcept nogil
    cdef void take_unexpected(self, Connection* c, uint32_t slot, uint64_t sequence) noexcept nogil
    cdef void take_ack(self, Connection* c, uint8_t packet_type, uint16_t packet_id) noexcept nogil
    cdef void append_connect(self, Connection* c) noexcept nogil
    cdef void append_subscribe(self, Connection* c) noexcept nogil
    cdef uint64_t allowance(self, Connection* c) noexcept nogil
    cdef void publish(self, Connection* c) noexcept nogil
    cdef void append_messages(self, Connection* c, uint64_t count) noexcept nogil
    cdef void publish_due(self) noexcept nogil
    cdef void flush(self, Connection* c) noexcept nogil
    cdef void release_held(self) noexcept nogil
    cdef void connect_for(self, int64_t slice_ns) noexcept nogil
    cdef void publish_for(self, int64_t slice_ns) noexcept nogil
    cdef bint finished(self) noexcept nogil
    cdef bint arm(self, uint64_t interval_ns) noexcept nogil
