from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool
from libcpp.vector cimport vector

from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.routing cimport CacheEntry, CacheSlot, Group, TopicCache
from tidemq.engine.index.subscribers cimport Subscription
from tidemq.engine.index.subscriptions cimport SharedGroup
from tidemq.wire.protocol cimport Span

cdef struct Identifier:          # of a subscription, while a topic is looked up
    uint32_t receiver            # its place in the entry
    uint32_t value
    bool own                     # for messages that the receiver published itself, too

cdef uint64_t hash_text(uint64_t seed, Span text) noexcept nogil
cdef CacheEntry* find_receivers(Reactor* r, const Span* topic) noexcept nogil
cdef void rename_topic(Reactor* r, Span* topic) noexcept nogil
cdef Group* find_cached_group(CacheEntry* entry, uint64_t number) noexcept nogil
cdef void shrink_cache(Reactor* r) noexcept nogil
cdef void free_cache(Reactor* r) noexcept nogil
# About what all topics in it take.
cdef int64_t cache_bytes(const TopicCache* cache) noexcept nogil

# of this module alone
cdef void _grow(TopicCache* cache) noexcept nogil
cdef void _add_receiver(
    CacheEntry* entry, Subscription* subscription, vector[Identifier]* found,
) noexcept nogil
cdef void _place_identifiers(CacheEntry* entry, vector[Identifier]* found) noexcept nogil
cdef void _add_group(Reactor* r, CacheEntry* entry, SharedGroup* common) noexcept nogil
cdef void _add_nodes(Group* group, const SharedGroup* common) noexcept nogil
cdef void _forget_nodes(CacheEntry* entry) noexcept nogil
cdef uint64_t _weigh(CacheEntry* entry) noexcept nogil
cdef void _match(Reactor* r, CacheEntry* entry, Span topic) noexcept nogil
cdef void _ask_topic_rules(Reactor* r, CacheEntry* entry, Span topic) noexcept nogil
cdef CacheSlot* _choose_slot(Reactor* r, uint64_t h) noexcept nogil
cdef void _forget_topics(Reactor* r, uint64_t weight_max, size_t topics_max) noexcept nogil
cdef void _renew(Reactor* r, CacheEntry* entry, Span topic) noexcept nogil
