"""Sessions that come from the store: before the start, and into an engine that runs, from another node.

One that arrives is in the registry at once, `moving`, so that nobody else makes one of its name, and whoever
wants it waits until all of it is here. Its subscriptions count from when they are in the index: what is
published meanwhile is left to the store. So many parts of a session are installed in a turn.

While its old home may still add to it (`older_may_come`), its timers do nothing: the client whose CONNECT
brought it here is about to have it.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_ADOPTIONS_REFUSED,
    C_SESSIONS_ADOPTED,
    LIVE_ENTRIES,
)
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import message_bytes, release_message
from cython.cimports.tidemq.engine.base.steps import allow_steps, count_steps
from cython.cimports.tidemq.engine.index.subscribers import OPTION_BACKLOG, OPTION_QOS
from cython.cimports.tidemq.engine.journal.journal import NO_RECORD, delete_value, tell_store
from cython.cimports.tidemq.engine.journal.rows import append_subscription_key
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.link.timers import begin_expiry, time_session
from cython.cimports.tidemq.engine.queues.backlogs import keep_backlog
from cython.cimports.tidemq.engine.queues.clearing import begin_clearing
from cython.cimports.tidemq.engine.queues.doubles import begin_doubles
from cython.cimports.tidemq.engine.queues.outbox import append_entry
from cython.cimports.tidemq.engine.queues.queueing import age_ms, make_stored
from cython.cimports.tidemq.engine.queues.received_identifiers import restore_received
from cython.cimports.tidemq.engine.queues.replayed import restore_replay
from cython.cimports.tidemq.engine.queues.sessions import (
    add_subscription,
    count_delayed,
    is_delayed,
    restore_session,
)
from cython.cimports.tidemq.engine.state.arrival import Arrival
from cython.cimports.tidemq.engine.state.client import Session, Will
from cython.cimports.tidemq.engine.state.queue import DONE, RELEASED, ROW_INFLIGHT, Entry, Outbox
from cython.cimports.tidemq.engine.state.section import FAMILY_SUBSCRIPTION, RECORD_ARRIVED
from cython.cimports.tidemq.wire.protocol import Span

_PARTS_A_TURN = cython.declare(cython.size_t, 1024)


# --- the parts, one by one ----------------------------------------------------------------------------


def fill_session(r, s, row):
    """What its own row says; takes the will over. A client that was connected counts as gone since now,
    unless it may be connected elsewhere.
    """
    s.expiry_s = row.expiry_s
    s.ends_ms = row.ends_ms
    if s.ends_ms == 0 and not row.stays:
        begin_expiry(r, s)
    make_stored(r, s)
    if row.will != cython.NULL:
        owner: unique_ptr[Will] = make_unique[Will]()
        s.will = owner.release()
        s.will.message = row.will
        row.will = cython.NULL
        s.will.delay_s = row.will_delay_s
        s.will.expiry_s = row.will_expiry_s
        s.will_ms = row.will_ms
        if s.will_ms == 0:
            s.will_ms = r.now_ms + cython.cast(int64_t, s.will.delay_s) * 1000
    if is_delayed(cython.address(s.client_id)):  # a message that waits for its time, see wills
        count_delayed(r, s)


def let_go_on(r, s):
    """All of a session is here: it is as any other from now on."""
    lock(cython.address(r.common.registry_lock))
    s.moving = False
    unlock(cython.address(r.common.registry_lock))
    time_session(r, s)


def restore_subscription(r, s, subscription):
    """A subscription; one that a filter is refused to, which another session has to itself by now, ends."""
    filter: Span = span_of(cython.address(subscription.filter))
    wants_retained: cython.bint = False
    key: string
    if subscription.replayed:
        restore_replay(
            r,
            s,
            filter,
            subscription.options,
            subscription.subscription_id,
            subscription.epoch,
            subscription.start,
        )
        return
    granted: cython.uchar = add_subscription(
        r,
        s,
        filter,
        subscription.options,
        subscription.subscription_id,
        cython.address(wants_retained),
    )
    if granted < 0x80 and subscription.options & OPTION_BACKLOG:
        keep_backlog(s, filter, subscription.options & OPTION_QOS, subscription.subscription_id)
    if granted >= 0x80 and r.section != cython.NULL:
        append_subscription_key(
            cython.address(s.client_id), cython.address(subscription.filter), cython.address(key)
        )
        delete_value(r, FAMILY_SUBSCRIPTION, cython.address(key))


def _add_holes(r, box, place):
    """Up to this place, so that places keep their packet identifiers."""
    if box.tail < place:
        allow_steps(place - box.tail)
    while box.tail < place:
        count_steps(1)
        hole: cython.pointer[Entry] = append_entry(box, r.now_ms, r.tally)
        hole.state = DONE
        box.waiting -= 1
        r.tally[LIVE_ENTRIES] -= 1


def restore_entry(r, s, row):
    """An entry that was in flight, at its place, after those before it; takes over what it is made of. False:
    there is no such place.
    """
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    if box.head == box.tail:
        box.head = box.next = box.tail = row.place
    if row.place < box.tail or row.place - box.head >= 65535:
        return False
    _add_holes(r, box, row.place)
    holds(box.tail == row.place, b"arrivals: what was in flight comes back to its place")
    entry: cython.pointer[Entry] = append_entry(box, r.now_ms, r.tally)
    entry.message = row.message
    entry.subscription_ids = row.subscription_ids
    row.message = cython.NULL
    row.subscription_ids = cython.NULL
    entry.qos = row.qos
    entry.retain = row.retain
    entry.was_sent = True
    entry.since_ms = cython.cast(uint32_t, r.now_ms - age_ms(r, entry.message.id.clock))
    entry.row = ROW_INFLIGHT
    entry.section = 0
    entry.record = NO_RECORD
    box.bytes += message_bytes(entry.message)
    if row.released:
        entry.state = RELEASED
        box.waiting -= 1
    return True


def free_entry(row, tally):
    """Lets go of what nobody took over."""
    if row.message != cython.NULL:
        release_message(row.message, tally)
        row.message = cython.NULL
    free(row.subscription_ids)
    row.subscription_ids = cython.NULL


# --- into an engine that runs ------------------------------------------------------------------------


def free_arrival(arrival, tally):
    """Frees it, and what nobody took over."""
    index: cython.size_t
    for index in range(arrival.entries.size()):
        free_entry(cython.address(arrival.entries[index]), tally)
    if arrival.row.will != cython.NULL:
        release_message(arrival.row.will, tally)
    del arrival


def _answer(r, arrival, taken):
    tell_store(r, RECORD_ARRIVED, cython.address(arrival.row.client_id)).status = taken


def begin_arrival(r, arrival):
    """A session arrives; one that is here already, or is just going from the store, is refused."""
    index: cython.size_t
    s: cython.pointer[Session] = restore_session(r, cython.address(arrival.row))
    if s == cython.NULL:
        r.tally[C_ADOPTIONS_REFUSED] += 1
        _answer(r, arrival, False)
        free_arrival(arrival, r.tally)
        return
    fill_session(r, s, cython.address(arrival.row))
    s.stored.waiting = arrival.waiting
    s.stored.bytes = arrival.bytes
    s.stored.oldest = arrival.oldest
    s.stored.older_may_come = arrival.older_may_come
    if arrival.doubles_ms:
        begin_doubles(r, s, arrival)
    if arrival.unasked:
        begin_clearing(s.stored)
    if arrival.doubtful:
        s.stored.doubtful = r.common.limits.inflight_max
    allow_steps(arrival.received.size())
    for index in range(arrival.received.size()):
        count_steps(1)
        restore_received(s, arrival.received[index])
    arrival.session = s
    r.arrivals.push_back(arrival)


def _install(r, arrival, left):
    """As many of its parts as a turn may still install; returns how many more that could be."""
    while left and arrival.subscribed < arrival.subscriptions.size():
        count_steps(1)
        left -= 1
        restore_subscription(r, arrival.session, cython.address(arrival.subscriptions[arrival.subscribed]))
        arrival.subscribed += 1
    while left and arrival.entered < arrival.entries.size():
        count_steps(1)
        left -= 1
        taken: cython.bint = restore_entry(
            r, arrival.session, cython.address(arrival.entries[arrival.entered])
        )
        holds(taken, b"arrivals: places were looked at before a session is installed")
        arrival.entered += 1
    return left


def _finish(r, arrival):
    """All of it is here."""
    box: cython.pointer[Outbox] = cython.address(arrival.session.outbox)
    if box.head == box.tail:
        box.head = box.next = box.tail = max(box.tail, arrival.next_place)
    else:
        _add_holes(r, box, arrival.next_place)
    let_go_on(r, arrival.session)
    r.tally[C_SESSIONS_ADOPTED] += 1
    _answer(r, arrival, True)
    free_arrival(arrival, r.tally)


def continue_arrivals(r):
    """Once a turn: some parts of the sessions that arrive, one session after the other."""
    left: cython.size_t = _PARTS_A_TURN
    while left and not r.arrivals.empty():
        arrival: cython.pointer[Arrival] = r.arrivals.front()
        left = _install(r, arrival, left)
        if arrival.subscribed < arrival.subscriptions.size() or arrival.entered < arrival.entries.size():
            break
        r.arrivals.pop_front()
        _finish(r, arrival)


def free_arrivals(r):
    """The reactor has ended: what of them was not installed."""
    while not r.arrivals.empty():
        free_arrival(r.arrivals.front(), r.tally)
        r.arrivals.pop_front()
