"""What the rules say of a connection's messages, filters and will, and what follows when they change.

A connection holds the set of rules that are about its client. What they say of a topic is kept beside the
topic's cache entry by the set's number, so a message that was judged before costs a comparison. There also
stands what an authoriser has answered, by a number of the connection's own, for as long as it said.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t
from cython.cimports.libc.string import memcmp, memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.clock import clock_ns
from cython.cimports.tidemq.engine.base.counters import C_REFUSED_NOT_AUTHORISED, C_SUBSCRIPTIONS_REVOKED
from cython.cimports.tidemq.engine.base.event import EVENT_JUDGED, EVENT_REVOKED, Event
from cython.cimports.tidemq.engine.base.message import topic_of
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import AF_INET, AF_INET6, RELAXED, add_i64, inet_pton, load_u8
from cython.cimports.tidemq.engine.clients.authorising import find_judgement, message_bit
from cython.cimports.tidemq.engine.clients.replaying import names_stream
from cython.cimports.tidemq.engine.clients.wills import discard_will
from cython.cimports.tidemq.engine.index.rules import (
    ACTION_PUBLISH,
    ACTION_SUBSCRIBE,
    Asker,
    Judgement,
    Policy,
    RuleSet,
    find_rules,
    judge,
    make_rules,
    release_policy,
    release_rules,
)
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.link.reports import (
    connection_event,
    name_peer,
    new_event,
    post_event,
    post_report,
)
from cython.cimports.tidemq.engine.queues.backlogs import end_backlog
from cython.cimports.tidemq.engine.queues.sessions import drop_subscription
from cython.cimports.tidemq.engine.state.buckets import filters_in
from cython.cimports.tidemq.engine.state.client import CONNECTED, Connection, Identity, Session
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.engine.state.routing import JUDGEMENTS
from cython.cimports.tidemq.engine.state.turning import Review
from cython.cimports.tidemq.wire.packets import next_filter
from cython.cimports.tidemq.wire.protocol import (
    RC_NOT_AUTHORIZED,
    RC_SUCCESS,
    RC_TOPIC_NAME_INVALID,
    Span,
)
from cython.cimports.tidemq.wire.topics import split_shared

_REVIEW_NS = cython.declare(int64_t, 2_000_000)  # of a turn, for clients to be held to new rules
_REVIEWED_A_TURN = cython.declare(cython.int, 4096)  # clients, and buckets of their subscriptions
_REVIEWED_IN_A_ROW = cython.declare(cython.int, 256)  # of these buckets, before the next look at the clock
_REVIEWED_AT_ONCE = cython.declare(cython.size_t, 512)  # buckets of a client; where it has more, in parts


def _read_address(peer, asker):
    """The address in "host:port", IPv4 as ::ffff:0:0/96; a Unix socket has none."""
    host: string = peer.substr(0, peer.rfind(cython.cast(cython.char, 0x3A)))
    host = host.substr(0, host.find(cython.cast(cython.char, 0x25)))  # without the zone
    if inet_pton(AF_INET, host.c_str(), asker.address + 12) == 1:
        memset(asker.address, 0, 10)
        asker.address[10] = asker.address[11] = 0xFF
        asker.has_address = True
    else:
        asker.has_address = inet_pton(AF_INET6, host.c_str(), asker.address) == 1


def _asker(c, client_id):
    """The client by its names; its address is left out."""
    asker: Asker
    memset(cython.address(asker), 0, cython.sizeof(Asker))
    if c.identity != cython.NULL and c.identity.username != cython.NULL:
        asker.user = span_of(c.identity.username)
        asker.has_user = True
    if c.identity != cython.NULL and c.identity.groups != cython.NULL:
        asker.groups = span_of(c.identity.groups)
    asker.client_id = span_of(client_id)
    return asker


def identity_of(c):
    """What is known of the client, to be added to."""
    if c.identity == cython.NULL:
        owner: unique_ptr[Identity] = make_unique[Identity]()
        c.identity = owner.release()
    return c.identity


def free_identity(r, c):
    if c.identity == cython.NULL:
        return
    del c.identity.auth_method
    del c.identity.username
    del c.identity.groups
    del c.identity.session_name
    del c.identity.session_data
    release_policy(c.identity.own_rules, r.tally)
    del c.identity
    c.identity = cython.NULL


def take_names(r, c, letter):
    """Who the authenticator says that the client is, and rules of its own; what it does not say stays. What
    an authoriser has answered is forgotten.
    """
    c.asker_number = 0
    who: cython.pointer[Identity] = identity_of(c)
    if letter.username != cython.NULL:
        del who.username
        who.username = letter.username
        letter.username = cython.NULL
    if letter.groups != cython.NULL:
        del who.groups
        who.groups = letter.groups
        letter.groups = cython.NULL
    if letter.own_rules != cython.NULL:
        # the set that is of the ones before goes first
        release_rules(c.rules, r.tally)
        c.rules = cython.NULL
        release_policy(who.own_rules, r.tally)
        who.own_rules = letter.own_rules
        letter.own_rules = cython.NULL


def keep_username(r, c, connect):
    """For who decides on what the client does, and, where somebody has let it in as that user, for lists."""
    wanted: cython.bint = r.common.ask_subscribe or r.common.ask_publish or r.policy != cython.NULL
    wanted = (
        wanted
        or load_u8(cython.address(r.common.plugins), RELAXED)
        or r.common.ask_connect
        or c.listener.asks
    )
    wanted = wanted or r.topic_rules != cython.NULL
    wanted = wanted or auth_method_of(c) != cython.NULL  # who may authenticate again, as the same user
    if wanted and connect.has_username:
        who: cython.pointer[Identity] = identity_of(c)
        if who.username == cython.NULL:
            owner: unique_ptr[string] = make_unique[string]()
            who.username = owner.release()
            who.username.assign(cython.cast(cython.p_char, connect.username.data), connect.username.size)


def apply_rules(r, c, client_id):
    """Gives the connection the set of this reactor's rules that are about its client."""
    before: cython.pointer[RuleSet] = c.rules
    c.rules = cython.NULL
    c.rules_number = 0
    own_rules: cython.pointer[Policy] = cython.NULL
    if c.identity != cython.NULL:
        own_rules = c.identity.own_rules
    if r.policy != cython.NULL or own_rules != cython.NULL:
        name_peer(c)
        asker: Asker = _asker(c, client_id)
        _read_address(c.peer, cython.address(asker))
        numbers: cython.pointer[int64_t] = cython.address(r.common.judged)
        if own_rules != cython.NULL:
            c.rules = make_rules(own_rules, r.policy, cython.address(asker), r.tally)
        else:
            c.rules = find_rules(r.policy, cython.address(asker), numbers, r.tally)
        c.rules_number = add_i64(numbers, 1, RELAXED) if c.rules.personal else c.rules.number
    numbered: cython.bint = (c.rules != cython.NULL) == (c.rules_number != 0)
    holds(numbered, b"authorising: what is found by rules is known by their number")
    release_rules(before, r.tally)


