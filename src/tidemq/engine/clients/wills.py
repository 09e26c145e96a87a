"""Wills published.

The will of a stored session is part of its row, and goes from there only when the store has the message:
together with it where one section holds both, else when every reactor that has receivers has said that it
keeps it. So a crash does not lose it; nor does it bring a will at QoS 2 twice, which is offered to other
reactors as a QoS 2 message of the client's would be (``offers``). Meanwhile the session keeps it, with the
token of the promise, and the session does not end. Where the store fails it is published again.
"""

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.message import (
    Passage,
    close_passage,
    copy_passage,
    open_passage,
    passage_message,
    release_message,
    topic_of,
)
from cython.cimports.tidemq.engine.clients.holding import hand_over_will
from cython.cimports.tidemq.engine.journal.journal import STORE_FAILED, next_id, store_fails
from cython.cimports.tidemq.engine.journal.ledger import next_token, token_of
from cython.cimports.tidemq.engine.link.timers import time_session
from cython.cimports.tidemq.engine.queues.agreement import record_offers
from cython.cimports.tidemq.engine.queues.cache import find_receivers
from cython.cimports.tidemq.engine.queues.promises import promise_will
from cython.cimports.tidemq.engine.queues.routing import route, route_message
from cython.cimports.tidemq.engine.queues.sessions import store_session
from cython.cimports.tidemq.wire.protocol import Span

_AGAIN_MS = cython.declare(int64_t, 500)  # after the store has failed


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
