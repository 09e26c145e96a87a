"""What a member of shared groups held goes back to their queues, and what an ended session held is let go of.

Both may be many messages, of many sessions at once: a turn looks at so many entries, and the next goes on. A
session that has ended is gone at once all the same; its outbox stays until it is empty. Order: entries go
back newest first, each becomes the oldest of its shard, and meanwhile nothing of the queues of these groups
goes out. A client that comes back before all is handed back gets the rest again itself.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_DROPPED_NO_GROUP_MEMBER, C_DROPPED_SESSION_ENDED
from cython.cimports.tidemq.engine.base.message import Message, message_bytes
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.journal.journal import note_returned, remove_row
from cython.cimports.tidemq.engine.link.drops import name_of, note_drop, note_drop_of
from cython.cimports.tidemq.engine.queues.groups import make_due
from cython.cimports.tidemq.engine.queues.outbox import entry_at, forget_entry, free_outbox, prepend_entry
from cython.cimports.tidemq.engine.queues.queueing import lower_edge, note_spilled
from cython.cimports.tidemq.engine.state.client import Handback, Session
from cython.cimports.tidemq.engine.state.queue import DONE, RELEASED, ROW_NONE, SENT, WAITING, Entry, Outbox
from cython.operator import dereference, preincrement


def _shard_for(r, entry):
    """The shard that an entry goes back to, or NULL: it is no group's, or its delivery has begun at QoS 2."""
    if entry.queue == 0 or (entry.state != WAITING and entry.state != SENT):
        return cython.NULL
    if entry.qos == 2 and (entry.state == SENT or entry.was_sent):
        return cython.NULL
    found = r.sessions.find(entry.queue)
    if found == r.sessions.end():
        return cython.NULL
    shard: cython.pointer[Session] = dereference(found).second
    if shard.stored != cython.NULL and r.section == cython.NULL:
        return cython.NULL  # the engine has ended
    return shard


def _return_to_shard(r, shard, box, entry):
    """One entry becomes the oldest of its shard."""
    message: cython.pointer[Message] = entry.message
    if shard.stored != cython.NULL:
        note_returned(r, entry)
        lower_edge(shard, cython.address(message.id))
        note_spilled(shard, message)
    else:
        size: int64_t = message_bytes(message)
        first: cython.pointer[Entry] = prepend_entry(cython.address(shard.outbox), r.now_ms, r.tally)
        first.message = message  # with its hold
        first.qos = entry.qos
        first.retain = entry.retain
        shard.outbox.bytes += size
        box.bytes -= size
        entry.message = cython.NULL
    entry.row = ROW_NONE
    forget_entry(box, entry, r.tally)


def _drop(r, box, entry):
    """An entry ends with its session. What the session took of a group and has begun to get goes to nobody
    else (4.8.2); rows of its own queue are purged as a whole.
    """
    if entry.queue and r.section != cython.NULL:
        remove_row(r, cython.NULL, entry)
    forget_entry(box, entry, r.tally)


def _take_apart(r, box, place, ended, dropped):
    """Goes on as far as this turn may; whether it is done. Of a session that has ended nothing stays:
    ``dropped`` counts what goes to nobody.
    """
    while place[0] > box.head and r.handback_left:
        count_steps(1)
        r.handback_left -= 1
        place[0] -= 1
        entry: cython.pointer[Entry] = entry_at(box, place[0])
        if entry.state == DONE:
            continue
        shard: cython.pointer[Session] = _shard_for(r, entry)
        if shard != cython.NULL:
            _return_to_shard(r, shard, box, entry)
        elif ended:
            if entry.state == RELEASED and place[0] >= box.next:
                box.inflight += 1  # since its client came back it has not been counted
            _drop(r, box, entry)
            dropped[0] += 1
    if place[0] > box.head:
        return False
    if ended:
        empty: cython.bint = box.head == box.tail and box.bytes == 0
        holds(empty, b"handbacks: of what an ended session held nothing stays")
        free_outbox(box, r.tally)
    return True


