from libc.stdint cimport int64_t, uint64_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.index.rules cimport Asker, Judgement
from tidemq.engine.state.client cimport Connection, Identity
from tidemq.engine.state.mail cimport Letter, Mail
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.routing cimport JUDGEMENTS, CacheEntry
from tidemq.engine.state.turning cimport Review
from tidemq.wire.packets cimport Connect
from tidemq.wire.protocol cimport Span

cdef Identity* identity_of(Connection* c) noexcept nogil
cdef void free_identity(Reactor* r, Connection* c) noexcept nogil
cdef void take_names(Reactor* r, Connection* c, Letter* letter) noexcept nogil
cdef void keep_username(Reactor* r, Connection* c, const Connect* connect) noexcept nogil
cdef void apply_rules(Reactor* r, Connection* c, const string* client_id) noexcept nogil
cdef bint is_own_state(const string* client_id, Span topic) noexcept nogil
cdef uint8_t judge_will(Connection* c, const string* client_id, const Connect* connect) noexcept nogil
cdef uint8_t judge_filter(Connection* c, Span filter, uint8_t* options) noexcept nogil
cdef string judge_filters(Connection* c, Span filters) noexcept nogil
cdef void judge_asked(Reactor* r, Mail* mail) noexcept nogil
cdef void review_subscriptions(Reactor* r, Connection* c) noexcept nogil
cdef void review(Reactor* r, Connection* c) noexcept nogil
cdef void take_policy(Reactor* r, Mail* mail) noexcept nogil
cdef void bring_up_to_date(Reactor* r, Connection* c) noexcept nogil
cdef void continue_review(Reactor* r) noexcept nogil
cdef uint8_t judge_anew(Connection* c, CacheEntry* entry) noexcept nogil
cdef void remember(Reactor* r, Connection* c, CacheEntry* entry, uint8_t message, bint allowed, int64_t ttl_ms) noexcept nogil

# The authentication method that the client has named; NULL: none.
cdef inline string* auth_method_of(const Connection* c) noexcept nogil:
    if c.identity == NULL:
        return NULL
    return c.identity.auth_method

# One message of these in a set of messages, see rules.
cdef inline uint8_t message_bit(uint8_t qos, bint retain) noexcept nogil:
    return 1 << (qos + 3 * retain)

# What was found before for a set of rules, or a connection, on the entry's topic; NULL: nothing. Inline, as these are
# for every message.
cdef inline Judgement* find_judgement(CacheEntry* entry, uint64_t number) noexcept nogil:
    cdef int way
    for way in range(JUDGEMENTS):
        if entry.judgements[way].number == number:
            return &entry.judgements[way]
    return NULL

# The messages that a client with rules may publish to the entry's topic.
cdef inline uint8_t judge_topic(Connection* c, CacheEntry* entry) noexcept nogil:
    cdef Judgement* known = find_judgement(entry, c.rules_number)
    return known.allowed if known != NULL else judge_anew(c, entry)

# of this module alone
cdef void _read_address(const string* peer, Asker* asker) noexcept nogil
cdef Asker _asker(Connection* c, const string* client_id) noexcept nogil
cdef Judgement* _judgement(CacheEntry* entry, uint64_t number) noexcept nogil
cdef uint8_t _judge_topics(Connection* c, Span topics, uint8_t* options) noexcept nogil
cdef void _begin_review(Reactor* r, Connection* c, Review* review) noexcept nogil
cdef void _review_next(Reactor* r, Connection* c, Review* review) noexcept nogil
cdef void _end_review(Reactor* r, Connection* c, Review* review) noexcept nogil
cdef bint _continue_one(Reactor* r, Connection* c, Review* review, int* left) noexcept nogil
cdef void _continue_reviews(Reactor* r, int64_t until_ns, int* left) noexcept nogil
