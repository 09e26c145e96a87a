"""The queue of a shared group: in shards, each on one reactor, a session without a client.

A message goes straight to a member that can take it now; only where none can does it wait in a shard, which
members empty as they get room. What a member has taken at QoS 1 keeps its row under the shard and goes back
when the member is gone; at QoS 2 it stays with the member, as 4.8.2 wants. A shard whose reactor has no
member online moves, whole, to one that has.
"""

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, may_touch
from cython.cimports.tidemq.engine.base.counters import LIVE_SESSIONS
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import Passage, close_passage, copy_passage, open_passage
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.index.interest import whole_filter
from cython.cimports.tidemq.engine.index.subscriptions import (
    SharedGroup,
    find_group,
    lock_shared,
    unlock_shared,
)
from cython.cimports.tidemq.engine.journal.journal import (
    ask_store,
    last_section,
    next_id,
    put_value,
    remove_row,
)
from cython.cimports.tidemq.engine.journal.rows import append_u64
from cython.cimports.tidemq.engine.link.backpressure import end_strain, is_waited_for, relieve, stop_waiting
from cython.cimports.tidemq.engine.link.mail import new_mail
from cython.cimports.tidemq.engine.queues.delivery import deliver, send_waiting, take_over
from cython.cimports.tidemq.engine.queues.groups import (
    draw_ready,
    forget_group,
    holds_any,
    is_waiting,
    local_group,
    look_for_room,
    make_due,
    note_room,
    takes_more,
)
from cython.cimports.tidemq.engine.queues.outbox import entry_at, forget_entry
from cython.cimports.tidemq.engine.queues.queueing import evict_waiting, make_stored, request_rows
from cython.cimports.tidemq.engine.queues.sessions import end_session, forget_session, new_session
from cython.cimports.tidemq.engine.state.client import LocalGroup, Membership, Session
from cython.cimports.tidemq.engine.state.mail import MAIL_SHARD, Mail
from cython.cimports.tidemq.engine.state.nodes import NODES_MAX
from cython.cimports.tidemq.engine.state.queue import DONE, ROW_NONE, Entry, Outbox
from cython.cimports.tidemq.engine.state.section import FAMILY_SHARED, RECORD_ADD, RECORD_LET_GO

# where an empty shard's outbox begins: what comes back goes in before its head
_FIRST_PLACE = cython.declare(uint64_t, 4294967296)
_TEND_MAX = cython.declare(uint32_t, 2048)  # groups and members that a tick looks at


def _add_shard(r, number, group):
    shard: cython.pointer[Session] = new_session(r)
    shard.number = number
    shard.group = group
    shard.outbox.head = shard.outbox.next = shard.outbox.tail = _FIRST_PLACE
    r.sessions[number] = shard
    local_group(r, group).shards.push_back(shard)
    return shard


def _make_shard(r, group, stored):
    """A new shard of a group, or NULL when the group is gone."""
    filter: string
    lock_shared(r.common.subscriptions)
    found: cython.pointer[SharedGroup] = find_group(r.common.subscriptions, group)
    if found != cython.NULL:
        filter = whole_filter(found.filter, found.name)
    unlock_shared(r.common.subscriptions)
    if found == cython.NULL:
        return cython.NULL
    lock(cython.address(r.common.registry_lock))
    r.common.next_session += 1
    number: uint64_t = r.common.next_session
    unlock(cython.address(r.common.registry_lock))
    shard: cython.pointer[Session] = _add_shard(r, number, group)
    if stored:
        make_stored(r, shard)
        row_key: string
        append_u64(cython.address(row_key), number)
        put_value(r, FAMILY_SHARED, cython.address(row_key), cython.address(filter))
    return shard


def shard_of(r, group, stored):
    """The group's shard on this reactor for what is new, made when first asked for; NULL when the group is
    gone. One that is stored, and one that is not, are for messages that the store keeps or does not.
    """
    index: cython.size_t
    for index in range(group.shards.size()):
        if stored == (group.shards[index].stored != cython.NULL):
            return group.shards[index]
    return _make_shard(r, group.number, stored)


def load_shard(r, number, group):
    """A shard that the store has brought back."""
    make_stored(r, _add_shard(r, number, group))


