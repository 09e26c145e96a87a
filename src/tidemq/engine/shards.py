"""The queue of a shared group: in shards, each on one reactor, a session without a client.

A message goes straight to a member that can take it now; only where none can does it wait in a shard, which
members empty as they get room. What a member has taken at QoS 1 keeps its row under the shard and goes back
when the member is gone; at QoS 2 it stays with the member, as 4.8.2 wants. A shard whose reactor has no
member online moves, whole, to one that has.
"""

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.backpressure import end_strain, is_waited_for, relieve, stop_waiting
from cython.cimports.tidemq.engine.counters import C_DROPPED_NO_GROUP_MEMBER
from cython.cimports.tidemq.engine.delivery import deliver, send_waiting, take_over
from cython.cimports.tidemq.engine.drops import note_drop
from cython.cimports.tidemq.engine.journal import last_section, next_id, note_returned, put_value, remove_row
from cython.cimports.tidemq.engine.mail import new_mail
from cython.cimports.tidemq.engine.message import (
    close_passage,
    copy_passage,
    hold_message,
    message_bytes,
    open_passage,
)
from cython.cimports.tidemq.engine.offers import is_awaited
from cython.cimports.tidemq.engine.outbox import append_entry, entry_at, forget_entry
from cython.cimports.tidemq.engine.queueing import (
    evict_waiting,
    lower_edge,
    make_stored,
    note_spilled,
    request_rows,
)
from cython.cimports.tidemq.engine.rows import append_u64
from cython.cimports.tidemq.engine.sessions import end_session, new_session
from cython.cimports.tidemq.engine.state import (
    DONE,
    FAMILY_SHARED,
    MAIL_SHARD,
    ROW_NONE,
    SENT,
    WAITING,
    Connection,
    Entry,
    Mail,
    Message,
    Outbox,
    Passage,
    Reactor,
    Session,
)
from cython.cimports.tidemq.engine.subscribers import OPTION_QOS, OPTION_RETAIN_AS_PUBLISHED, Subscription
from cython.cimports.tidemq.engine.subscriptions import (
    SharedGroup,
    find_group,
    lock_shared,
    unlock_shared,
)
from cython.cimports.tidemq.engine.system import (
    ACQUIRE,
    load_u8,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)