def _judgement(entry, number):
    """The one of this number, or a new one in place of the oldest."""
    known: cython.pointer[Judgement] = find_judgement(entry, number)
    if known == cython.NULL:
        holds(entry.next_judgement < JUDGEMENTS, b"authorising: room for a judgement is made in its entry")
        known = cython.address(entry.judgements[entry.next_judgement])
        entry.next_judgement = (entry.next_judgement + 1) % JUDGEMENTS
        memset(known, 0, cython.sizeof(Judgement))
        known.number = number
    return known


def judge_anew(c, entry):
    """What the rules say of the entry's topic, which is kept beside it."""
    asker: Asker = _asker(c, cython.address(c.session.client_id))
    known: cython.pointer[Judgement] = _judgement(entry, c.rules_number)
    topic: Span = span_of(cython.address(entry.topic))
    known.allowed = judge(c.rules, cython.address(asker), topic, ACTION_PUBLISH)
    return known.allowed


def remember(r, c, entry, message, allowed, ttl_ms):
    """Keeps an authoriser's answer for messages of one QoS and retain, see ``message_bit``."""
    if c.asker_number == 0:
        c.asker_number = add_i64(cython.address(r.common.judged), 1, RELAXED)
    known: cython.pointer[Judgement] = _judgement(entry, c.asker_number)
    if known.until_ms <= r.now_ms:
        known.known = 0
        known.allowed = 0
        known.until_ms = r.now_ms + ttl_ms
    elif known.until_ms > r.now_ms + ttl_ms:
        known.until_ms = r.now_ms + ttl_ms
    known.known |= message
    known.allowed = known.allowed | message if allowed else known.allowed & ~message


