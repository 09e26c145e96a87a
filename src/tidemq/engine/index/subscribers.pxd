from libc.stdint cimport uint16_t, uint32_t, uint8_t

cdef enum SubscriptionOption:          # the option byte of SUBSCRIBE, 5.0 section 3.8.3.1
    OPTION_QOS = 0x03
    OPTION_NO_LOCAL = 0x04
    OPTION_RETAIN_AS_PUBLISHED = 0x08
    OPTION_RETAIN_HANDLING = 0x30
    OPTION_STORED = 0x40                # ours: the session outlives its connection
    OPTION_BACKLOG = 0x80               # ours: not everything that is retained has been sent to it
    OPTION_ONLINE = 0x80                # ours, in the index, of a group's member: its client is there

cdef enum SubscriptionKind:
    PLAIN = 0
    GROUP = 1                          # in place of the session a SharedGroup*
    SET = 2                            # in place of the session a SubscriberSet*

cdef enum:
    STREAM_REACTOR = 0xFFFF            # in place of a reactor: a stream, its number in `subscription_id`
    PLUGIN_REACTOR = 0xFFFE            # plugins, PLUGIN_* bits in `subscription_id`
    NODE_REACTOR = 0xFFFD              # another node, its slot in `subscription_id`; the least of these. In a group, its
                                       # slot and, above four bits, how many members it has online

cdef enum:
    SET_INDEXED = 64                   # capacity from which a set carries a table

cdef struct Subscription:              # 16 bytes
    void* session                      # not NULL
    uint32_t subscription_id           # 0: none
    uint16_t reactor                   # the index of the reactor that owns the session
    uint8_t options                    # SubscriptionOption bits
    uint8_t kind                       # SubscriptionKind; PLAIN in what match_topic reports and in members

cdef struct SubscriberSet:             # `capacity` items, then from SET_INDEXED up a table from session to item
    uint32_t count
    uint32_t capacity
    uint32_t sessions                  # of the items, so many are of sessions
    Subscription items[1]

# Whether it is of a session, not of what only has filters.
cdef inline bint is_session(const Subscription* item) noexcept nogil:
    return item.kind == PLAIN and item.reactor < NODE_REACTOR

cdef Subscription* find_subscriber(SubscriberSet* members, void* session) noexcept nogil   # or NULL
# Both return the set, which may have moved: NULL when it is empty.
cdef SubscriberSet* add_subscriber(SubscriberSet* members, Subscription subscription) noexcept nogil
cdef SubscriberSet* drop_subscriber(SubscriberSet* members, Subscription* item) noexcept nogil

# The same for what a filter's node holds: nothing (session NULL), one item, or, of kind SET, a set of at least two.
cdef Subscription* find_held(Subscription* held, void* session) noexcept nogil   # or NULL
cdef void hold(Subscription* held, Subscription subscription) noexcept nogil     # of a session that is not held yet
cdef void let_go(Subscription* held, Subscription* item) noexcept nogil          # what find_held found
cdef uint32_t sessions_of(Subscription* held) noexcept nogil                     # how many of them are sessions

# of this module alone
cdef size_t set_bytes(uint32_t capacity) noexcept nogil
cdef uint32_t* table_of(SubscriberSet* members) noexcept nogil
cdef uint32_t home_entry(SubscriberSet* members, uint32_t position) noexcept nogil
cdef uint32_t entry_of(SubscriberSet* members, void* session) noexcept nogil
cdef void enter_position(SubscriberSet* members, uint32_t position) noexcept nogil
cdef uint32_t entry_holding(SubscriberSet* members, uint32_t position) noexcept nogil
cdef void leave_table(SubscriberSet* members, uint32_t position) noexcept nogil
cdef SubscriberSet* resize_set(SubscriberSet* members, uint32_t capacity) noexcept nogil
cdef SubscriberSet* set_of(Subscription* held) noexcept nogil
