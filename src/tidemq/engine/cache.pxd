from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool

from tidemq.engine.state cimport CacheEntry, Group, Reactor, TopicCache
from tidemq.wire.protocol cimport Span

cdef struct Identifier:          # of a subscription, while a topic is looked up
    uint32_t receiver            # its place in the entry
    uint32_t value
    bool own                     # for messages that the receiver published itself, too

cdef CacheEntry* find_receivers(Reactor* r, const Span* topic) noexcept nogil
cdef Group* find_cached_group(CacheEntry* entry, uint64_t number) noexcept nogil
cdef void shrink_cache(Reactor* r) noexcept nogil
cdef void free_cache(Reactor* r) noexcept nogil
# About what all topics in it take.
cdef int64_t cache_bytes(const TopicCache* cache) noexcept nogil
