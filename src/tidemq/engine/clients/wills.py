"""Wills published.

The will of a stored session is part of its row, and goes from there only when the store has the message:
together with it where one section holds both, else when every reactor that has receivers has said that it
keeps it. So a crash does not lose it; nor does it bring a will at QoS 2 twice, which is offered to other
reactors as a QoS 2 message of the client's would be (``offers``). Meanwhile the session keeps it, with the
token of the promise, and the session does not end. Where the store fails it is published again.

A message that a client publishes to `$delayed/SECONDS/TOPIC` is the will of a session of its own, which
nobody can take and which ends with it: so all that is said above holds for it.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_MESSAGES_DELAYED, C_REFUSED_DELAYED
from cython.cimports.tidemq.engine.base.message import (
    Message,
    MessageId,
    Passage,
    close_passage,
    copy_passage,
    new_message,
    open_passage,
    passage_message,
    release_message,
    topic_of,
)
from cython.cimports.tidemq.engine.base.system import RELAXED, load_i64
from cython.cimports.tidemq.engine.clients.holding import hand_over_will
from cython.cimports.tidemq.engine.journal.journal import STORE_FAILED, next_id, store_fails
from cython.cimports.tidemq.engine.journal.ledger import next_token, token_of
from cython.cimports.tidemq.engine.link.timers import time_session
from cython.cimports.tidemq.engine.queues.agreement import record_offers
from cython.cimports.tidemq.engine.queues.cache import find_receivers
from cython.cimports.tidemq.engine.queues.promises import promise_will
from cython.cimports.tidemq.engine.queues.queueing import make_stored
from cython.cimports.tidemq.engine.queues.routing import route, route_message
from cython.cimports.tidemq.engine.queues.sessions import Found, count_delayed, find_session, store_session
from cython.cimports.tidemq.engine.state.client import Session, Will
from cython.cimports.tidemq.wire.protocol import Span
from cython.cimports.tidemq.wire.topics import SLASH

_AGAIN_MS = cython.declare(int64_t, 500)  # after the store has failed
_DELAYED = cython.declare(uint32_t, 9)  # bytes of `$delayed/`


def take_delay(r, topic):
    """Takes `$delayed/SECONDS/` off a topic where the operator allows so long a delay, which is noted in
    ``r.delay_s``. A topic that stays as it is begins with a `$`, and no client may publish to it.
    """
    if topic.size <= _DELAYED or memcmp(topic.data, b"$delayed/", _DELAYED):
        return
    delay_s: uint64_t = 0
    at: uint32_t = _DELAYED
    while at < topic.size and 0x30 <= topic.data[at] <= 0x39 and delay_s <= r.topic_rules.delay_s_max:
        delay_s = delay_s * 10 + topic.data[at] - 0x30
        at += 1
    if at == _DELAYED or at + 1 >= topic.size or topic.data[at] != SLASH:
        return
    if r.topic_rules.delay_s_max == 0 or delay_s > r.topic_rules.delay_s_max:
        return
    topic[0] = Span(topic.data + at + 1, topic.size - at - 1)
    r.delay_s = cython.cast(uint32_t, delay_s)


def refused_delay(r, publish):
    """Whether too much waits for its time already. Reactors look at once: each may find room for one more."""
    size: int64_t = cython.sizeof(Message) + publish.topic.size + publish.payload.size
    if publish.properties.present:
        size += publish.properties.raw.size
    full: cython.bint = (
        load_i64(cython.address(r.common.delayed_count), RELAXED) >= r.topic_rules.delayed_max
        or load_i64(cython.address(r.common.delayed_bytes), RELAXED) + size > r.topic_rules.delayed_bytes_max
    )
    r.tally[C_REFUSED_DELAYED] += full
    return full


def delay(r, p):
    """Keeps a message until ``r.delay_s`` are over; it counts as received when the store has it."""
    none: MessageId
    none.clock = none.origin = 0
    own: Passage = copy_passage(p, none)
    own.feeder = 0
    own.expires_ms = 0
    name: string
    name.push_back(0)  # no client's identifier has it
    name.append(cython.cast(cython.p_char, b"delayed/"))
    digits: uint64_t = next_id(r).clock
    while digits:
        name.push_back(cython.cast(cython.char, 0x30 + digits % 10))
        digits //= 10
    found: Found = find_session(r, cython.address(name), True)
    s: cython.pointer[Session] = found.session
    holds(found.created, b"wills: a message that is delayed has a session of its own")
    own.publisher = s.number
    owner: unique_ptr[Will] = make_unique[Will]()
    s.will = owner.release()
    s.will.message = new_message(cython.address(own), r.tally)
    s.will.delay_s = r.delay_s
    s.will.expiry_s = -1
    if p.expires_ms:
        s.will.expiry_s = max(p.expires_ms - r.now_ms, 0) // 1000
    s.expiry_s = r.delay_s
    # a part of this millisecond is over: without the next one it would be due too early
    s.will_ms = s.ends_ms = r.now_ms + 1 + cython.cast(int64_t, r.delay_s) * 1000
    count_delayed(r, s)
    if r.common.durable:
        make_stored(r, s)
        store_session(r, s)
        p.kept = True
    time_session(r, s)
    p.offered = False  # nobody else is asked
    p.receivers = 1
    r.tally[C_MESSAGES_DELAYED] += 1


def discard_will(r, s):
    """The will is not wanted any more [MQTT-3.14.4-3], or it is kept as a message."""
    s.will_ms = 0
    if s.will != cython.NULL:
        release_message(s.will.message, r.tally)
        del s.will
        s.will = cython.NULL


def waits_for_store(r, s):
    """Whether somebody's queue in the store is to get the will, and the store takes nothing now."""
    if s.stored == cython.NULL or not store_fails(r):
        return False
    topic: Span = topic_of(s.will.message)
    return s.will.message.retain or (
        s.will.message.qos > 0 and find_receivers(r, cython.address(topic)).stored
    )


