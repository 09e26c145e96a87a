from libc.stdint cimport uint32_t, uint64_t

from tidemq.engine.state cimport LocalGroup, Reactor, Session

cdef Session* shard_of(Reactor* r, LocalGroup* group, bint stored) noexcept nogil
cdef void load_shard(Reactor* r, uint64_t number, uint64_t group) noexcept nogil
cdef uint32_t serve_group(Reactor* r, LocalGroup* group) noexcept nogil
cdef void serve_shard(Reactor* r, Session* shard) noexcept nogil
cdef void look_at_room(Reactor* r, Session* s) noexcept nogil
cdef void continue_groups(Reactor* r) noexcept nogil
cdef void tend_shards(Reactor* r) noexcept nogil
cdef void adopt_shard(Reactor* r, Session* shard) noexcept nogil