def is_own_state(client_id, topic):
    """Whether it is the topic on which a bridge with this identifier says whether it is connected, as
    Mosquitto's do. Of those that begin with "$", clients may publish on no other.
    """
    size: uint32_t = cython.cast(uint32_t, client_id.size())
    if topic.size != 23 + size + 6 or memcmp(topic.data, b"$SYS/broker/connection/", 23):
        return False
    if memcmp(topic.data + 23, client_id.data(), size):
        return False
    return memcmp(topic.data + 23 + size, b"/state", 6) == 0


def judge_will(c, client_id, connect):
    """0, or the reason why the client may not have this will."""
    if connect.will_topic.data[0] == 0x24 and not is_own_state(client_id, connect.will_topic):  # "$"
        return RC_TOPIC_NAME_INVALID
    if c.rules == cython.NULL:
        return RC_SUCCESS
    asker: Asker = _asker(c, client_id)
    allowed: uint8_t = judge(c.rules, cython.address(asker), connect.will_topic, ACTION_PUBLISH)
    if allowed & message_bit(connect.will_qos, connect.will_retain):
        return RC_SUCCESS
    return RC_NOT_AUTHORIZED


def judge_filter(c, filter, options):
    """0, or the reason that a subscription is refused with; lowers the QoS in its options to what is allowed.
    Of what a stream keeps only the control plane knows the topics: it asks about them (`judge_asked`).
    """
    if names_stream(filter):
        return RC_SUCCESS
    return _judge_topics(c, split_shared(filter).filter, options)


def _judge_topics(c, topics, options):
    """The same of a filter of topics."""
    if c.rules == cython.NULL:
        return RC_SUCCESS
    asker: Asker = _asker(c, cython.address(c.session.client_id))
    allowed: uint8_t = judge(c.rules, cython.address(asker), topics, ACTION_SUBSCRIBE) & 7
    qos: uint8_t = options[0] & 3
    while qos and not allowed >> qos & 1:
        qos -= 1
    if not allowed >> qos & 1:
        return RC_NOT_AUTHORIZED
    options[0] = (options[0] & ~3) | qos
    return RC_SUCCESS


def judge_filters(c, filters):
    """A reason for each filter of a SUBSCRIBE packet."""
    filter: Span
    options: uint8_t
    reasons: string
    while next_filter(cython.address(filters), True, cython.address(filter), cython.address(options)):
        reasons.push_back(cython.cast(cython.char, judge_filter(c, filter, cython.address(options))))
    return reasons


def judge_asked(r, mail):
    """Tells the control plane of each filter of topics the QoS that a client may have, or the reason."""
    c: cython.pointer[Connection] = connection_of(r, mail.number)
    event: cython.pointer[Event] = new_event(EVENT_JUDGED, mail.number)
    event.flag = c == cython.NULL or c.doomed or c.leaving
    if not event.flag and r.review_left:
        bring_up_to_date(r, c)
    asked: Span = span_of(mail.letter.data)
    topics: Span = Span(asked.data, 0)
    while not event.flag and topics.data + topics.size < asked.data + asked.size:
        if topics.data[topics.size]:
            topics.size += 1
            continue
        options: uint8_t = 2
        reason: uint8_t = _judge_topics(c, topics, cython.address(options))
        event.data.push_back(cython.cast(cython.char, reason if reason else options & 3))
        topics = Span(topics.data + topics.size + 1, 0)
        count_steps(1)
    post_event(r.common, event)


def _begin_review(r, c, review):
    """From the first bucket of its table on."""
    review.connection = handle_of(r, c)
    review.at = 0
    review.buckets = c.session.subscriptions.bucket_count()


def _review_next(r, c, review):
    """Ends those of one bucket that the rules do not allow."""
    filters: vector[string]
    index: cython.size_t
    whole: cython.size_t = c.session.subscriptions.bucket_count()
    holds(review.at < whole, b"authorising: a review looks at buckets that there are")
    filters_in(c.session.subscriptions[0], review.at, filters)
    review.at += 1
    for index in range(filters.size()):
        count_steps(1)
        options: uint8_t = 2
        filter: Span = span_of(cython.address(filters[index]))
        if judge_filter(c, filter, cython.address(options)) == 0:
            continue
        end_backlog(r, c.session, filter)
        drop_subscription(r, c.session, filter)
        r.tally[C_SUBSCRIPTIONS_REVOKED] += 1
        if review.revoked == 0:
            review.first = filters[index]
        review.revoked += 1