def _begin(r, s, place):
    """What is left for the next turns; the session's groups wait for it."""
    owner: unique_ptr[Handback] = make_unique[Handback]()
    rest: cython.pointer[Handback] = owner.release()
    rest.session = s
    rest.place = place
    r.handbacks.push_back(rest)
    if s.memberships == cython.NULL:
        return rest
    s.memberships.handback = rest
    item = s.memberships.by_group.begin()
    while item != s.memberships.by_group.end():
        rest.groups.push_back(dereference(item).first)
        dereference(item).second.group.handbacks += 1
        preincrement(item)
    return rest


def _let_groups_go_on(r, rest):
    index: cython.size_t
    for index in range(rest.groups.size()):
        known = r.groups.find(rest.groups[index])
        if known != r.groups.end():
            holds(dereference(known).second.handbacks > 0, b"handbacks: a group knows how many it waits for")
            dereference(known).second.handbacks -= 1
            make_due(r, dereference(known).second)
    rest.groups.clear()


def return_held(r, s):
    """A member's client is gone: what it held of its groups goes back, in order, to be taken by others."""
    place: uint64_t = s.outbox.tail
    dropped: uint64_t = 0
    if not _take_apart(r, cython.address(s.outbox), cython.address(place), False, cython.address(dropped)):
        _begin(r, s, place)


def keep_held(r, s):
    """Its client has come back: it keeps what has not been handed back yet."""
    if s.memberships != cython.NULL and s.memberships.handback != cython.NULL:
        s.memberships.handback.session = cython.NULL
        s.memberships.handback.place = 0
        _let_groups_go_on(r, s.memberships.handback)
        s.memberships.handback = cython.NULL


def dispose_outbox(r, s, ends):
    """The session ends, or goes on elsewhere: its outbox goes, now or over the next turns. Only what ends
    with it is dropped.
    """
    box: Outbox = s.outbox
    place: uint64_t = box.tail
    dropped: uint64_t = 0
    counter: uint8_t = C_DROPPED_NO_GROUP_MEMBER if s.group else C_DROPPED_SESSION_ENDED
    rest: cython.pointer[Handback] = cython.NULL
    if s.memberships != cython.NULL:
        rest = s.memberships.handback
    memset(cython.address(s.outbox), 0, cython.sizeof(Outbox))
    if rest == cython.NULL:
        done: cython.bint = _take_apart(
            r, cython.address(box), cython.address(place), True, cython.address(dropped)
        )
        if ends:
            note_drop(r, s, counter, dropped)
        if done:
            return
        rest = _begin(r, s, place)
    rest.session = cython.NULL
    rest.number = s.number
    rest.ends = ends
    rest.owner = name_of(r, s)
    rest.box = box
    rest.place = place
    rest.counter = counter


def continue_handbacks(r):
    """Once a turn: as far as it may."""
    while not r.handbacks.empty() and r.handback_left:
        rest: cython.pointer[Handback] = r.handbacks.front()
        ended: cython.bint = rest.session == cython.NULL
        known: cython.bint = ended or rest.session.memberships.handback == rest
        holds(known, b"handbacks: a session knows the one that is under way")
        dropped: uint64_t = 0
        box: cython.pointer[Outbox] = (
            cython.address(rest.box) if ended else cython.address(rest.session.outbox)
        )
        done: cython.bint = _take_apart(r, box, cython.address(rest.place), ended, cython.address(dropped))
        if rest.ends:
            note_drop_of(r, rest.number, cython.address(rest.owner), rest.counter, dropped)
        if not done:
            break
        if not ended:
            rest.session.memberships.handback = cython.NULL
        _let_groups_go_on(r, rest)
        r.handbacks.pop_front()
        del rest


def end_handbacks(r):
    """The reactor ends: all of it now, and whatever comes yet."""
    r.handback_left = cython.cast(cython.uint, 0xFFFFFFFF)
    continue_handbacks(r)
