from libc.stdint cimport int64_t

from tidemq.engine.state cimport CacheEntry, Group, Reactor, TopicCache
from tidemq.wire.protocol cimport Span

cdef CacheEntry* find_receivers(Reactor* r, const Span* topic) noexcept nogil
cdef Group* find_cached_group(CacheEntry* entry, unsigned int number) noexcept nogil
cdef void free_cache(Reactor* r) noexcept nogil
# About what all topics in it take.
cdef int64_t cache_bytes(const TopicCache* cache) noexcept nogil
