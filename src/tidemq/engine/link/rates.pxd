from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t

from tidemq.engine.base.listener cimport Listener
from tidemq.engine.state.client cimport ClientUsage, Connection
from tidemq.engine.state.reactor cimport Reactor

# Whether anything bounds how fast the connection is read: one look at each read.
cdef inline bint is_limited(const Connection* c) noexcept nogil:
    return c.listener.rates.limited

cdef uint32_t within_rates(Reactor* r, Connection* c, const uint8_t* data, uint32_t size) noexcept nogil
cdef void charge_messages(Reactor* r, Connection* c, const uint8_t* data, uint32_t size, bint more) noexcept nogil
cdef uint32_t room_within_rates(Reactor* r, Connection* c, uint32_t room) noexcept nogil
cdef void charge_bytes(Reactor* r, Connection* c, int64_t size) noexcept nogil
cdef void end_hold(Reactor* r, Connection* c) noexcept nogil
cdef void hold_is_over(Reactor* r, uint64_t handle) noexcept nogil
cdef int64_t may_accept_at(Reactor* r, Listener* listener) noexcept nogil
cdef void charge_accept(Reactor* r, Listener* listener) noexcept nogil

# of this module alone
cdef int64_t _left(int64_t* paid_ns, int64_t now_ns, int64_t per_s) noexcept nogil
cdef int64_t _take(int64_t* paid_ns, int64_t now_ns, int64_t count, int64_t per_s) noexcept nogil
cdef ClientUsage* _usage_of(Connection* c) noexcept nogil
cdef void _hold(Reactor* r, Connection* c, int64_t until_ns) noexcept nogil
cdef int64_t _walk(const uint8_t* data, uint32_t size, int64_t most, uint32_t* end) noexcept nogil
