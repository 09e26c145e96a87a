"""What becomes of an offer (``offers``): recorded when all have answered, closed when that is committed.

A session's will goes the same way, offered or not: its row without the will is recorded when all have
answered, and where the will was offered, together with everybody's row of it.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_DROPPED_STORE_FAILED
from cython.cimports.tidemq.engine.base.engine_limits import FULL_REJECT
from cython.cimports.tidemq.engine.base.message import Passage, close_passage, open_passage, release_message
from cython.cimports.tidemq.engine.base.steps import allow_receivers, count_steps
from cython.cimports.tidemq.engine.journal.capturing import capture
from cython.cimports.tidemq.engine.journal.journal import STORE_FAILED, add_elsewhere, add_row, ask_store
from cython.cimports.tidemq.engine.journal.ledger import await_section, promise_at, token_of
from cython.cimports.tidemq.engine.journal.rows import read_u32, read_u64
from cython.cimports.tidemq.engine.link.mail import new_mail
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.queues.cache import find_receivers
from cython.cimports.tidemq.engine.queues.delivery import arrive, send_waiting
from cython.cimports.tidemq.engine.queues.offers import describe_offer
from cython.cimports.tidemq.engine.queues.received_identifiers import store_received
from cython.cimports.tidemq.engine.queues.sessions import store_session
from cython.cimports.tidemq.engine.queues.shards import serve_shard
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.mail import MAIL_GO, Mail
from cython.cimports.tidemq.engine.state.promise import Promise
from cython.cimports.tidemq.engine.state.queue import ROW_IDLE
from cython.cimports.tidemq.engine.state.section import RECORD_PURGE, Offer, Taker
from cython.cimports.tidemq.wire.protocol import PUBREC, RC_QUOTA_EXCEEDED, Span

# of one taker in an answer: queue (8), QoS, retain, count of identifiers (4); then these, and, where the
# queue is 0, a client id with its length (2) before it
_TAKER_BYTES = cython.declare(uint32_t, 14)


def add_takers(promise, takers):
    """Others who take what was offered."""
    if promise.takers == cython.NULL:
        owner: unique_ptr[string] = make_unique[string]()
        promise.takers = owner.release()
    promise.takers.append(cython.cast(cython.p_char, takers.data), takers.size)


def accept_offer(r, promise, takers, reactor):
    """Another reactor has said who takes it there."""
    add_takers(promise, span_of(takers))
    promise.reactors |= cython.cast(uint64_t, 1) << reactor


def _record_takers(r, promise):
    ids: vector[uint32_t]
    each: uint32_t
    allow_receivers(promise.takers.size() // _TAKER_BYTES)
    at: cython.pointer[cython.const[uint8_t]] = span_of(promise.takers).data
    end: cython.pointer[cython.const[uint8_t]] = at + promise.takers.size()
    while at < end:
        count_steps(1)
        holds(end - at >= _TAKER_BYTES, b"agreement: what is said of each taker has come whole")
        count: uint32_t = read_u32(at + 10)
        ids.clear()
        for each in range(count):
            ids.push_back(read_u32(at + _TAKER_BYTES + each * 4))
        row: cython.pointer[cython.const[uint8_t]] = at
        at += _TAKER_BYTES + count * 4
        if read_u64(row):
            add_row(r, read_u64(row), promise.message, 0, ROW_IDLE, row[8], row[9], ids.data(), count)
        else:
            client_id: Span = Span(at + 2, cython.cast(uint32_t, at[0]) << 8 | at[1])
            add_elsewhere(r, client_id, promise.message, row[8], row[9], ids.data(), count)
            at = client_id.data + client_id.size


def _capture_offer(r, promise):
    passage: Passage
    open_passage(cython.address(passage), promise.message)
    streams: uint64_t = find_receivers(r, cython.address(passage.topic)).streams
    if streams:
        passage.packet_id = promise.packet_id
        capture(r, cython.address(passage), streams)
    close_passage(cython.address(passage), r.tally)


def _record_offer(r, publisher, promise):
    """All have answered: every row, and that the message came, goes into the open section.

    Nobody takes it where one has refused it and the policy is to reject, or where its publisher was
    disconnected because the store failed before.
    """
    before: cython.size_t = r.section.records.size()
    index: cython.size_t
    holds(promise.answers == 0, b"agreement: what is recorded was answered by all")
    holds(not promise.recorded, b"agreement: an offer is recorded once")
    if promise.connection and promise.connection == publisher.stored.severed:
        promise.reason = STORE_FAILED
    dropped: cython.bint = promise.reason == RC_QUOTA_EXCEEDED and r.common.queue_full != FULL_REJECT
    refused: cython.bint = promise.reason >= 0x80 and not dropped
    if refused or promise.undone:
        return
    here: cython.pointer[string] = describe_offer(r, cython.address(promise.message.id))
    if here != cython.NULL:
        add_takers(promise, span_of(here))
        del here
    if promise.takers != cython.NULL:
        _record_takers(r, promise)
    for index in range(before, r.section.records.size()):
        r.section.records[index].offered = True
    if r.section.records.size() - before > 1 and not promise.message.counted:
        promise.message.counted = True  # the store may be looking at one on which it is set
    _capture_offer(r, promise)
    if promise.packet_type == PUBREC:
        store_received(r, publisher, promise.packet_id)
    promise.recorded = True


def _record_will(r, s, promise, slot):
    """The session's row without the will, which everybody has kept as a message or will in this section;
    false where it is not so.
    """
    if s.will == cython.NULL or s.will.token != token_of(r, slot) or promise.undone:
        return False
    if promise.reason == STORE_FAILED or (promise.message != cython.NULL and not promise.recorded):
        return False
    s.will.recorded = True
    store_session(r, s)
    return True


def record_offers(r, s):
    """Records the offers of a stored session, and its will, that all reactors have answered, in the order
    in which they came: none goes before one that may still be refused.
    """
    recorded: cython.bint
    while s.stored.unrecorded:
        count_steps(1)
        slot: uint32_t = s.stored.unrecorded
        promise: cython.pointer[Promise] = promise_at(r, slot)
        if promise.answers:
            return
        recorded = False
        if promise.message != cython.NULL:
            _record_offer(r, s, promise)
            recorded = promise.recorded
        if promise.packet_type == 0:
            recorded = _record_will(r, s, promise, slot) or recorded
        if recorded:
            promise.section = r.section.number
            promise.kept = True
            await_section(r, slot, promise.section)
        else:
            r.ledger.ready.push_back(slot)
        s.stored.unrecorded = promise.next


def close_offer(r, promise):
    """The rows are committed, or the message is refused: everybody is told, here and elsewhere."""
    target: uint16_t = 0
    reactors: uint64_t = promise.reactors
    clock: uint64_t = promise.message.id.clock
    reason: uint8_t = 0 if promise.recorded and not promise.undone else 0x80
    while reactors:
        if reactors & 1:
            mail: Mail = new_mail(MAIL_GO)
            mail.number = clock
            mail.reason = reason
            r.outgoing[target].push_back(mail)
        reactors >>= 1
        target += 1
    settle_offer(r, clock, reason)
    release_message(promise.message, r.tally)
    promise.message = cython.NULL
    del promise.takers
    promise.takers = cython.NULL


def settle_offer(r, clock, reason):
    """What was kept apart here goes into the queues, or is forgotten with a reason."""
    index: cython.size_t
    if not r.offers.count(clock):
        return
    offer: cython.pointer[Offer] = cython.address(r.offers[clock])
    allow_receivers(offer.takers.size())
    for index in range(offer.takers.size()):
        count_steps(1)
        taker: Taker = offer.takers[index]
        s: cython.pointer[Session] = cython.NULL
        if r.sessions.count(taker.queue):
            s = r.sessions[taker.queue]
            holds(s.stored.offered > 0, b"agreement: a queue knows how many of its rows are offered")
            s.stored.offered -= 1
        if reason:
            r.tally[C_DROPPED_STORE_FAILED] += 1
        elif s != cython.NULL:
            arrive(r, s, offer.message, taker.qos, taker.retain, taker.subscription_ids)
            if s.group:
                serve_shard(r, s)
            elif s.connection != cython.NULL:
                send_waiting(r, s)
        else:
            ask_store(r, RECORD_PURGE, taker.queue).status = ROW_IDLE  # it ended before the row came
        free(taker.subscription_ids)
    release_message(offer.message, r.tally)
    r.offers.erase(clock)
