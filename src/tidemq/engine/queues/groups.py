"""What a reactor has of shared groups: the members that are its own, and which of them may take a message.

Nothing here costs the number of members. A group's members whose clients are there stand in one array, those
that may take a message first. Who is drawn and found to take none is moved behind them, and back when its
client has acknowledged: each move is paid for by a draw. How many members other reactors have is counted in
the index.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.base.counters import MEMORY_SESSIONS
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.index.subscribers import OPTION_QOS, OPTION_RETAIN_AS_PUBLISHED
from cython.cimports.tidemq.engine.link.output import pending_output
from cython.cimports.tidemq.engine.state.client import Connection, LocalGroup, Membership, Memberships
from cython.cimports.tidemq.engine.state.strain import Strain
from cython.operator import dereference, preincrement

_GROUP_BYTES = cython.declare(int64_t, 192)  # about, with its place in the table
_MEMBER_BYTES = cython.declare(int64_t, 128)
_TRIES_MAX = cython.declare(uint32_t, 64)  # of a draw
_ANY_TRIES_MAX = cython.declare(uint32_t, 8)
_CHECKED_MAX = cython.declare(uint32_t, 32)  # members of a group whose places are checked


# --- the groups that a reactor knows ---------------------------------------------------------------


def local_group(r, number):
    """What this reactor has of a group, made when first asked for. It stays until the group is gone."""
    known = r.groups.find(number)
    if known != r.groups.end():
        return dereference(known).second
    owner: unique_ptr[LocalGroup] = make_unique[LocalGroup]()
    group: cython.pointer[LocalGroup] = owner.release()
    group.number = number
    r.groups[number] = group
    r.group_list.push_back(group)
    r.tally[MEMORY_SESSIONS] += _GROUP_BYTES
    return group


def forget_group(r, at):
    """The group at this place of the list is gone: it has no members, and no shards any more."""
    group: cython.pointer[LocalGroup] = r.group_list[at]
    holds(group.members.empty(), b"groups: one that is forgotten has no members")
    r.group_list[at] = r.group_list.back()
    r.group_list.pop_back()
    r.groups.erase(group.number)
    r.tally[MEMORY_SESSIONS] -= _GROUP_BYTES
    del group


def free_groups(r):
    """Forgets all groups of a reactor whose sessions are gone."""
    while not r.group_list.empty():
        forget_group(r, r.group_list.size() - 1)
    r.due_groups.clear()
    r.group_at = 0


def holds_any(shard):
    """Whether messages wait in it, in memory or in the store."""
    return shard.outbox.waiting > 0 or (shard.stored != cython.NULL and shard.stored.waiting > 0)


def is_waiting(group):
    """Whether messages wait in any of its shards here."""
    index: cython.size_t
    waiting: cython.bint = False
    for index in range(group.shards.size()):
        waiting = waiting or holds_any(group.shards[index])
    return waiting


def make_due(r, group):
    """Something of the group's queue may go out: its members are looked at again, this turn or the next."""
    if not group.due and is_waiting(group):
        group.due = True
        r.due_groups.push_back(group)


# --- members ---------------------------------------------------------------------------------------


def is_present(s):
    """Whether there is a client, or a receiver of the embedding program."""
    return s.internal or s.connection != cython.NULL


def _place(group, member, at):
    group.members[at] = member
    member.at = at


def _exchange(group, a, b):
    member: cython.pointer[Membership] = group.members[a]
    _place(group, group.members[b], a)
    _place(group, member, b)


def _check_members(member):
    """The member, and some beside it, are where they say that they are."""
    group: cython.pointer[LocalGroup] = member.group
    holds(group.ready <= group.members.size(), b"groups: no more are ready than are there")
    at: uint32_t
    for at in range(min(cython.cast(uint32_t, group.members.size()), _CHECKED_MAX)):
        each: cython.pointer[Membership] = group.members[at]
        holds(each.present, b"groups: whoever is among the members is there")
        holds(each.at == at and each.group == group, b"groups: a member is at its place")
        holds(each.full == (at >= group.ready), b"groups: those below ready are those not found full")
        full: cython.pointer[Memberships] = each.session.memberships
        listed: cython.bint = each.full_at < full.full.size() and full.full[each.full_at] == each
        holds(listed or not each.full, b"groups: one found full is in its session's list")


def note_room(member):
    """A member that was found full may take a message again."""
    full: cython.pointer[Memberships] = member.session.memberships
    group: cython.pointer[LocalGroup] = member.group
    full.full[member.full_at] = full.full.back()
    full.full[member.full_at].full_at = member.full_at
    full.full.pop_back()
    member.full = False
    _exchange(group, member.at, group.ready)
    group.ready += 1
    if ASSERTS:
        _check_members(member)


def _note_full(member):
    full: cython.pointer[Memberships] = member.session.memberships
    group: cython.pointer[LocalGroup] = member.group
    group.ready -= 1
    _exchange(group, member.at, group.ready)
    member.full = True
    member.full_at = cython.cast(uint32_t, full.full.size())
    full.full.push_back(member)
    if ASSERTS:
        _check_members(member)


