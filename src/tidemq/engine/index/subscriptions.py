"""Who subscribed to what: one index for all reactors, behind a readers-writer lock.

Each filter's node in a ``LevelTree`` holds its plain subscriptions, and one item for each shared group on it.
A group's members are a set of their own.

``version`` moves with every change that may alter the result of a match: a reactor may keep results as long
as it stands still, and beyond that those of topics that the changes do not concern (``marks``).

What belongs elsewhere: the sessions themselves, the choice of a group's member, and the merging of
subscriptions of one session that overlap.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.libc.string import memcpy
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.allocation import allocate, release
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.base.locks import ALONE, lock_to_read, lock_to_write, unlock_rwlock
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import (
    RELAXED,
    RELEASE,
    init_rwlock,
    pthread_rwlock_destroy,
    store_u64,
)
from cython.cimports.tidemq.engine.index.interest import note_interest
from cython.cimports.tidemq.engine.index.levels import (
    NO_NODE,
    ROOT,
    LevelNode,
    append_path,
    find_path,
    free_level_tree,
    insert_path,
    match_filters,
    new_level_tree,
    node_at,
    prune,
)
from cython.cimports.tidemq.engine.index.marks import (
    check_mark,
    draw_marks,
    mark_of_all,
    mark_of_filter,
)
from cython.cimports.tidemq.engine.index.subscribers import (
    GROUP,
    NODE_REACTOR,
    OPTION_ONLINE,
    OPTION_STORED,
    PLAIN,
    SET,
    SubscriberSet,
    Subscription,
    add_subscriber,
    drop_subscriber,
    find_held,
    find_subscriber,
    hold,
    is_session,
    let_go,
    sessions_of,
)
from cython.cimports.tidemq.engine.index.subscriptions import (
    SharedGroup,
    SubscriptionIndex,
)
from cython.cimports.tidemq.wire.protocol import Span

# --- the index -------------------------------------------------------------------------------------


def new_subscription_index():
    """An empty index; free it with ``free_subscription_index``."""
    owner: unique_ptr[SubscriptionIndex] = make_unique[SubscriptionIndex]()
    index: cython.pointer[SubscriptionIndex] = owner.release()
    init_rwlock(cython.address(index.lock))
    index.version = 0
    draw_marks(cython.address(index.marks))
    index.count = 0
    index.noting = False
    index.filters = new_level_tree()
    index.groups = new_level_tree()
    index.last_group_id = 0
    return index


def free_subscription_index(index):
    """Frees an index that no thread uses any more. Sessions are not touched."""
    node: uint32_t
    group: cython.pointer[SharedGroup]
    for node in range(index.filters.node_end):
        held: cython.pointer[Subscription] = held_by(node_at(index.filters, node))
        if held.kind == SET:
            release(held.session)
    for node in range(index.groups.node_end):
        group = cython.cast(cython.pointer[SharedGroup], node_at(index.groups, node).value)
        if group != cython.NULL:
            release(group.members)
            release(group.online)
            release(group)
    free_level_tree(index.filters)
    free_level_tree(index.groups)
    pthread_rwlock_destroy(cython.address(index.lock))
    del index


def lock_shared(index):
    """Waits until no thread writes or waits to write. Never take it twice in one thread."""
    lock_to_read(cython.address(index.lock), ALONE)


def unlock_shared(index):
    """Ends what ``lock_shared`` began."""
    unlock_rwlock(cython.address(index.lock), ALONE)


def lock_exclusive(index):
    """Waits until no other thread reads or writes; new readers wait meanwhile."""
    lock_to_write(cython.address(index.lock), ALONE)


def unlock_exclusive(index):
    """Ends what ``lock_exclusive`` began."""
    unlock_rwlock(cython.address(index.lock), ALONE)


def _move(index, mark):
    """The mark first: who sees the version sees the marks of all changes up to it."""
    holds(index.marks.moved[mark] <= index.version, b"subscriptions: no mark is beyond the version")
    store_u64(cython.address(index.marks.moved[mark]), index.version + 1, RELAXED)
    store_u64(cython.address(index.version), index.version + 1, RELEASE)


def move_filter(index, filter):
    """Tells readers that results which they keep of topics under a filter may be wrong. The exclusive lock is
    held.
    """
    mark: uint16_t = mark_of_filter(cython.address(index.marks), filter)
    if ASSERTS:
        check_mark(cython.address(index.marks), filter, mark)
    _move(index, mark)


def move_all(index):
    """The same of all topics."""
    _move(index, mark_of_all(cython.address(index.marks)))


def held_by(node):
    """What a filter's node holds: a Subscription lies over its value and detail."""
    return cython.cast(cython.pointer[Subscription], cython.address(node.value))


def is_equal(one, other):
    """Whether two subscriptions of one session to one filter make no difference to a match."""
    return (
        one.subscription_id == other.subscription_id
        and one.reactor == other.reactor
        and one.options == other.options
    )


