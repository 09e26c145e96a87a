from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.base.system cimport RELAXED, add_int
from tidemq.wire.protocol cimport Span

cdef enum:
    REWRITES_PUBLISH = 1
    REWRITES_SUBSCRIBE = 2
    CAPTURES_MAX = 9             # wildcards of a rule's filter

cdef cppclass Rewrite:
    string filter
    uint32_t fixed               # bytes that topics begin with, see `fixed_bytes`
    string to                    # a level `$1` to `$9` stands for what that wildcard of `filter` stands for
    uint8_t actions

cdef cppclass Lifetime:          # of what is retained
    string filter
    uint32_t fixed               # as above
    int64_t ttl_ms

cdef cppclass ConnectSubscription:
    string filter                # with USER_BYTE and CLIENT_BYTE, see rules
    uint8_t names                # NAMES_*
    uint8_t options              # as in SUBSCRIBE

# All of them, as they were read; constant once made. Freed with the last that holds it.
cdef cppclass TopicRules:
    int references               # atomic
    vector[Rewrite] rewrites
    vector[Lifetime] lifetimes
    vector[ConnectSubscription] subscriptions
    bool exclusive               # a client may have a filter to itself
    uint32_t delay_s_max         # 0: nothing may be delayed
    int64_t delayed_max          # messages that wait, and
    int64_t delayed_bytes_max    # their bytes

cdef TopicRules* new_topic_rules() noexcept nogil
cdef void close_topic_rules(TopicRules* rules, int64_t* tally) noexcept nogil
cdef void release_topic_rules(TopicRules* rules, int64_t* tally) noexcept nogil
cdef uint32_t fixed_bytes(const string* filter) noexcept nogil
cdef uint16_t find_rewrite(const TopicRules* rules, Span topic, uint8_t action) noexcept nogil
cdef uint16_t find_lifetime(const TopicRules* rules, Span topic) noexcept nogil
cdef bint rewrite(const TopicRules* rules, uint16_t number, Span topic, string* out) noexcept nogil

cdef inline void hold_topic_rules(TopicRules* rules) noexcept nogil:
    add_int(&rules.references, 1, RELAXED)

# of this module alone
cdef int64_t _bytes(const TopicRules* rules) noexcept nogil
cdef bint _begins_otherwise(const string* filter, uint32_t fixed, Span topic) noexcept nogil
cdef uint32_t _level_end(Span text, uint32_t at) noexcept nogil
cdef bint _same_level(Span pattern, uint32_t i, Span text, uint32_t j) noexcept nogil
cdef void _note(Span* captures, int number, Span found) noexcept nogil
cdef bint _capture(const string* filter, Span topic, Span* captures) noexcept nogil
cdef void _expand(const string* to, const Span* captures, string* out) noexcept nogil
