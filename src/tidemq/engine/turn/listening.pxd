from libc.stdint cimport int64_t, uint32_t, uint64_t

from tidemq.engine.base.listener cimport Listener
from tidemq.engine.state.reactor cimport Reactor

cdef void add_listening(Reactor* r, int fd, Listener* listener, bint alone) noexcept nogil
# Whether the key of an epoll event is a listening socket's.
cdef inline bint is_listening(uint64_t key) noexcept nogil:
    return key >> 63 != 0

cdef void watch_listening(Reactor* r, uint64_t key) noexcept nogil
cdef void accept_connections(Reactor* r, uint64_t key) noexcept nogil

# of this module alone
cdef int _accepted(Reactor* r, int listening) noexcept nogil
cdef bint _is_full(Reactor* r, Listener* listener) noexcept nogil
cdef void _rest(Reactor* r, int fd, uint64_t key, int64_t until_ms) noexcept nogil
cdef bint _open(Reactor* r, int fd, Listener* listener) noexcept nogil