def put_subscription(index, filter, group, subscription):
    """Inserts a subscription, or replaces the one with the same filter, group and session [MQTT-3.8.4-3].

    ``group`` is empty for a plain subscription. Returns whether it existed. The exclusive lock must be held.
    """
    shared: cython.pointer[SharedGroup] = cython.NULL
    held: cython.pointer[Subscription] = cython.NULL
    found: cython.pointer[Subscription]
    subscription.kind = PLAIN
    if group.size > 0:
        shared = open_group(index, filter, group)
        found = find_subscriber(shared.members, subscription.session)
    else:
        held = held_by(node_at(index.filters, insert_path(index.filters, ROOT, filter)))
        found = find_held(held, subscription.session)
    if found != cython.NULL:
        if not is_equal(found, cython.address(subscription)):
            if group.size > 0:
                count_member(shared, found, False)
                count_member(shared, cython.address(subscription), True)
            found[0] = subscription
            move_filter(index, filter)
        return True
    if group.size > 0:
        shared.members = add_subscriber(shared.members, subscription)
        count_member(shared, cython.address(subscription), True)
        if index.noting and is_session(cython.address(subscription)):
            note_interest(index, filter, group, True)
    else:
        hold(held, subscription)
        if index.noting and is_session(cython.address(subscription)) and sessions_of(held) == 1:
            note_interest(index, filter, group, True)
    index.count += 1
    move_filter(index, filter)
    return False


def remove_subscription(index, filter, group, session):
    """Removes the subscription with this filter, group and session [MQTT-3.10.4-1].

    Returns whether it existed. The exclusive lock must be held. A shared group goes with its last member.
    """
    removed: cython.bint = (
        remove_member(index, filter, group, session)
        if group.size > 0
        else remove_plain(index, filter, session)
    )
    if removed:
        index.count -= 1
        move_filter(index, filter)
    return removed


def remove_plain(index, filter, session):
    """Removes a session, or a group, from what a filter holds; returns whether it was there."""
    node: uint32_t = find_path(index.filters, ROOT, filter)
    if node == NO_NODE:
        return False
    held: cython.pointer[Subscription] = held_by(node_at(index.filters, node))
    found: cython.pointer[Subscription] = find_held(held, session)
    if found == cython.NULL:
        return False
    session_goes: cython.bint = is_session(found)
    let_go(held, found)
    if index.noting and session_goes and sessions_of(held) == 0:
        note_interest(index, filter, Span(cython.NULL, 0), False)
    prune(index.filters, node)
    return True


def drop_everywhere(index, session, begin, count, dropped):
    """Removes what is held as ``session`` from a part of the tree, for one that has very many filters and no
    list of them; the exclusive lock must be held.
    """
    at: cython.size_t
    end: cython.size_t = min(begin + count, cython.cast(cython.size_t, index.filters.node_end))
    for at in range(begin, end):
        node: cython.pointer[LevelNode] = node_at(index.filters, cython.cast(uint32_t, at))
        found: cython.pointer[Subscription] = find_held(held_by(node), session)
        if found == cython.NULL:
            continue
        path: string
        path.clear()
        append_path(index.filters, node, cython.address(path))
        let_go(held_by(node), found)
        prune(index.filters, cython.cast(uint32_t, at))
        filter: Span = Span(cython.cast(cython.pointer[cython.const[uint8_t]], path.data()) + 1, 0)
        filter.size = cython.cast(uint32_t, path.size() - 1)
        move_filter(index, filter)
        dropped[0] += 1
    return end < index.filters.node_end


def remove_member(index, filter, group, session):
    """Removes a session from a group, and the group with the last one; returns whether it was there."""
    shared: cython.pointer[SharedGroup] = find_group_by_name(index, filter, group)
    if shared == cython.NULL:
        return False
    found: cython.pointer[Subscription] = find_subscriber(shared.members, session)
    if found == cython.NULL:
        return False
    count_member(shared, found, False)
    if index.noting and is_session(found):
        note_interest(index, filter, group, shared.locals > 0)
    shared.members = drop_subscriber(shared.members, found)
    if shared.members == cython.NULL:
        close_group(index, shared)
    return True


def match_topic(index, topic, out):
    """Appends all subscriptions and all shared groups whose filter matches a topic name.

    A session with several matching filters is reported for each. The shared or the exclusive lock must be
    held.
    """
    out.nodes.clear()
    match_filters(index.filters, topic, cython.address(out.frontier), cython.address(out.nodes))
    count_steps(out.frontier.size())
    at: cython.size_t
    position: uint32_t
    for at in range(out.nodes.size()):
        held: cython.pointer[Subscription] = held_by(out.nodes[at])
        if held.kind == SET:
            members: cython.pointer[SubscriberSet] = cython.cast(cython.pointer[SubscriberSet], held.session)
            for position in range(members.count):
                report(members.items + position, out)
        else:
            report(held, out)