def _give(r, shard, entry, member):
    """The shard's oldest entry goes to a member; its row stays, unless the member keeps it as its own."""
    passage: Passage
    index: cython.size_t
    s: cython.pointer[Session] = member.session
    # the entry's own may be what another member was granted
    qos: cython.uchar = min(member.qos, entry.message.qos)
    retain: cython.bint = entry.retain and member.retain_as_published
    ids_count: uint32_t = 1 if member.subscription_id else 0
    open_passage(cython.address(passage), entry.message)
    passage.feeder = 0
    passage.reported = entry.reported
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
        before: cython.size_t = r.section.records.size()
        deliver(r, s, cython.address(own), qos, retain, cython.address(member.subscription_id), ids_count)
        for index in range(before, r.section.records.size()):
            if r.section.records[index].kind == RECORD_ADD:
                r.section.records[index].moved = True
        close_passage(cython.address(own), r.tally)
    else:
        if qos == 1:
            passage.shard = shard.number
        forget_entry(cython.address(shard.outbox), entry, r.tally)
        deliver(r, s, cython.address(passage), qos, retain, cython.address(member.subscription_id), ids_count)
    close_passage(cython.address(passage), r.tally)


def _serve(r, group, shard):
    """As many of its messages as the members take now, and as may go out in this turn."""
    box: cython.pointer[Outbox] = cython.address(shard.outbox)
    holds(shard.group == group.number, b"shards: one serves the members of its own group")
    if ASSERTS:
        holds(may_touch(shard.reactor), b"shards: one is served by the reactor that it is on")
    while box.waiting and r.give_left:
        entry: cython.pointer[Entry] = entry_at(box, box.next)
        if entry.state == DONE:
            box.next += 1
            continue
        member: cython.pointer[Membership] = draw_ready(r, group)
        if member == cython.NULL:
            break
        count_steps(1)
        r.give_left -= 1
        _give(r, shard, entry, member)
    if group.ready:
        request_rows(r, shard)
    if is_waited_for(shard):
        relieve(r, shard)


def serve_group(r, group):
    """Whatever of its queue can go out goes, or some of it now and the rest with the next turns."""
    index: cython.size_t
    if group.handbacks:
        return
    for index in range(group.shards.size()):
        if group.ready and holds_any(group.shards[index]):
            _serve(r, group, group.shards[index])
    for index in range(group.shards.size()):
        if group.ready and group.shards[index].outbox.waiting:
            make_due(r, group)


def serve_shard(r, shard):
    """Rows have come, or a message: whatever can go out goes."""
    serve_group(r, local_group(r, shard.group))


def look_at_room(r, s):
    """A session may have got room: where it was found full it takes again of the queues of its groups."""
    if s.memberships == cython.NULL:
        return
    while not s.memberships.full.empty() and takes_more(s):
        count_steps(1)
        group: cython.pointer[LocalGroup] = s.memberships.full.back().group
        note_room(s.memberships.full.back())
        if is_waiting(group):
            serve_group(r, group)


def continue_groups(r):
    """Once a turn: groups whose members came, or of whose queue more can go out. As many messages again as
    may go out before: a group whose members acknowledge much in each turn holds up no other.
    """
    groups: cython.size_t = min(r.due_groups.size(), cython.cast(cython.size_t, GIVE_A_TURN))
    r.give_left = GIVE_A_TURN
    while groups and r.give_left:
        group: cython.pointer[LocalGroup] = r.due_groups.front()
        r.due_groups.pop_front()
        holds(group.due, b"shards: a group in the list of those that are due says so")
        group.due = False
        serve_group(r, group)
        groups -= 1


def _forget_shard(r, shard):
    """The shard is this reactor's no more."""
    end_strain(r, shard)
    index: cython.size_t
    group: cython.pointer[LocalGroup] = local_group(r, shard.group)
    for index in range(group.shards.size()):
        if group.shards[index] == shard:
            group.shards[index] = group.shards.back()
            group.shards.pop_back()
            break


def _is_settled(r, shard):
    """Whether nothing of a stored shard is on its way to or from the store, or offered."""
    if shard.stored.offered:
        return False
    evict_waiting(r, shard)
    if shard.stored.leaving == 0:
        shard.stored.leaving = last_section(r)
    if shard.stored.reading or shard.stored.leaving > r.committed:
        return False
    return shard.outbox.head == shard.outbox.tail


