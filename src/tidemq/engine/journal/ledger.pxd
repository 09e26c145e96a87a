from libc.stdint cimport uint16_t, uint32_t, uint64_t

from tidemq.engine.state.client cimport Session
from tidemq.engine.state.promise cimport Promise
from tidemq.engine.state.reactor cimport Reactor

cdef uint64_t next_token(const Reactor* r) noexcept nogil
cdef bint is_owed(const Reactor* r, const Session* s) noexcept nogil
cdef uint32_t enter_promise(Reactor* r, Session* s, const Promise* promise) noexcept nogil
cdef void await_section(Reactor* r, uint32_t slot, uint64_t section) noexcept nogil
cdef bint take_promise(Reactor* r, uint32_t slot, Promise* promise) noexcept nogil

# The reactor that a token was made on, and the slot of its promise there.
cdef inline uint16_t reactor_of_token(uint64_t token) noexcept nogil:
    return <uint16_t>(token >> 32)

cdef inline uint32_t slot_of_token(uint64_t token) noexcept nogil:
    return <uint32_t>token

cdef inline uint64_t token_of(const Reactor* r, uint32_t slot) noexcept nogil:
    return <uint64_t>r.index << 32 | slot

# The promise in a slot that is taken.
cdef inline Promise* promise_at(Reactor* r, uint32_t slot) noexcept nogil:
    return &r.ledger.slots[slot - 1]
