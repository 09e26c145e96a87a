from libc.stdint cimport uint32_t, uint64_t, uint8_t

from tidemq.engine.state.client cimport LocalGroup, Membership, Session
from tidemq.engine.state.reactor cimport Reactor

cdef LocalGroup* local_group(Reactor* r, uint64_t number) noexcept nogil
cdef void forget_group(Reactor* r, size_t at) noexcept nogil
cdef void free_groups(Reactor* r) noexcept nogil
cdef void join_group(
    Reactor* r, Session* s, uint64_t number, uint8_t options, uint32_t subscription_id
) noexcept nogil
cdef void leave_group(Reactor* r, Session* s, uint64_t number) noexcept nogil
cdef void leave_all_groups(Reactor* r, Session* s) noexcept nogil
cdef void enter_groups(Reactor* r, Session* s, bint present) noexcept nogil
cdef bint is_present(const Session* s) noexcept nogil
cdef bint takes_more(const Session* s) noexcept nogil
cdef uint32_t draw(Reactor* r) noexcept nogil
cdef Membership* draw_ready(Reactor* r, LocalGroup* group) noexcept nogil
cdef Membership* draw_any(Reactor* r, LocalGroup* group) noexcept nogil
cdef void note_room(Membership* member) noexcept nogil
cdef uint32_t look_for_room(Reactor* r, LocalGroup* group) noexcept nogil
cdef bint is_waiting(const LocalGroup* group) noexcept nogil
cdef bint holds_any(const Session* shard) noexcept nogil
cdef void make_due(Reactor* r, LocalGroup* group) noexcept nogil

# of this module alone
cdef void _check_members(Membership* member) noexcept nogil
cdef void _place(LocalGroup* group, Membership* member, uint32_t at) noexcept nogil
cdef void _exchange(LocalGroup* group, uint32_t a, uint32_t b) noexcept nogil
cdef void _note_full(Membership* member) noexcept nogil
cdef void _enter(Reactor* r, Membership* member) noexcept nogil
cdef void _go(Membership* member) noexcept nogil
cdef void _end_membership(Reactor* r, Membership* member) noexcept nogil
