from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from tidemq.engine.base.hashing cimport SeededHash
from tidemq.engine.index.levels cimport LevelNode, LevelTree
from tidemq.engine.index.marks cimport MARKS_OF_TOPIC, Marks
from tidemq.engine.index.subscribers cimport SubscriberSet, Subscription
from tidemq.engine.base.system cimport ACQUIRE, RELAXED, load_u64, pthread_rwlock_t
from tidemq.wire.protocol cimport Span

cdef struct SharedGroup:               # one group name on one filter
    uint64_t id                        # never used again for another group
    Span name
    Span filter
    SubscriberSet* members             # never empty: members.items[0 .. members.count)
    uint32_t locals                    # of them are sessions of this node
    uint32_t stored                    # of these have OPTION_STORED
    uint32_t reactors                  # numbers in `online`
    uint32_t* online                   # by reactor: how many of them have OPTION_ONLINE
    uint32_t nodes                     # bit mask of other nodes that have sessions in it, each a member, and
    uint32_t online_there[16]          # how many of them are online

cdef cppclass SubscriptionIndex:
    pthread_rwlock_t lock
    uint64_t version                   # read it with read_version
    Marks marks                        # which topics the changes concern
    uint64_t count                     # subscriptions, members of shared groups included
    LevelTree* filters                 # filter -> Subscription, in the node's value and detail
    LevelTree* groups                  # group name, then filter -> SharedGroup*
    unordered_map[uint64_t, SharedGroup*] groups_by_id
    uint64_t last_group_id
    bool noting                        # interest
    unordered_map[string, bool, SeededHash] interest   # filters that have sessions now, or none any more: see interest

cdef cppclass Matches:                 # the caller's; reuse one per thread, its capacity is kept
    vector[Subscription] subscriptions
    vector[SharedGroup*] groups        # valid under the lock, as long as the version has not moved
    vector[uint32_t] frontier          # scratch; of the last look-up, the nodes that it went through
    vector[LevelNode*] nodes           # scratch

cdef SubscriptionIndex* new_subscription_index() noexcept nogil
cdef void free_subscription_index(SubscriptionIndex* index) noexcept nogil

cdef void lock_shared(SubscriptionIndex* index) noexcept nogil      # not twice by one thread
cdef void unlock_shared(SubscriptionIndex* index) noexcept nogil
cdef void lock_exclusive(SubscriptionIndex* index) noexcept nogil
cdef void unlock_exclusive(SubscriptionIndex* index) noexcept nogil

# These need no lock. A result of match_topic holds as long as the version has not moved since before the match; and
# when it has, as long as none of the topic's marks has. Read the version first.
cdef inline uint64_t read_version(SubscriptionIndex* index) noexcept nogil:
    return load_u64(&index.version, ACQUIRE)

cdef inline bint has_moved(SubscriptionIndex* index, const uint16_t* marks, uint64_t version) noexcept nogil:
    cdef int at
    for at in range(MARKS_OF_TOPIC):
        if load_u64(&index.marks.moved[marks[at]], RELAXED) > version:
            return True
    return False

# `group` is empty for a plain subscription. Both need the exclusive lock and return whether the subscription existed.
cdef bint put_subscription(SubscriptionIndex* index, Span filter, Span group, Subscription subscription) noexcept nogil
cdef bint remove_subscription(SubscriptionIndex* index, Span filter, Span group, void* session) noexcept nogil
# Of all filters of a part of the tree, `count` nodes from `begin` on: false when there are no more. How many went is added
# to `dropped`; they are not counted as subscriptions.
cdef bint drop_everywhere(
    SubscriptionIndex* index, void* session, size_t begin, size_t count, size_t* dropped
) noexcept nogil
# What is known of topics may be wrong: of those that a filter matches, or of all. The exclusive lock is held.
cdef void move_filter(SubscriptionIndex* index, Span filter) noexcept nogil
cdef void move_all(SubscriptionIndex* index) noexcept nogil
# That a member's client has come or gone; needs the exclusive lock.
cdef void mark_online(SubscriptionIndex* index, uint64_t group_id, void* session, bint online) noexcept nogil

# These need the shared (or the exclusive) lock.
cdef void match_topic(SubscriptionIndex* index, Span topic, Matches* out) noexcept nogil   # appends to `out`
cdef Subscription* held_by(LevelNode* node) noexcept nogil      # what a filter holds, see subscribers
cdef SharedGroup* find_group(SubscriptionIndex* index, uint64_t group_id) noexcept nogil   # NULL: gone
cdef SharedGroup* find_group_by_name(SubscriptionIndex* index, Span filter, Span group) noexcept nogil

# of this module alone
cdef void _move(SubscriptionIndex* index, uint16_t mark) noexcept nogil
cdef bint is_equal(Subscription* one, Subscription* other) noexcept nogil
cdef bint remove_plain(SubscriptionIndex* index, Span filter, void* session) noexcept nogil
cdef bint remove_member(SubscriptionIndex* index, Span filter, Span group, void* session) noexcept nogil
cdef void report(Subscription* item, Matches* out) noexcept nogil
cdef Span copy_text(Span text, uint8_t* to) noexcept nogil
cdef SharedGroup* open_group(SubscriptionIndex* index, Span filter, Span name) noexcept nogil
cdef void close_group(SubscriptionIndex* index, SharedGroup* group) noexcept nogil
cdef void count_member(SharedGroup* group, Subscription* member, bint comes) noexcept nogil
