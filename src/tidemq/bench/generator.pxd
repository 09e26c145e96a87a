from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from tidemq.bench.connection cimport Connection
from tidemq.bench.receiver cimport Load, Tally

cdef class Generator:
    cdef readonly object workload
    cdef vector[Connection] connections   # publishers, then subscribers (in a mesh the same), then idle ones
    cdef vector[uint32_t] ready           # connections with something to do now
    cdef vector[uint32_t] serving         # the same of the running turn
    cdef vector[uint32_t] held            # publishers that wait for their subscribers
    cdef vector[uint8_t] frames           # one PUBLISH of each publisher
    cdef vector[uint64_t] expected        # of each subscriber and each publisher that it hears
    cdef vector[uint8_t*] missing
    cdef vector[uint8_t] input
    cdef Load load
    cdef Tally tally
    cdef int epoll
    cdef int timer                        # of paced runs
    cdef uint16_t port
    cdef uint32_t publishers, subscribers, first_subscriber, topics, topics_used, window
    cdef uint64_t outstanding_max         # each publisher; 0: no bound
    cdef uint64_t interval_ns             # paced: between two messages of all; 0: not paced
    cdef size_t frame_size, topic_digits_at, packet_id_at, payload_at, block_size
    cdef uint32_t opened, open_start, open_end, ready_count, closed_count   # connections that take part
    cdef bint publishing, polls, draining, random
    cdef uint64_t noise                   # state of the random numbers in payloads
    cdef uint64_t deliveries
    cdef uint64_t due                     # paced: messages encoded, all publishers
    cdef int64_t started_ns, progress_ns, cpu_ns

    cdef void connect_for(self, int64_t slice_ns) noexcept nogil
    cdef void publish_for(self, int64_t slice_ns) noexcept nogil
    cdef void linger_for(self, int64_t limit_ns) noexcept nogil
    cdef bint finished(self) noexcept nogil
    cdef void turn(self, int timeout_ms) noexcept nogil
    cdef void enqueue(self, uint32_t index) noexcept nogil
    cdef void take_event(self, uint32_t index, uint32_t events) noexcept nogil
    cdef void serve(self, uint32_t index) noexcept nogil
    cdef bint may_publish(self, Connection* c) noexcept nogil
    cdef void go_on(self, Connection* c) noexcept nogil
    cdef void shut(self, Connection* c) noexcept nogil
    cdef void receive(self, Connection* c) noexcept nogil
    cdef uint64_t allowance(self, Connection* c) noexcept nogil
    cdef void release_held(self) noexcept nogil
    cdef void publish(self, Connection* c) noexcept nogil
    cdef void append_messages(self, Connection* c, uint64_t count) noexcept nogil
    cdef void publish_due(self) noexcept nogil