def _move_shard(r, shard, target):
    """Sends a shard to another reactor, once nothing of it is on its way to or from the store, or offered."""
    if shard.stored != cython.NULL:
        if not _is_settled(r, shard):
            return
        shard.stored.leaving = 0
        lock(cython.address(r.common.registry_lock))
        r.common.queue_owners[shard.number] = target
        unlock(cython.address(r.common.registry_lock))
    _forget_shard(r, shard)
    r.sessions.erase(shard.number)
    r.tally[LIVE_SESSIONS] -= 1
    mail: Mail = new_mail(MAIL_SHARD)
    mail.pointer = shard
    r.outgoing[target].push_back(mail)


def adopt_shard(r, shard):
    """A shard goes on here."""
    group: cython.pointer[LocalGroup] = local_group(r, shard.group)
    shard.reactor = r.index
    r.sessions[shard.number] = shard
    r.tally[LIVE_SESSIONS] += 1
    group.shards.push_back(shard)
    make_due(r, group)


def _let_go(r, shard):
    """Only other nodes have members of the group, if anybody has: once nothing of the shard is on its way, it
    is the store's thread that gives its messages to them, or ends it.
    """
    if not _is_settled(r, shard):
        return
    ask_store(r, RECORD_LET_GO, shard.number)
    _forget_shard(r, shard)
    forget_session(r, shard)


def _find_elsewhere(r, group, elsewhere, away):
    """Another reactor that has a member of the group online, or -1. ``away``: whether it is other nodes alone
    that have. False: the group is gone.
    """
    reactor: uint32_t
    slot: uint32_t
    online: uint32_t = 0
    elsewhere[0] = -1
    lock_shared(r.common.subscriptions)
    found: cython.pointer[SharedGroup] = find_group(r.common.subscriptions, group)
    if found != cython.NULL:
        for reactor in range(found.reactors):
            if found.online[reactor] and reactor != r.index:
                elsewhere[0] = reactor
        for slot in range(NODES_MAX if found.nodes else 0):
            online += found.online_there[slot]
        away[0] = online and elsewhere[0] < 0
    unlock_shared(r.common.subscriptions)
    return found != cython.NULL


def _tend_empty(r, at):
    """A group without a member here: its shards move to one, or end with the group. False: it is gone."""
    group: cython.pointer[LocalGroup] = r.group_list[at]
    elsewhere: cython.int
    away: cython.bint = False
    index: cython.size_t = group.shards.size()
    if _find_elsewhere(r, group.number, cython.address(elsewhere), cython.address(away)):
        while index > 0 and elsewhere >= 0 and not r.stopping and group.handbacks == 0:
            index -= 1
            count_steps(1)
            if holds_any(group.shards[index]):
                _move_shard(r, group.shards[index], elsewhere)
        while index > 0 and away and not r.stopping and group.handbacks == 0:
            index -= 1
            count_steps(1)
            if group.shards[index].stored != cython.NULL and holds_any(group.shards[index]):
                _let_go(r, group.shards[index])
        if elsewhere < 0:
            for index in range(group.shards.size()):
                stop_waiting(r, group.shards[index])  # nobody takes from it
        return True
    if group.due or group.handbacks:
        return True  # until that is over
    while index > 0:
        index -= 1
        shard: cython.pointer[Session] = group.shards[index]
        if r.common.ask_sessions and shard.stored != cython.NULL:
            if not r.stopping:
                _let_go(r, shard)  # its last member may be on a node of which nothing has been heard yet
        else:
            _forget_shard(r, shard)
            end_session(r, shard)
    if not group.shards.empty():
        return True
    forget_group(r, at)
    return False


def tend_shards(r):
    """Once a tick: shards without a member here move to one, those whose group is gone end, others are
    served. So many groups at a time, the next tick goes on with those that follow.
    """
    left: uint32_t = _TEND_MAX
    groups: cython.size_t = r.group_list.size()
    while groups and left and not r.group_list.empty():
        count_steps(1)
        groups -= 1
        left -= 1
        if r.group_at >= r.group_list.size():
            r.group_at = 0
        group: cython.pointer[LocalGroup] = r.group_list[r.group_at]
        if group.members.empty():
            if not _tend_empty(r, r.group_at):
                continue
        elif is_waiting(group):
            left -= min(left, look_for_room(r, group))
            make_due(r, group)
        r.group_at += 1
