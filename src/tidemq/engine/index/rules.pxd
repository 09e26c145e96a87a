from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from tidemq.engine.base.system cimport RELAXED, add_int, pthread_mutex_t
from tidemq.wire.protocol cimport Span

cdef enum:
    ACTION_PUBLISH = 1
    ACTION_SUBSCRIBE = 2
    NAMES_USER = 1               # a rule's filter has the user's name in it
    NAMES_CLIENT = 2
    USER_BYTE = 0xFE             # stands for the name in a rule's filter; no byte of UTF-8
    CLIENT_BYTE = 0xFF
    EVERY_MESSAGE = 0x3F         # a set of messages: bit QoS, and bit QoS + 3 where they are retained
    ANY_USER = 0
    ONE_USER = 1
    NO_USER = 2                  # clients without a user name

cdef cppclass Rule:
    bool allows
    uint8_t actions
    uint8_t messages             # that it is about; of a subscription the lower three bits
    uint8_t names                # NAMES_*
    uint8_t whose                # ANY_USER, ONE_USER or NO_USER
    string user
    string group                 # empty: any
    string client                # `*` stands for any characters; empty: any
    bool has_network
    uint8_t network[16]          # IPv4 as ::ffff:0:0/96
    uint8_t prefix               # bits
    string filter

cdef struct Line:                # what is needed of a rule to judge
    const uint8_t* filter        # in the policy
    uint32_t size
    bool allows
    uint8_t actions
    uint8_t messages
    uint8_t names

# All rules, as they were read. Freed with the last that holds it.
cdef cppclass Policy:
    int references               # atomic
    vector[Rule] rules
    vector[uint32_t] selective   # numbers of those that are not about every client
    pthread_mutex_t lock
    unordered_map[string, RuleSet*] sets   # by the numbers of their selective rules; under lock

# The rules that are about some clients, in their order. One for all clients that have the same.
cdef cppclass RuleSet:
    int references               # under the policy's lock
    uint64_t number              # not used again
    Policy* policy               # held; its lines are of this one, and of the client's own
    string key                   # in the policy's sets
    bool known                   # it is in there
    vector[Line] lines
    bool personal                # a filter has a client's name in it: what is found holds for one client only

# Whom a decision is about.
cdef struct Asker:
    Span user
    bool has_user
    Span client_id
    Span groups                  # each ends with a NUL
    bool has_address
    uint8_t address[16]

cdef struct Judgement:           # who may publish what to a topic, see authorising
    uint64_t number              # of a set of rules, or of a connection; 0: free
    int64_t until_ms             # of what an authoriser has answered
    uint8_t known                # sets of messages
    uint8_t allowed

cdef Policy* new_policy() noexcept nogil
cdef void close_policy(Policy* policy, int64_t* tally) noexcept nogil
cdef void release_policy(Policy* policy, int64_t* tally) noexcept nogil
cdef RuleSet* find_rules(Policy* policy, const Asker* asker, int64_t* counter, int64_t* tally) noexcept nogil
cdef RuleSet* make_rules(Policy* own, Policy* policy, const Asker* asker, int64_t* tally) noexcept nogil
cdef void release_rules(RuleSet* rules, int64_t* tally) noexcept nogil
cdef bint fits_level(Span name) noexcept nogil
cdef uint8_t judge(const RuleSet* rules, const Asker* asker, Span topic, uint8_t action) noexcept nogil

cdef inline void hold_policy(Policy* policy) noexcept nogil:
    add_int(&policy.references, 1, RELAXED)

# of this module alone
cdef int64_t _policy_bytes(const Policy* policy) noexcept nogil
cdef int64_t _set_bytes(const RuleSet* rules) noexcept nogil
cdef bint _like(const string* pattern, Span text) noexcept nogil
cdef bint _is_member(const string* group, Span groups) noexcept nogil
cdef bint _is_within(const Rule* rule, unsigned char* address) noexcept nogil
cdef bint _is_about(const Rule* rule, const Asker* asker) noexcept nogil
cdef RuleSet* _new_rules(Policy* policy) noexcept nogil
cdef void _count_set(const RuleSet* rules, int64_t* tally) noexcept nogil
cdef void _add_lines(RuleSet* rules, Policy* policy, const Asker* asker) noexcept nogil
cdef bint _is_wild(const uint8_t* text, uint32_t size) noexcept nogil
cdef bint _follows(const Line* rule, uint32_t* i, Span topic, uint32_t* j, const Asker* asker) noexcept nogil
cdef uint32_t _level_end(const uint8_t* text, uint32_t size, uint32_t at) noexcept nogil
cdef bint _is_rest(const uint8_t* text, uint32_t size, uint32_t at) noexcept nogil
cdef bint _covers(const Line* rule, Span topic, const Asker* asker) noexcept nogil
cdef bint _meets(const Line* rule, Span filter, const Asker* asker) noexcept nogil
