from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from tidemq.bench.load.board cimport Board, Common, Table
from tidemq.bench.load.client_socket cimport Address, Connection, Gaps
from tidemq.bench.load.publisher cimport Publishing
from tidemq.bench.load.receiver cimport Load, Tally

cdef enum:
    INPUT_BYTES = 262144                  # one read
    SENDS_MAX = 64                        # of one connection in a turn
    WORD_MS = 1                           # so often held publishers look what has arrived at other generators

cdef int64_t clock_ns(int clock) noexcept nogil

cdef class Loop:
    cdef vector[Connection] connections   # publishers, then subscribers (in a mesh the same), then idle ones
    cdef vector[uint32_t] ready           # connections with something to do now
    cdef vector[uint32_t] serving         # the same of the running turn
    cdef vector[uint32_t] held            # publishers that wait for their subscribers
    cdef vector[uint8_t] frames           # one PUBLISH of each publisher
    cdef vector[Gaps] gaps                # of each subscriber and each publisher that it hears
    cdef vector[uint8_t] input
    cdef vector[uint8_t] wire             # what a transport takes apart; empty where there is none
    cdef size_t partial_max               # bytes: longer than any packet that we ask for
    cdef Load load
    cdef Tally tally
    cdef Publishing publishing
    cdef Address address
    cdef vector[Address] sources          # connections take turns; none: as the system chooses
    cdef int epoll
    cdef int timer                        # of paced runs
    cdef int fault                        # errno of the first connection that failed
    cdef readonly Board board             # keeps what follows
    cdef Common* common                   # with all generators of the workload
    cdef Table* table                     # this generator's own
    cdef bint alone                       # there are no others
    cdef uint32_t subscribers             # that hear the same publishers
    cdef uint64_t messages                # each publisher may send
    cdef uint64_t of_all                  # so many may all publishers here send
    cdef uint64_t deliveries_fixed        # of a part of a run; otherwise they follow from what was sent
    cdef bint fixed
    cdef uint64_t outstanding_max         # each publisher; 0: no bound
    cdef size_t block_size
    cdef uint32_t opened, open_start, open_end, ready_count, closed_count   # connections that take part
    cdef uint32_t originators, stride     # publishers that begin; from one to the next among the connections
    cdef uint32_t place_start             # of the first of them here, among those of the workload
    cdef uint32_t connecting_max          # connections between SYN and CONNACK
    cdef double connects_per_ns           # 0: no bound
    cdef bint publishes, polls, single
    cdef bint one_by_one                  # each message is a send of its own
    cdef int64_t pinged_ns                # when PINGREQs were sent last
    cdef uint64_t due                     # paced: messages that have come due, of all publishers
    cdef int64_t connect_started_ns, started_ns, stop_ns, progress_ns

    cdef void connect_for(self, int64_t slice_ns) noexcept nogil
    cdef void open_next(self) noexcept nogil
    cdef void publish_for(self, int64_t slice_ns) noexcept nogil
    cdef void tend_for(self, int64_t slice_ns) noexcept nogil
    cdef void linger_for(self, int64_t limit_ns) noexcept nogil
    cdef void keep_alive(self) noexcept nogil
    cdef uint64_t deliveries(self) noexcept nogil
    cdef bint all_sent(self) noexcept nogil
    cdef bint settled(self) noexcept nogil
    cdef bint over(self) noexcept nogil
    cdef int pause_ms(self) noexcept nogil
    cdef void turn(self, int timeout_ms) noexcept nogil
    cdef void enqueue(self, uint32_t index) noexcept nogil
    cdef void enqueue_due(self) noexcept nogil
    cdef void take_event(self, uint32_t index, uint32_t events) noexcept nogil
    cdef void serve(self, uint32_t index) noexcept nogil
    cdef bint may_publish(self, Connection* c) noexcept nogil
    cdef void go_on(self, Connection* c) noexcept nogil
    cdef void shut(self, Connection* c) noexcept nogil
    cdef void receive(self, Connection* c) noexcept nogil
    cdef uint64_t allowance(self, Connection* c) noexcept nogil
    cdef void release_held(self) noexcept nogil
    cdef void publish(self, Connection* c) noexcept nogil
    cdef bint send_one_by_one(self, Connection* c) noexcept nogil
