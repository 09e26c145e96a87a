from libc.stdint cimport uint32_t, uint8_t
from libcpp.vector cimport vector

cdef struct Peer:
    int fd
    bint subscribes
    bint readable
    bint writable
    bint queued            # listed in Relay.ready
    uint8_t* partial       # the beginning of a frame whose rest has not come yet
    size_t partial_size
    uint8_t* waiting       # [waiting_start, waiting_end) did not fit into the socket
    size_t waiting_start
    size_t waiting_end
    size_t waiting_size

cdef class Relay:
    cdef vector[Peer] peers
    cdef vector[uint32_t] subscribers
    cdef vector[uint32_t] ready
    cdef vector[uint32_t] serving
    cdef vector[uint8_t] block     # what this turn read and will pass on
    cdef size_t block_used, frame_size
    cdef int epoll, listener

    cdef void turn(self) noexcept nogil
    cdef void accept_all(self) noexcept nogil
    cdef void enqueue(self, uint32_t index) noexcept nogil
    cdef void read(self, uint32_t index) noexcept nogil
    cdef void greet(self, uint32_t index, const uint8_t* data) noexcept nogil
    cdef void shut(self, Peer* peer) noexcept nogil
    cdef bint blocked(self) noexcept nogil
    cdef void pass_on(self) noexcept nogil
    cdef void hand(self, Peer* peer) noexcept nogil

# of this module alone
cdef void keep(Peer* peer, uint8_t* data, size_t size) noexcept nogil
