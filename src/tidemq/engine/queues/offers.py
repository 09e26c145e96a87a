"""QoS 2 messages of a stored session with stored receivers on several reactors.

That the message came, and everybody's row of it, must be committed at once: rows without the note that it
came would be delivered twice when the publisher sends it again, the note without a row would lose it. So only
the publisher's reactor writes. It offers the message to the others; each says who of its own takes it, and
keeps it apart; the publisher's reactor writes all rows and the note into one section; and when that is
committed, everybody puts it into the queues. What a receiver takes at QoS 1 its own reactor writes, before it
answers: of that a second copy does no harm.

Other nodes of a cluster are asked in the same way, and answer with client ids. There nothing is kept apart:
the rows come by the log of the publisher's node, for whoever has the session by then (`outside_rows`).
"""

import cython
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.message import copy_identifiers, hold_message, release_message
from cython.cimports.tidemq.engine.base.steps import allow_receivers, count_steps
from cython.cimports.tidemq.engine.journal.rows import append_u16, append_u32, append_u64
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.section import Offer, Taker
from cython.operator import dereference, preincrement

_FOREIGN = cython.declare(
    uint64_t, 1 << 63
)  # beside the clock of another node's id, which may be one of ours


def is_foreign(r, id):
    """Whether another node has given the id."""
    return id.origin != r.common.incarnation


def note_offer(r, s, message, qos, retain, ids, ids_count):
    """A session of this reactor will take the message."""
    holds(message.id.clock != 0, b"offers: what is offered has an id")
    key: uint64_t = message.id.clock
    if is_foreign(r, cython.address(message.id)):
        key |= _FOREIGN
    offer: cython.pointer[Offer] = cython.address(r.offers[key])
    if offer.message == cython.NULL:
        hold_message(message)
        offer.message = message
    taker: Taker
    taker.queue = s.number
    taker.qos = qos
    taker.retain = retain
    taker.subscription_ids = copy_identifiers(ids, ids_count)
    offer.takers.push_back(taker)
    s.stored.offered += 1


def _append_taker(takers, queue, taker):
    """``queue`` 0: of a session that is named behind it."""
    each: uint32_t
    append_u64(takers, queue)
    takers.push_back(cython.cast(cython.char, taker.qos))
    takers.push_back(1 if taker.retain else 0)
    count: uint32_t = taker.subscription_ids[0] if taker.subscription_ids != cython.NULL else 0
    append_u32(takers, count)
    for each in range(count):
        append_u32(takers, taker.subscription_ids[each + 1])


def _name_takers(r, clock):
    """Who takes another node's message here, for that node; then it is forgotten here."""
    index: cython.size_t
    if not r.offers.count(clock | _FOREIGN):
        return cython.NULL
    owner: unique_ptr[string] = make_unique[string]()
    takers: cython.pointer[string] = owner.release()
    offer: cython.pointer[Offer] = cython.address(r.offers[clock | _FOREIGN])
    allow_receivers(offer.takers.size())
    for index in range(offer.takers.size()):
        count_steps(1)
        taker: Taker = offer.takers[index]
        if r.sessions.count(taker.queue):
            s: cython.pointer[Session] = r.sessions[taker.queue]
            s.stored.offered -= 1
            _append_taker(takers, 0, cython.address(taker))
            append_u16(takers, cython.cast(uint16_t, s.client_id.size()))
            takers.append(s.client_id)
        free(taker.subscription_ids)
    release_message(offer.message, r.tally)
    r.offers.erase(clock | _FOREIGN)
    return takers


def describe_offer(r, id):
    """Who takes it here and was not told of yet, for the publisher's reactor, or its node; NULL where nobody
    does.
    """
    index: cython.size_t
    clock: uint64_t = id.clock
    if is_foreign(r, id):
        return _name_takers(r, clock)
    if not r.offers.count(clock) or r.offers[clock].told == r.offers[clock].takers.size():
        return cython.NULL
    owner: unique_ptr[string] = make_unique[string]()
    takers: cython.pointer[string] = owner.release()
    offer: cython.pointer[Offer] = cython.address(r.offers[clock])
    holds(offer.message != cython.NULL, b"offers: one that is open holds its message")
    allow_receivers(offer.takers.size() - offer.told)
    for index in range(offer.told, offer.takers.size()):
        count_steps(1)
        taker: Taker = offer.takers[index]
        _append_taker(takers, taker.queue, cython.address(taker))
    offer.told = offer.takers.size()
    return takers


def is_offered(r, s, id):
    """Whether a row of the session's queue is of an offer of which it is not known here yet that it is
    committed.
    """
    index: cython.size_t
    if s.stored.offered == 0 or id.origin != r.common.incarnation or not r.offers.count(id.clock):
        return False
    offer: cython.pointer[Offer] = cython.address(r.offers[id.clock])
    for index in range(offer.takers.size()):
        count_steps(1)
        if offer.takers[index].queue == s.number:
            return True
    return False


def free_offers(r):
    """Forgets what was never decided: the reactor has ended."""
    index: cython.size_t
    item = r.offers.begin()
    while item != r.offers.end():
        for index in range(dereference(item).second.takers.size()):
            free(dereference(item).second.takers[index].subscription_ids)
        release_message(dereference(item).second.message, r.tally)
        preincrement(item)
    r.offers.clear()