def publish_last_will(r, s):
    """Publishes the will of a session that ends now, if there is one that was not published before
    [MQTT-3.1.2-8] [MQTT-3.1.2-10].
    """
    if s.will != cython.NULL and not s.will.recorded:
        holds(s.connection == cython.NULL, b"wills: a will goes out when its client has gone")
        if s.will.expiry_s >= 0:
            s.will.message.expires_ms = r.now_ms + s.will.expiry_s * 1000
        if not hand_over_will(r, s):
            route_message(r, s.will.message)
    discard_will(r, s)


def leave_will(r, s):
    """The client is back: its will is not wanted any more, unless it was due before and waits for the store
    only.
    """
    if s.will != cython.NULL and s.will_ms and s.will.delay_s == 0 and s.will.token == 0:
        publish_last_will(r, s)
    else:
        discard_will(r, s)


def publish_will(r, s):
    """Publishes the will, if there is one, of a session that goes on. It is there still while it waits for
    the store.
    """
    passage: Passage
    if s.will == cython.NULL or s.will.token:
        return
    if s.stored == cython.NULL:
        publish_last_will(r, s)
        return
    if hand_over_will(r, s):
        discard_will(r, s)
        return
    open_passage(cython.address(passage), s.will.message)
    own: Passage = copy_passage(cython.address(passage), next_id(r))
    own.publisher = s.number  # the store does not know it
    if s.will.expiry_s >= 0:
        own.expires_ms = r.now_ms + s.will.expiry_s * 1000
    if own.qos:
        own.token = next_token(r)
        own.offered = own.qos == 2
    route(r, cython.address(own))
    own.offered = own.offered and (own.kept or own.answers or own.places)
    if own.kept or own.answers or own.offered:
        s.will.token = own.token if own.token else next_token(r)
        passage_message(cython.address(own), r.tally)
        promise_will(r, s, cython.address(own))
        kept: cython.bint = s.will.token == token_of(r, s.last_owed)
        holds(kept, b"wills: one that waits has the token of its promise")
        if own.answers == 0:
            record_offers(r, s)
    else:
        discard_will(r, s)
    close_passage(cython.address(own), r.tally)
    close_passage(cython.address(passage), r.tally)


def settle_will(r, s, promise, token):
    """Everybody has kept the will, or the store has failed. ``s``: its session, or NULL; it may have
    another will by now.
    """
    if s == cython.NULL or s.will == cython.NULL or s.will.token != token:
        return
    if promise.undone or promise.reason == STORE_FAILED:
        s.will.token = 0
        s.will.recorded = False
        s.will_ms = r.now_ms + _AGAIN_MS
        store_session(r, s)
    else:
        recorded: cython.bint = s.will.recorded
        discard_will(r, s)
        if not recorded:  # a full queue has refused it
            store_session(r, s)
    time_session(r, s)
