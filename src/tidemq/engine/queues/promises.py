"""What is said only when the store has it: acknowledgements, and QoS 2 messages on their way out.

A promise names the section that has to be committed first. Those to publishers stand in the ``ledger``,
since some also wait for other reactors to keep the message; all others are kept in the order of their
sections (``commit_results``).
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.base.message import hold_message, release_message
from cython.cimports.tidemq.engine.journal.journal import last_section
from cython.cimports.tidemq.engine.journal.ledger import enter_promise, reactor_of_token
from cython.cimports.tidemq.engine.link.mail import new_letter, new_mail
from cython.cimports.tidemq.engine.link.output import touch
from cython.cimports.tidemq.engine.queues.offers import describe_offer
from cython.cimports.tidemq.engine.queues.sessions import subscription_turn
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.mail import MAIL_KEPT, Mail
from cython.cimports.tidemq.engine.state.promise import (
    PROMISE_ACK,
    PROMISE_BACKLOG,
    PROMISE_CONNACK,
    PROMISE_KEPT,
    PROMISE_PACKET,
    PROMISE_PUBLISHED,
    PROMISE_SEND,
    Promise,
)


def _new_promise(r, c, kind):
    promise: Promise
    memset(cython.address(promise), 0, cython.sizeof(Promise))
    promise.kind = kind
    promise.section = last_section(r) if r.section != cython.NULL else 0
    if c != cython.NULL:
        promise.connection = handle_of(r, c)
        c.owed += 1
        if c.owed >= r.common.limits.receive_max and not c.in_debt:
            c.in_debt = True  # it is not read from until half of it has gone out
            c.pause_count += 1
            touch(r, c)
    return promise


def _check_order(r):
    """The last promise is about the section of the first, or a later one."""
    risen: cython.bint = r.promises.front().section <= r.promises.back().section
    holds(risen, b"promises: they are in the order of their sections")


def _enter(r, s, promise, p):
    """Into the ledger, with all that the message of ``p``, or NULL, waits for."""
    promise.number = s.number
    if p != cython.NULL:
        promise.kept = p.kept
        promise.early = promise.section if p.kept else 0
        promise.answers = p.answers
        if p.offered:
            promise.message = p.message
            hold_message(p.message)
            s.offers += 1
    if not promise.kept:
        promise.section = 0
    enter_promise(r, s, promise)


def promise_published(r, c, p, packet_type, packet_id, reason, again):
    """PUBACK or PUBREC, once everybody has kept the message, and what its publisher was owed before is
    kept. A publisher that is owed as many as it may have under way is not read from until half of them have
    gone out.
    """
    promise: Promise = _new_promise(r, c, PROMISE_PUBLISHED)
    promise.packet_type = packet_type
    promise.packet_id = packet_id
    promise.reason = reason
    promise.again = again
    _enter(r, c.session, cython.address(promise), p)


def promise_will(r, s, p):
    """The will itself goes once everybody has kept it as a message."""
    promise: Promise = _new_promise(r, cython.NULL, PROMISE_PUBLISHED)
    _enter(r, s, cython.address(promise), p)


def promise_node(r, p, node, asked, takers):
    """Another node is told once everybody here has kept the message that it has passed on. ``takers``: who
    takes what was offered, or NULL; the promise owns it.
    """
    promise: Promise = _new_promise(r, cython.NULL, PROMISE_PUBLISHED)
    promise.node = cython.cast(uint8_t, node + 1)
    promise.asked = asked
    promise.takers = takers
    promise.reason = p.refused
    promise.kept = p.kept
    promise.answers = p.answers
    if not p.kept:
        promise.section = 0
    enter_promise(r, cython.NULL, cython.address(promise))


def promise_ack(r, c, packet_type, packet_id, reason):
    """PUBREL or PUBCOMP after the open section."""
    promise: Promise = _new_promise(r, c, PROMISE_ACK)
    promise.packet_type = packet_type
    promise.packet_id = packet_id
    promise.reason = reason
    r.promises.push_back(promise)
    if ASSERTS:
        _check_order(r)


def promise_packet(r, c, packet):
    """A whole packet after the open section; it is copied."""
    promise: Promise = _new_promise(r, c, PROMISE_PACKET)
    owner: unique_ptr[string] = make_unique[string](packet[0])
    promise.packet = owner.release()
    r.promises.push_back(promise)
    if ASSERTS:
        _check_order(r)


def promise_connack(r, c, packet):
    """CONNACK after the open section; then the pause that the caller has begun ends."""
    promise_packet(r, c, packet)
    r.promises.back().kind = PROMISE_CONNACK


def promise_backlog(r, c, filter, qos, subscription_id):
    """The retained messages of a new subscription, after its SUBACK, unless it has ended by then or been made
    anew.
    """
    promise: Promise = _new_promise(r, c, PROMISE_BACKLOG)
    promise.packet_id = subscription_turn(c.session, filter)
    owner: unique_ptr[string] = make_unique[string]()
    promise.packet = owner.release()
    promise.packet.assign(cython.cast(cython.p_char, filter.data), filter.size)
    promise.reason = qos
    promise.number = subscription_id
    r.promises.push_back(promise)


def promise_sending(r, c):
    """The outbox goes on after the last section; asked for many times it is done once."""
    if c.resumes != last_section(r):
        c.resumes = last_section(r)
        r.promises.push_back(_new_promise(r, c, PROMISE_SEND))


def mail_kept(r, token, reason, takers):
    """Tells another reactor that a message it mailed is kept, or with a reason refused.

    ``takers``: who takes what was offered, or NULL; the mail owns it.
    """
    mail: Mail = new_mail(MAIL_KEPT)
    mail.number = token
    mail.reason = reason
    mail.hops = cython.cast(uint8_t, r.index)
    target: uint16_t = reactor_of_token(token)
    holds(target != r.index and target < r.outgoing.size(), b"promises: a token names another reactor")
    if takers != cython.NULL:
        mail.letter = new_letter()
        mail.letter.data = takers
    r.outgoing[target].push_back(mail)


def promise_kept(r, p, token):
    """Tells the publisher's reactor that a mailed message is kept here: at once where nothing had to be."""
    if token == 0:
        return
    takers: cython.pointer[string] = cython.NULL
    if p.offered:
        takers = describe_offer(r, cython.address(p.id))
    if not p.kept:
        mail_kept(r, token, p.refused, takers)
        return
    promise: Promise = _new_promise(r, cython.NULL, PROMISE_KEPT)
    promise.number = token
    promise.reason = p.refused
    promise.kept = True
    promise.packet = takers
    r.promises.push_back(promise)
    if ASSERTS:
        _check_order(r)


def free_promises(r):
    """Forgets what can be kept no more: the reactor has ended."""
    index: cython.size_t
    for index in range(r.promises.size()):
        del r.promises[index].packet
    for index in range(r.ledger.slots.size()):
        if r.ledger.slots[index].message != cython.NULL:
            release_message(r.ledger.slots[index].message, r.tally)
        del r.ledger.slots[index].takers
    r.promises.clear()
    r.ledger.slots.clear()
