from libc.stdint cimport uint32_t, uint64_t

from tidemq.engine.state.client cimport LocalGroup, Membership, Session
from tidemq.engine.state.queue cimport Entry
from tidemq.engine.state.reactor cimport Reactor

cdef enum:
    GIVE_A_TURN = 1024           # messages of groups' queues that go out at once, and as many in their own time

cdef Session* shard_of(Reactor* r, LocalGroup* group, bint stored) noexcept nogil
cdef void load_shard(Reactor* r, uint64_t number, uint64_t group) noexcept nogil
cdef void serve_group(Reactor* r, LocalGroup* group) noexcept nogil
cdef void serve_shard(Reactor* r, Session* shard) noexcept nogil
cdef void look_at_room(Reactor* r, Session* s) noexcept nogil
cdef void continue_groups(Reactor* r) noexcept nogil
cdef void tend_shards(Reactor* r) noexcept nogil
cdef void adopt_shard(Reactor* r, Session* shard) noexcept nogil

# of this module alone
cdef Session* _add_shard(Reactor* r, uint64_t number, uint64_t group) noexcept nogil
cdef Session* _make_shard(Reactor* r, uint64_t group, bint stored) noexcept nogil
cdef void _give(Reactor* r, Session* shard, Entry* entry, Membership* member) noexcept nogil
cdef void _serve(Reactor* r, LocalGroup* group, Session* shard) noexcept nogil
cdef void _forget_shard(Reactor* r, Session* shard) noexcept nogil
cdef void _move_shard(Reactor* r, Session* shard, int target) noexcept nogil
cdef bint _is_settled(Reactor* r, Session* shard) noexcept nogil
cdef void _let_go(Reactor* r, Session* shard) noexcept nogil
cdef bint _find_elsewhere(Reactor* r, uint64_t group, int* elsewhere, bint* away) noexcept nogil
cdef bint _tend_empty(Reactor* r, size_t at) noexcept nogil
