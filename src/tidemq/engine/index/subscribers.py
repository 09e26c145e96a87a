"""Sets of subscriptions, one for each session: what a topic filter or a shared group holds.

A filter with one subscription, the usual case, holds it in its node and has no set.

A set is one block of memory: an array of items and, once it is large, a hash table from session to item, so
that 100,000 sessions can come to one filter, and leave it, at constant cost each. NULL is the empty set.
"""

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.tidemq.engine.base.allocation import allocate, release
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.index.subscribers import (
    SET,
    SET_INDEXED,
    SubscriberSet,
    Subscription,
    is_session,
)


def set_bytes(capacity):
    """The size of a set's block: head, items, and in large sets two table entries for each item."""
    size: cython.size_t = cython.sizeof(SubscriberSet) - cython.sizeof(Subscription)
    size += capacity * cython.sizeof(Subscription)
    if capacity >= SET_INDEXED:
        size += 2 * capacity * cython.sizeof(uint32_t)
    return size


def table_of(members):
    """The table of a large set: open addressing, 2 * capacity entries, each an item's position + 1 or 0."""
    return cython.cast(cython.pointer[uint32_t], members.items + members.capacity)


def home_entry(members, position):
    """The table entry where the search for an item's session begins."""
    return entry_of(members, members.items[position].session)


def entry_of(members, session):
    """The table entry where the search for a session begins."""
    mixed: uint64_t = cython.cast(uint64_t, session) * cython.cast(uint64_t, 0x9E3779B97F4A7C15)
    return cython.cast(uint32_t, mixed >> 32) & (2 * members.capacity - 1)


def enter_position(members, position):
    """Adds an item to the table."""
    table: cython.pointer[uint32_t] = table_of(members)
    at: uint32_t = home_entry(members, position)
    while table[at] != 0:
        at = (at + 1) & (2 * members.capacity - 1)
    table[at] = position + 1


def entry_holding(members, position):
    """The table entry of an item."""
    table: cython.pointer[uint32_t] = table_of(members)
    at: uint32_t = home_entry(members, position)
    while table[at] != position + 1:
        holds(table[at] != 0, b"subscribers: a large set has all items in its table")
        at = (at + 1) & (2 * members.capacity - 1)
    return at


def leave_table(members, position):
    """Takes an item out of the table and moves the entries behind it up."""
    table: cython.pointer[uint32_t] = table_of(members)
    mask: uint32_t = 2 * members.capacity - 1
    gap: uint32_t = entry_holding(members, position)
    at: uint32_t = (gap + 1) & mask
    while table[at] != 0:
        displaced: uint32_t = (at - home_entry(members, table[at] - 1)) & mask
        if displaced >= (at - gap) & mask:
            table[gap] = table[at]
            gap = at
        at = (at + 1) & mask
    table[gap] = 0


def resize_set(members, capacity):
    """Moves a set (NULL: an empty one) to a block for ``capacity`` items, a power of two. Linear in size."""
    grown: cython.pointer[SubscriberSet] = cython.cast(
        cython.pointer[SubscriberSet], allocate(set_bytes(capacity))
    )
    grown.capacity = capacity
    holds(members == cython.NULL or members.count <= capacity, b"subscribers: a set has room for its items")
    if members != cython.NULL:
        grown.count = members.count
        grown.sessions = members.sessions
        memcpy(grown.items, members.items, members.count * cython.sizeof(Subscription))
        release(members)
    position: uint32_t
    if capacity >= SET_INDEXED:
        for position in range(grown.count):
            enter_position(grown, position)
    return grown


def find_subscriber(members, session):
    """The item of a session, or NULL. A set of NULL is empty."""
    if members == cython.NULL:
        return cython.NULL
    position: uint32_t
    if members.capacity < SET_INDEXED:
        for position in range(members.count):
            if members.items[position].session == session:
                return members.items + position
        return cython.NULL
    table: cython.pointer[uint32_t] = table_of(members)
    at: uint32_t = entry_of(members, session)
    while table[at] != 0:
        if members.items[table[at] - 1].session == session:
            return members.items + (table[at] - 1)
        at = (at + 1) & (2 * members.capacity - 1)
    return cython.NULL


def add_subscriber(members, subscription):
    """Adds a session that is not in the set; returns the set, which may have moved."""
    if ASSERTS:
        known: cython.bint = find_subscriber(members, subscription.session) != cython.NULL
        holds(not known, b"subscribers: a session is in a set once")
    if members == cython.NULL:
        members = resize_set(cython.NULL, 1)
    elif members.count == members.capacity:
        members = resize_set(members, 2 * members.capacity)
    members.items[members.count] = subscription
    if members.capacity >= SET_INDEXED:
        enter_position(members, members.count)
    members.count += 1
    members.sessions += is_session(cython.address(subscription))
    return members


def drop_subscriber(members, item):
    """Removes an item, whose place the last one takes; returns the set, which may have moved; NULL: empty."""
    position: uint32_t = cython.cast(uint32_t, item - members.items)
    last: uint32_t = members.count - 1
    holds(position <= last, b"subscribers: an item leaves the set that it is in")
    if last == 0:
        release(members)
        return cython.NULL
    members.sessions -= is_session(item)
    holds(members.sessions <= last, b"subscribers: no more sessions are counted than a set has items")
    if members.capacity >= SET_INDEXED:
        leave_table(members, position)
        if position != last:
            table_of(members)[entry_holding(members, last)] = position + 1
    members.items[position] = members.items[last]
    members.count = last
    if last <= members.capacity // 4:
        members = resize_set(members, members.capacity // 2)
    return members


def set_of(held):
    """The set behind what is of kind SET."""
    return cython.cast(cython.pointer[SubscriberSet], held.session)


def find_held(held, session):
    """The item of a session in what a filter holds, or NULL."""
    if held.kind == SET:
        return find_subscriber(set_of(held), session)
    return held if held.session == session else cython.NULL


def hold(held, subscription):
    """Adds an item to what a filter holds: the second one makes a set."""
    if held.session == cython.NULL:
        held[0] = subscription
        return
    members: cython.pointer[SubscriberSet]
    members = set_of(held) if held.kind == SET else add_subscriber(cython.NULL, held[0])
    held.session = add_subscriber(members, subscription)
    held.kind = SET


def let_go(held, item):
    """Removes an item from what a filter holds: the last but one ends the set."""
    if held.kind != SET:
        held.session = cython.NULL
        return
    members: cython.pointer[SubscriberSet] = drop_subscriber(set_of(held), item)
    held.session = members
    if members.count == 1:
        held[0] = members.items[0]
        release(members)


def sessions_of(held):
    """How many sessions hold a filter, however many others do."""
    if held.kind == SET:
        return set_of(held).sessions
    return held.session != cython.NULL and is_session(held)