# where an empty shard's outbox begins: what comes back goes in before its head
_FIRST_PLACE = cython.declare(uint64_t, 4294967296)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_shard(r: cython.pointer[Reactor], number: uint64_t, group: uint32_t) -> cython.pointer[Session]:
    shard: cython.pointer[Session] = new_session(r)
    shard.number = number
    shard.group = group
    shard.outbox.head = shard.outbox.next = shard.outbox.tail = _FIRST_PLACE
    r.sessions[number] = shard
    r.shards.push_back(shard)
    return shard


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _key_of(group: uint32_t, stored: cython.bint) -> uint64_t:
    """In ``Reactor.shard_of_group``: a group has one shard there that is stored, and one that is not."""
    return cython.cast(uint64_t, group) * 2 + (1 if stored else 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def shard_of(r: cython.pointer[Reactor], group: uint32_t, stored: cython.bint) -> cython.pointer[Session]:
    """The shard of a group on this reactor, made when first asked for; NULL when the group is gone."""
    filter: string
    key: uint64_t = _key_of(group, stored)
    if r.shard_of_group.count(key):
        return r.shard_of_group[key]
    lock_shared(r.shared.subscriptions)
    found: cython.pointer[SharedGroup] = find_group(r.shared.subscriptions, group)
    if found != cython.NULL:
        filter.append(cython.cast(cython.p_char, b"$share/"))
        filter.append(cython.cast(cython.p_char, found.name.data), found.name.size)
        filter.push_back(0x2F)  # '/'
        filter.append(cython.cast(cython.p_char, found.filter.data), found.filter.size)
    unlock_shared(r.shared.subscriptions)
    if found == cython.NULL:
        return cython.NULL
    pthread_mutex_lock(cython.address(r.shared.registry_lock))
    r.shared.next_session += 1
    number: uint64_t = r.shared.next_session
    pthread_mutex_unlock(cython.address(r.shared.registry_lock))
    shard: cython.pointer[Session] = _add_shard(r, number, group)
    r.shard_of_group[key] = shard
    if stored:
        make_stored(r, shard)
        row_key: string
        append_u64(cython.address(row_key), number)
        put_value(r, FAMILY_SHARED, cython.address(row_key), cython.address(filter))
    return shard


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def load_shard(r: cython.pointer[Reactor], number: uint64_t, group: uint32_t) -> cython.void:
    """A shard that the store has brought back."""
    make_stored(r, _add_shard(r, number, group))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def holds_any(shard: cython.pointer[cython.const[Session]]) -> cython.bint:
    """Whether messages wait in it, in memory or in the store."""
    return shard.outbox.waiting > 0 or (shard.stored != cython.NULL and shard.stored.waiting > 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def takes_more(s: cython.pointer[cython.const[Session]]) -> cython.bint:
    """Whether a message for this member would go out now."""
    c: cython.pointer[Connection] = s.connection
    if s.internal:
        return True
    return c != cython.NULL and not c.doomed and s.outbox.waiting == 0 and s.outbox.inflight < c.send_max


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _members_here(
    r: cython.pointer[Reactor],
    group: uint32_t,
    members: cython.pointer[vector[Subscription]],
    elsewhere: cython.pointer[cython.int],
) -> cython.bint:
    """The members of this reactor that are online, and another reactor that has one, or -1. False: the group
    is gone.
    """
    index: uint32_t
    lock_shared(r.shared.subscriptions)
    found: cython.pointer[SharedGroup] = find_group(r.shared.subscriptions, group)
    if found != cython.NULL:
        for index in range(found.members.count):
            item: Subscription = found.members.items[index]
            session: cython.pointer[Session] = cython.cast(cython.pointer[Session], item.session)
            if not load_u8(cython.address(session.online), ACQUIRE):
                continue
            if item.reactor == r.index:
                members.push_back(item)
            else:
                elsewhere[0] = item.reactor
    unlock_shared(r.shared.subscriptions)
    return found != cython.NULL


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _give(
    r: cython.pointer[Reactor],
    shard: cython.pointer[Session],
    entry: cython.pointer[Entry],
    member: cython.pointer[Subscription],
) -> cython.void:
    """The shard's oldest entry goes to a member; its row stays, unless the member keeps it as its own."""
    passage: Passage
    s: cython.pointer[Session] = cython.cast(cython.pointer[Session], member.session)
    # the entry's own may be what another member was granted
    qos: cython.uchar = min(member.options & OPTION_QOS, entry.message.qos)
    retain: cython.bint = entry.retain and member.options & OPTION_RETAIN_AS_PUBLISHED
    ids_count: uint32_t = 1 if member.subscription_id else 0
    open_passage(cython.address(passage), entry.message)
    passage.feeder = 0
    stored: cython.bint = entry.row != ROW_NONE
    if stored and qos and not s.internal and (qos == 1 or s.stored == cython.NULL):
        take_over(r, s, passage.message, qos, retain, member.subscription_id, shard.number)
        entry.row = ROW_NONE
        forget_entry(cython.address(shard.outbox), entry, r.tally)
        send_waiting(r, s)
    elif stored:
        # the member may have it by another subscription too
        own: Passage = copy_passage(cython.address(passage), next_id(r))
        remove_row(r, shard, entry)
        forget_entry(cython.address(shard.outbox), entry, r.tally)
        deliver(r, s, cython.address(own), qos, retain, cython.address(member.subscription_id), ids_count)
        if own.kept:
            r.section.records.back().moved = True
        close_passage(cython.address(own), r.tally)
    else:
        if qos == 1:
            passage.shard = shard.number
        forget_entry(cython.address(shard.outbox), entry, r.tally)
        deliver(r, s, cython.address(passage), qos, retain, cython.address(member.subscription_id), ids_count)
    close_passage(cython.address(passage), r.tally)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _serve(
    r: cython.pointer[Reactor],
    shard: cython.pointer[Session],
    members: cython.pointer[vector[Subscription]],
) -> cython.void:
    """As many of its messages as the members take now, in turn."""
    box: cython.pointer[Outbox] = cython.address(shard.outbox)
    idle: cython.size_t = 0
    while box.waiting and idle < members.size():
        entry: cython.pointer[Entry] = entry_at(box, box.next)
        if entry.state == DONE:
            box.next += 1
            continue
        r.group_turn += 1
        member: cython.pointer[Subscription] = cython.address(members[0][r.group_turn % members.size()])
        if takes_more(cython.cast(cython.pointer[Session], member.session)):
            idle = 0
            _give(r, shard, entry, member)
        else:
            idle += 1
    if idle < members.size():
        request_rows(r, shard)
    if is_waited_for(shard):
        relieve(r, shard)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def serve_shard(r: cython.pointer[Reactor], shard: cython.pointer[Session]) -> cython.void:
    """Whatever can go out of it goes."""
    members: vector[Subscription]
    elsewhere: cython.int
    if holds_any(shard):
        if _members_here(r, shard.group, cython.address(members), cython.address(elsewhere)):
            _serve(r, shard, cython.address(members))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def serve_shards(r: cython.pointer[Reactor]) -> cython.void:
    """A member has got room, or rows have come: whatever can go out goes."""
    index: cython.size_t
    for index in range(r.shards.size()):
        serve_shard(r, r.shards[index])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _take_back(
    r: cython.pointer[Reactor], shard: cython.pointer[Session], entry: cython.pointer[Entry]
) -> cython.void:
    """One entry becomes the oldest of its shard; those of one member come newest first."""
    message: cython.pointer[Message] = entry.message
    if shard.stored != cython.NULL:
        note_returned(r, entry)
        lower_edge(shard, cython.address(message.id))
        note_spilled(shard, message)
        return
    box: cython.pointer[Outbox] = cython.address(shard.outbox)
    # a place at the tail makes room in the ring; the entries move up by one, the oldest place is then free
    append_entry(box, r.tally)
    place: uint64_t = box.tail - 1
    while place > box.head:
        entry_at(box, place)[0] = entry_at(box, place - 1)[0]
        place -= 1
    first: cython.pointer[Entry] = entry_at(box, box.head)
    first[0] = entry[0]
    first.state = WAITING
    first.was_sent = False
    first.queue = 0
    first.subscription_ids = cython.NULL
    hold_message(message)
    box.next = box.head
    box.bytes += message_bytes(message)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def return_held(r: cython.pointer[Reactor], s: cython.pointer[Session]) -> cython.void:
    """A member is gone: what it held of its groups goes back, in order, to be taken by others."""
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    place: uint64_t = box.tail
    while place > box.head:
        place -= 1
        entry: cython.pointer[Entry] = entry_at(box, place)
        if entry.queue == 0 or (entry.state != WAITING and entry.state != SENT):
            continue
        if entry.qos == 2 and (entry.state == SENT or entry.was_sent):
            continue  # its delivery has begun
        if not r.sessions.count(entry.queue):
            continue
        _take_back(r, r.sessions[entry.queue], entry)
        entry.row = ROW_NONE
        forget_entry(box, entry, r.tally)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _forget_shard(r: cython.pointer[Reactor], at: cython.size_t) -> cython.void:
    """The shard is this reactor's no more."""
    shard: cython.pointer[Session] = r.shards[at]
    end_strain(r, shard)
    key: uint64_t = _key_of(shard.group, shard.stored != cython.NULL)
    r.shards[at] = r.shards.back()
    r.shards.pop_back()
    if r.shard_of_group.count(key) and r.shard_of_group[key] == shard:
        r.shard_of_group.erase(key)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _move_shard(r: cython.pointer[Reactor], at: cython.size_t, target: cython.int) -> cython.bint:
    """Sends a shard to another reactor, once nothing of it is on its way to or from the store, or offered."""
    shard: cython.pointer[Session] = r.shards[at]
    if shard.stored != cython.NULL:
        if is_awaited(r, shard.number):
            return False
        evict_waiting(r, shard)
        if shard.stored.leaving == 0:
            shard.stored.leaving = last_section(r)
        if shard.stored.reading or shard.stored.leaving > r.committed:
            return False
        if shard.outbox.head != shard.outbox.tail:
            return False
        shard.stored.leaving = 0
        pthread_mutex_lock(cython.address(r.shared.registry_lock))
        r.shared.queue_owners[shard.number] = target
        pthread_mutex_unlock(cython.address(r.shared.registry_lock))
    _forget_shard(r, at)
    r.sessions.erase(shard.number)
    mail: Mail = new_mail(MAIL_SHARD)
    mail.pointer = shard
    r.outgoing[target].push_back(mail)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def adopt_shard(r: cython.pointer[Reactor], shard: cython.pointer[Session]) -> cython.void:
    """A shard goes on here."""
    shard.reactor = r.index
    r.sessions[shard.number] = shard
    r.shards.push_back(shard)
    serve_shards(r)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def tend_shards(r: cython.pointer[Reactor]) -> cython.void:
    """Once a tick: shards without a member here move to one, those whose group is gone end, others are
    served.
    """
    index: cython.size_t = 0
    members: vector[Subscription]
    while index < r.shards.size():
        shard: cython.pointer[Session] = r.shards[index]
        elsewhere: cython.int = -1
        members.clear()
        if not _members_here(r, shard.group, cython.address(members), cython.address(elsewhere)):
            _forget_shard(r, index)
            note_drop(r, shard, C_DROPPED_NO_GROUP_MEMBER, shard.outbox.waiting)
            end_session(r, shard)
            continue
        if holds_any(shard):
            if not members.empty():
                _serve(r, shard, cython.address(members))
            elif elsewhere >= 0 and not r.stopping and _move_shard(r, index, elsewhere):
                continue
            elif elsewhere < 0:
                stop_waiting(r, shard)  # nobody takes from it
        index += 1