def report(item, out):
    """Appends a subscription, or the group that stands in its place."""
    if item.kind == GROUP:
        out.groups.push_back(cython.cast(cython.pointer[SharedGroup], item.session))
    else:
        out.subscriptions.push_back(item[0])


# --- shared groups ---------------------------------------------------------------------------------


def find_group(index, group_id):
    """A group by its id, or NULL when it is gone. The shared or the exclusive lock must be held."""
    found = index.groups_by_id.find(group_id)
    if found == index.groups_by_id.end():
        return cython.NULL
    return cython.operator.dereference(found).second


def find_group_by_name(index, filter, group):
    """The group of this name on this filter, or NULL. The shared or the exclusive lock must be held."""
    node: uint32_t = find_path(index.groups, ROOT, group)
    if node != NO_NODE:
        node = find_path(index.groups, node, filter)
    if node == NO_NODE:
        return cython.NULL
    return cython.cast(cython.pointer[SharedGroup], node_at(index.groups, node).value)


def copy_text(text, to):
    """Copies bytes; returns the view of the copy."""
    copy = cython.declare(Span)
    memcpy(to, text.data, text.size)
    copy.data = to
    copy.size = text.size
    return copy


def open_group(index, filter, name):
    """The group of this name on this filter, made if missing. Give it a member before you unlock."""
    node: uint32_t = insert_path(index.groups, insert_path(index.groups, ROOT, name), filter)
    group: cython.pointer[SharedGroup] = cython.cast(
        cython.pointer[SharedGroup], node_at(index.groups, node).value
    )
    if group != cython.NULL:
        return group
    block: cython.pointer[uint8_t] = cython.cast(
        cython.pointer[uint8_t], allocate(cython.sizeof(SharedGroup) + name.size + filter.size)
    )
    group = cython.cast(cython.pointer[SharedGroup], block)
    group.id = index.last_group_id = index.last_group_id + 1
    group.name = copy_text(name, block + cython.sizeof(SharedGroup))
    group.filter = copy_text(filter, block + cython.sizeof(SharedGroup) + name.size)
    node_at(index.groups, node).value = group
    index.groups_by_id[group.id] = group
    item: Subscription = Subscription(session=group, subscription_id=0, reactor=0, options=0, kind=GROUP)
    hold(held_by(node_at(index.filters, insert_path(index.filters, ROOT, filter))), item)
    return group


def close_group(index, group):
    """Takes a group without members out of both trees and frees it."""
    held: cython.bint = remove_plain(index, group.filter, group)
    holds(held, b"subscriptions: a group stands at its filter")
    release(group.online)
    node: uint32_t = find_path(index.groups, find_path(index.groups, ROOT, group.name), group.filter)
    node_at(index.groups, node).value = cython.NULL
    prune(index.groups, node)
    index.groups_by_id.erase(group.id)
    release(group)


def count_member(group, member, comes):
    """A member comes or goes: the group knows how many are stored, and how many online on each reactor and
    each other node.
    """
    step: uint32_t = 1 if comes else 0xFFFFFFFF  # or one less, modulo 2**32
    if member.reactor == NODE_REACTOR:
        slot: uint32_t = member.subscription_id & 15
        group.nodes = group.nodes & ~(cython.cast(uint32_t, 1) << slot)
        group.nodes |= cython.cast(uint32_t, 1 if comes else 0) << slot
        group.online_there[slot] = member.subscription_id >> 4 if comes else 0
        return
    group.locals += step
    if member.options & OPTION_STORED:
        group.stored += step
        holds(
            group.members != cython.NULL and group.stored <= group.members.count,
            b"subscriptions: no more members are stored than a group has",
        )
    if not member.options & OPTION_ONLINE:
        return
    if member.reactor >= group.reactors:
        grown: cython.pointer[uint32_t] = cython.cast(
            cython.pointer[uint32_t], allocate((member.reactor + 1) * cython.sizeof(uint32_t))
        )
        if group.reactors:
            memcpy(grown, group.online, group.reactors * cython.sizeof(uint32_t))
        release(group.online)
        group.online = grown
        group.reactors = member.reactor + 1
    group.online[member.reactor] += step
    holds(
        group.members != cython.NULL and group.online[member.reactor] <= group.members.count,
        b"subscriptions: no more members are online than a group has",
    )


def mark_online(index, group_id, session, online):
    """A member's client has come or gone. The exclusive lock must be held."""
    group: cython.pointer[SharedGroup] = find_group(index, group_id)
    if group == cython.NULL:
        return
    member: cython.pointer[Subscription] = find_subscriber(group.members, session)
    if member == cython.NULL:
        return
    count_member(group, member, False)
    if online:
        member.options |= OPTION_ONLINE
    else:
        member.options &= ~OPTION_ONLINE
    count_member(group, member, True)
    if index.noting:
        note_interest(index, group.filter, group.name, True)
    move_filter(index, group.filter)