def _enter(r, member):
    """The member's client has come: it is one of those that may take a message."""
    group: cython.pointer[LocalGroup] = member.group
    member.present = True
    member.at = cython.cast(uint32_t, group.members.size())
    group.members.push_back(member)
    _exchange(group, member.at, group.ready)
    group.ready += 1
    if ASSERTS:
        _check_members(member)
    make_due(r, group)


def _go(member):
    """The member's client has gone."""
    group: cython.pointer[LocalGroup] = member.group
    if not member.present:
        return
    if member.full:
        note_room(member)
    group.ready -= 1
    _exchange(group, member.at, group.ready)
    _place(group, group.members.back(), member.at)
    group.members.pop_back()
    member.present = False
    if ASSERTS:
        _check_members(member)


def join_group(r, s, number, options, subscription_id):
    """A session of this reactor has subscribed in a shared group, for the first time or again."""
    if s.memberships == cython.NULL:
        owner: unique_ptr[Memberships] = make_unique[Memberships]()
        s.memberships = owner.release()
    if not s.memberships.by_group.count(number):
        made: unique_ptr[Membership] = make_unique[Membership]()
        fresh: cython.pointer[Membership] = made.release()
        fresh.session = s
        fresh.group = local_group(r, number)
        s.memberships.by_group[number] = fresh
        r.tally[MEMORY_SESSIONS] += _MEMBER_BYTES
        if is_present(s):
            _enter(r, fresh)
    member: cython.pointer[Membership] = s.memberships.by_group[number]
    member.subscription_id = subscription_id
    member.qos = options & OPTION_QOS
    member.retain_as_published = options & OPTION_RETAIN_AS_PUBLISHED


def _end_membership(r, member):
    _go(member)
    r.tally[MEMORY_SESSIONS] -= _MEMBER_BYTES
    del member


def leave_group(r, s, number):
    """It has unsubscribed."""
    if s.memberships != cython.NULL and s.memberships.by_group.count(number):
        _end_membership(r, s.memberships.by_group[number])
        s.memberships.by_group.erase(number)


def leave_all_groups(r, s):
    """It ends."""
    if s.memberships == cython.NULL:
        return
    item = s.memberships.by_group.begin()
    while item != s.memberships.by_group.end():
        count_steps(1)
        _end_membership(r, dereference(item).second)
        preincrement(item)
    del s.memberships
    s.memberships = cython.NULL


def enter_groups(r, s, present):
    """Its client has come, or gone, as far as this reactor's own groups go."""
    item = s.memberships.by_group.begin()
    while item != s.memberships.by_group.end():
        count_steps(1)
        if not present:
            _go(dereference(item).second)
        elif not dereference(item).second.present:
            _enter(r, dereference(item).second)
        preincrement(item)


# --- the draw --------------------------------------------------------------------------------------


def takes_more(s):
    """Whether a message for this member would go out now."""
    c: cython.pointer[Connection] = s.connection
    if s.internal:
        return True
    return c != cython.NULL and not c.doomed and s.outbox.waiting == 0 and s.outbox.inflight < c.send_max


def draw(r):
    """Drawn, not counted: several groups on one topic would take turns in step and leave members out."""
    r.group_turn = r.group_turn * 1664525 + 1013904223
    return r.group_turn >> 8


def draw_ready(r, group):
    """A member of this reactor that takes a message now, or NULL: there is none, or, where some are ``ready``
    still, none was found in so many tries.
    """
    tried: uint32_t
    for tried in range(_TRIES_MAX):
        if group.ready == 0:
            break
        count_steps(1)
        member: cython.pointer[Membership] = group.members[draw(r) % group.ready]
        if takes_more(member.session):
            return member
        _note_full(member)
    return cython.NULL


def draw_any(r, group):
    """A member of this reactor for a message at QoS 0, which needs no place in a window; there must be one.
    One that is not slow to take its output, where such a one is found soon.
    """
    start: uint32_t = draw(r)
    count: uint32_t = cython.cast(uint32_t, group.members.size())
    tried: uint32_t
    for tried in range(min(count, _ANY_TRIES_MAX)):
        member: cython.pointer[Membership] = group.members[(start + tried) % count]
        c: cython.pointer[Connection] = member.session.connection
        strain: cython.pointer[Strain] = member.session.strain
        keeps_up: cython.bint = strain == cython.NULL or not strain.slow
        if member.session.internal or (
            not c.doomed and keeps_up and pending_output(c) <= r.common.limits.output_high_bytes
        ):
            return member
    return group.members[start % count]


def look_for_room(r, group):
    """Looks whether some of those that were found full take a message by now, for not all that makes room is
    told (``shards.note_room``). Returns how many it looked at.
    """
    count: uint32_t = cython.cast(uint32_t, group.members.size())
    left: uint32_t = min(count - group.ready, _TRIES_MAX)
    start: uint32_t = draw(r)
    tried: uint32_t
    for tried in range(left):
        count_steps(1)
        if group.ready == count:
            break
        at: uint32_t = group.ready + (start + tried) % (count - group.ready)
        if takes_more(group.members[at].session):
            note_room(group.members[at])
    return left