def _end_review(r, c, review):
    """All were looked at."""
    c.reviewing = 0
    if review.revoked:
        event: cython.pointer[Event] = connection_event(r, c, EVENT_REVOKED)
        event.text = review.first
        event.packet_bytes_max = review.revoked
        post_report(r, event)


def review_subscriptions(r, c):
    """Ends those of the connection's session that the rules do not allow; where they are very many, in the
    next turns. A QoS above what they allow stays until the client subscribes again.
    """
    review: Review
    if c.reviewing:
        c.reviewing = 2
        return
    if c.rules == cython.NULL or c.session.subscriptions == cython.NULL:
        return
    review.revoked = 0
    _begin_review(r, c, cython.address(review))
    if review.buckets > _REVIEWED_AT_ONCE:
        c.reviewing = 1
        r.reviews.push_back(review)
        return
    while review.at < review.buckets:
        _review_next(r, c, cython.address(review))
    _end_review(r, c, cython.address(review))


def review(r, c):
    """Gives a client that is connected the rules of now, and takes from it what they do not allow."""
    s: cython.pointer[Session] = c.session
    apply_rules(r, c, cython.address(s.client_id))
    review_subscriptions(r, c)
    if s.will == cython.NULL or c.rules == cython.NULL:
        return
    asker: Asker = _asker(c, cython.address(s.client_id))
    topic: Span = topic_of(s.will.message)
    message: uint8_t = message_bit(s.will.message.qos, s.will.message.retain)
    if not judge(c.rules, cython.address(asker), topic, ACTION_PUBLISH) & message:
        note_drop(r, s, C_REFUSED_NOT_AUTHORISED, 1)
        discard_will(r, s)


def take_policy(r, mail):
    """Other rules, which count from now on: for those that are connected here when they send something or
    end, and `continue_review` looks through all.
    """
    release_policy(r.policy, r.tally)
    r.policy = cython.cast(cython.pointer[Policy], mail.pointer)
    r.review_left = r.connections.size()


def bring_up_to_date(r, c):
    """Reviews a client that still has the rules of before. One that leaves this reactor is looked through
    where it arrives.
    """
    if c.state != CONNECTED or c.leaving or c.session == cython.NULL or c.session.connection != c:
        return
    if c.rules == cython.NULL or c.rules.policy != r.policy:
        review(r, c)


def _continue_one(r, c, review, left):
    """Goes on with a client's subscriptions; whether that is done."""
    buckets: cython.size_t = c.session.subscriptions.bucket_count()
    if c.reviewing > 1 or buckets != review.buckets:
        c.reviewing = 1  # other rules, or others in each bucket
        _begin_review(r, c, review)
    if c.rules == cython.NULL:
        review.at = buckets
    while left[0] and review.at < review.buckets:
        count_steps(1)
        left[0] -= 1
        _review_next(r, c, review)
    return review.at == review.buckets


def _continue_reviews(r, until_ns, left):
    """Goes on with clients that have very many subscriptions; those of one that has gone are looked at when
    it is back.
    """
    while left[0] and not r.reviews.empty() and clock_ns() < until_ns:
        review: cython.pointer[Review] = cython.address(r.reviews.front())
        part: cython.int = min(left[0], _REVIEWED_IN_A_ROW)
        left[0] -= part
        c: cython.pointer[Connection] = connection_of(r, review.connection)
        if c != cython.NULL and not _continue_one(r, c, review, cython.address(part)):
            continue
        if c != cython.NULL:
            _end_review(r, c, review)
        r.reviews.pop_front()


def continue_review(r):
    """Once a turn, after new rules, for a part of the connections and of their subscriptions: the turn stays
    short.
    """
    if r.review_left == 0 and r.reviews.empty():
        return
    left: cython.int = _REVIEWED_A_TURN
    until_ns: int64_t = clock_ns() + _REVIEW_NS
    while left and r.review_left and clock_ns() < until_ns:
        count_steps(1)
        left -= 1
        r.review_left -= 1
        holds(r.review_left < r.connections.size(), b"authorising: a review looks at slots that there are")
        c: cython.pointer[Connection] = r.connections[r.review_left]
        if c != cython.NULL:  # doomed or not: a will may go out at the end of the turn
            bring_up_to_date(r, c)
    _continue_reviews(r, until_ns, cython.address(left))
