from libc.stdint cimport uint32_t, uint64_t

from tidemq.engine.state cimport Reactor, Session

cdef Session* shard_of(Reactor* r, uint32_t group, bint stored) noexcept nogil
cdef bint holds_any(const Session* shard) noexcept nogil
cdef bint takes_more(const Session* s) noexcept nogil
cdef void load_shard(Reactor* r, uint64_t number, uint32_t group) noexcept nogil
cdef void serve_shard(Reactor* r, Session* shard) noexcept nogil
cdef void serve_shards(Reactor* r) noexcept nogil
cdef void return_held(Reactor* r, Session* s) noexcept nogil
cdef void tend_shards(Reactor* r) noexcept nogil
cdef void adopt_shard(Reactor* r, Session* shard) noexcept nogil
