from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.deque cimport deque
from libcpp.unordered_map cimport unordered_map

from tidemq.engine.base.hashing cimport SeededHash
from tidemq.engine.base.system cimport pthread_mutex_t
from tidemq.wire.protocol cimport Span

cdef struct Visits:              # of one client, from one address
    int64_t began_ms             # of the window
    int64_t banned_ms            # until when; 0: it is not
    uint32_t connects            # in the window

cdef cppclass Guard:             # everything under its lock
    pthread_mutex_t lock
    unordered_map[uint64_t, int64_t, SeededHash] addresses   # connections by address
    unordered_map[uint64_t, Visits, SeededHash] clients      # by client identifier and address, as a number
    deque[uint64_t] order        # those clients, whoever came first before
    SeededHash hash              # makes that number

cdef void init_guard(Guard* guard) noexcept nogil
cdef void destroy_guard(Guard* guard) noexcept nogil
# The number of an address: of an IPv4 address, or an IPv6 network of 64 bits. 0: it has none.
cdef uint64_t address_of_socket(int fd) noexcept nogil
cdef uint64_t address_of_bytes(const uint8_t* address) noexcept nogil
cdef bint is_local_socket(int fd) noexcept nogil
cdef bint take_place(Guard* guard, uint64_t address, int64_t most) noexcept nogil
cdef void give_place(Guard* guard, uint64_t address) noexcept nogil
cdef uint64_t visitor_of(Guard* guard, Span client_id, uint64_t address) noexcept nogil
cdef bint is_banned(Guard* guard, uint64_t visitor, int64_t now_ms) noexcept nogil
cdef bint note_visit(Guard* guard, uint64_t visitor, int64_t now_ms, uint32_t connects_max, int64_t window_ms, int64_t ban_ms, size_t clients_max) noexcept nogil

# of this module alone
cdef uint64_t _number(const uint8_t* data, int size) noexcept nogil
cdef void _forget_old(Guard* guard, int64_t now_ms, int64_t window_ms, size_t clients_max) noexcept nogil
