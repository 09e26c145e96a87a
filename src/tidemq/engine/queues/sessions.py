"""Sessions: found by client identifier in one registry for all reactors, changed only by the reactor that
owns them.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.string_view import string_view
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.allocation import release
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, may_touch
from cython.cimports.tidemq.engine.base.counters import (
    C_DROPPED_NO_GROUP_MEMBER,
    C_DROPPED_SESSION_ENDED,
    C_REFUSED_EXCLUSIVE,
    C_REFUSED_SUBSCRIPTIONS,
    C_SESSIONS_CREATED,
    C_SESSIONS_ENDED,
    LIVE_DELAYED,
    LIVE_SESSIONS,
    LIVE_SUBSCRIPTIONS,
    MEMORY_SESSIONS,
)
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import message_bytes, release_message
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import (
    RELAXED,
    add_i64,
    getrandom,
    load_i64,
    load_int,
)
from cython.cimports.tidemq.engine.index.subscribers import (
    OPTION_BACKLOG,
    OPTION_ONLINE,
    OPTION_QOS,
    OPTION_STORED,
    Subscription,
)
from cython.cimports.tidemq.engine.index.subscriptions import (
    find_group_by_name,
    lock_exclusive,
    mark_online,
    move_all,
    put_subscription,
    remove_subscription,
    unlock_exclusive,
)
from cython.cimports.tidemq.engine.journal.journal import ask_store, delete_value, put_value
from cython.cimports.tidemq.engine.journal.rows import (
    append_session,
    append_subscription,
    append_subscription_key,
    append_u64,
)
from cython.cimports.tidemq.engine.link.backpressure import end_strain
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.queues.backlogs import end_backlog, free_backlog
from cython.cimports.tidemq.engine.queues.clearing import free_clearing
from cython.cimports.tidemq.engine.queues.doubles import free_doubles
from cython.cimports.tidemq.engine.queues.groups import (
    enter_groups,
    is_present,
    join_group,
    leave_all_groups,
    leave_group,
)
from cython.cimports.tidemq.engine.queues.handbacks import dispose_outbox
from cython.cimports.tidemq.engine.queues.received_identifiers import free_fingerprints
from cython.cimports.tidemq.engine.queues.replayed import free_replays, unstore_replays
from cython.cimports.tidemq.engine.queues.retaining import has_retained
from cython.cimports.tidemq.engine.state.client import Removal, Session, SessionSubscription, SubscriptionMap
from cython.cimports.tidemq.engine.state.queue import ROW_IDLE
from cython.cimports.tidemq.engine.state.reactor import Common
from cython.cimports.tidemq.engine.state.section import (
    FAMILY_SESSION,
    FAMILY_SHARED,
    FAMILY_SUBSCRIPTION,
    RECORD_PURGE,
    Record,
)
from cython.cimports.tidemq.wire.protocol import RC_QUOTA_EXCEEDED, RC_SUCCESS, Span
from cython.cimports.tidemq.wire.topics import SharedFilter, split_shared
from cython.operator import dereference, preincrement

_WITHDRAWN_AT_ONCE = cython.declare(cython.size_t, 512)  # subscriptions of a session that ends
_REMOVALS_A_TURN = cython.declare(cython.int, 1024)
_SESSION_BYTES = cython.declare(int64_t, 768)  # about, with its places in tables; its identifier comes to it


def new_session(r):
    """A session of this reactor, in no registry yet."""
    owner: unique_ptr[Session] = make_unique[Session]()
    session: cython.pointer[Session] = owner.release()
    session.reactor = r.index
    r.tally[LIVE_SESSIONS] += 1
    r.tally[MEMORY_SESSIONS] += _SESSION_BYTES
    return session


def _view(s):
    """Its client identifier, which does not change while it is in the registry."""
    return string_view(s.client_id.data(), s.client_id.size())


def is_delayed(client_id):
    """Whether the name is that of a message that waits for its time, see wills."""
    return client_id.size() > 0 and client_id[0][0] == 0


def count_delayed(r, s):
    """A message that waits for its time, as the will of this session, which counts as no client's."""
    s.delayed_bytes = 1
    if s.will != cython.NULL:
        s.delayed_bytes = cython.cast(uint32_t, message_bytes(s.will.message))
    add_i64(cython.address(r.common.delayed_count), 1, RELAXED)
    add_i64(cython.address(r.common.delayed_bytes), s.delayed_bytes, RELAXED)
    r.tally[LIVE_DELAYED] += 1


def _is_loading(r):
    """Whether the sessions come from the store, before the start."""
    return r.common.durable and r.section == cython.NULL


def find_session(r, client_id, create):
    """The client's session, wherever it lives; made here when there is none and the limit allows it.

    ``session`` is NULL when there is none. It may be touched only when ``reactor`` is the caller's own. It is
    made only on the reactor that has an earlier one removed from the store, while that is under way.
    """
    common: cython.pointer[Common] = r.common
    delayed: cython.bint = is_delayed(client_id)
    found: Found
    found.session = cython.NULL
    found.reactor = r.index
    found.created = False
    found.moving = False
    lock(cython.address(common.registry_lock))
    found.removal = common.removals.count(client_id[0])
    known = common.registry.find(string_view(client_id.data(), client_id.size()))
    if known != common.registry.end():
        found.session = dereference(known).second
        found.reactor = found.session.reactor
        found.moving = found.session.moving
    elif found.removal and common.removals[client_id[0]].reactor != r.index:
        found.reactor = common.removals[client_id[0]].reactor
    # messages that are delayed have a limit of their own
    elif create and (
        delayed or load_i64(cython.address(common.session_count), RELAXED) < common.limits.sessions_max
    ):
        common.next_session += 1
        found.session = _register(r, client_id, common.next_session)
        found.created = True
    unlock(cython.address(common.registry_lock))
    return found


def _register(r, client_id, number):
    """A new session, under the registry's lock."""
    delayed: cython.bint = is_delayed(client_id)
    s: cython.pointer[Session] = new_session(r)
    s.client_id = client_id[0]
    s.number = number
    r.common.registry[_view(s)] = s
    add_i64(cython.address(r.common.session_count), not delayed, RELAXED)
    r.tally[C_SESSIONS_CREATED] += not delayed
    r.tally[MEMORY_SESSIONS] += cython.cast(int64_t, client_id.size())
    return s


def restore_session(r, row):
    """A session that the store has comes here; what it brings is never too much. It is `moving`, so nobody
    else touches it, until its caller says otherwise. NULL: one of this name, or of this queue, is here, or
    the removal of one from the store is under way.
    """
    common: cython.pointer[Common] = r.common
    s: cython.pointer[Session] = cython.NULL
    lock(cython.address(common.registry_lock))
    name: string_view = string_view(row.client_id.data(), row.client_id.size())
    if not (
        common.registry.count(name)
        or common.removals.count(row.client_id)
        or common.queue_owners.count(row.number)
    ):
        s = _register(r, cython.address(row.client_id), row.number)
        s.moving = True
        common.next_session = max(common.next_session, row.number)
        common.queue_owners[row.number] = r.index
    unlock(cython.address(common.registry_lock))
    return s


def _comes_back(r, s):
    """Whether what it gets is what the store has of it, which is written nowhere again."""
    return _is_loading(r) or s.moving or r.follows


def store_session(r, s):
    """Brings the session's own row up to date, where the store holds it."""
    row: string
    if s.stored != cython.NULL and r.section != cython.NULL:
        append_session(r.common, s, cython.address(row))
        put_value(r, FAMILY_SESSION, cython.address(s.client_id), cython.address(row))


def _unstore_session(r, s):
    """Removes everything that the store has of it: the rows of its queue last, for they may be many, and what
    a crash leaves of them is found by their having no session.
    """
    if r.section == cython.NULL:
        return
    note_drop(r, s, C_DROPPED_NO_GROUP_MEMBER if s.group else C_DROPPED_SESSION_ENDED, s.stored.waiting)
    if s.group:
        key: string
        append_u64(cython.address(key), s.number)
        delete_value(r, FAMILY_SHARED, cython.address(key))
    else:
        delete_value(r, FAMILY_SESSION, cython.address(s.client_id))
        _begin_removal(r, s)
    if s.subscriptions != cython.NULL:
        item = s.subscriptions.begin()
        while item != s.subscriptions.end():
            _delete_subscription(r, s, cython.address(dereference(item).first))
            preincrement(item)
    unstore_replays(r, s)
    purge: cython.pointer[Record] = ask_store(r, RECORD_PURGE, s.number)
    if s.group:
        purge.status = ROW_IDLE  # what members hold is theirs, and goes when they are done with it


def _begin_removal(r, s):
    """Until the store has forgotten the session no client is told that it is gone: a crash brings it back."""
    removal: Removal
    removal.reactor = r.index
    removal.section = r.section.number
    lock(cython.address(r.common.registry_lock))
    r.common.removals[s.client_id] = removal
    unlock(cython.address(r.common.registry_lock))
    r.removed.push_back(s.client_id)


def end_removals(r):
    """The store has forgotten the sessions whose removal is committed: some of them, so that the others do
    not wait long for the lock. True: there are more.
    """
    common: cython.pointer[Common] = r.common
    left: cython.int = _REMOVALS_A_TURN
    if r.removed.empty():
        return False
    lock(cython.address(common.registry_lock))
    while left and not r.removed.empty():
        if common.removals.count(r.removed.front()):
            if common.removals[r.removed.front()].section > r.committed:
                break
            common.removals.erase(r.removed.front())
        r.removed.pop_front()
        count_steps(1)
        left -= 1
    unlock(cython.address(common.registry_lock))
    return left == 0


def _delete_subscription(r, s, filter):
    key: string
    append_subscription_key(cython.address(s.client_id), filter, cython.address(key))
    delete_value(r, FAMILY_SUBSCRIPTION, cython.address(key))


def _put_subscription(r, s, filter, subscription, served):
    """``served``: the client has not subscribed again."""
    key: string
    value: string
    append_subscription_key(cython.address(s.client_id), filter, cython.address(key))
    append_subscription(subscription, cython.address(value))
    record: cython.pointer[Record] = put_value(
        r, FAMILY_SUBSCRIPTION, cython.address(key), cython.address(value)
    )
    record.served = served


def end_session(r, s):
    """Forgets a session of this reactor and everything in it, a will that was not published too. It must be
    offline.
    """
    if s.stored != cython.NULL:
        _unstore_session(r, s)
    _forget_session(r, s, True)


def forget_session(r, s):
    """The session goes on elsewhere: it is this engine's no more, and its rows stay. It must be offline."""
    _forget_session(r, s, False)


def _forget_session(r, s, ends):
    common: cython.pointer[Common] = r.common
    if ASSERTS:
        holds(may_touch(s.reactor), b"sessions: one ends on the reactor that owns it")
    holds(s.connection == cython.NULL, b"sessions: one that ends is offline")
    dispose_outbox(r, s, ends)
    leave_all_groups(r, s)
    if s.group:
        lock(cython.address(common.registry_lock))
        common.queue_owners.erase(s.number)
        unlock(cython.address(common.registry_lock))
    if not s.internal and s.group == 0:
        lock(cython.address(common.registry_lock))
        common.registry.erase(_view(s))
        r.tally[MEMORY_SESSIONS] -= cython.cast(int64_t, s.client_id.size())
        common.queue_owners.erase(s.number)
        unlock(cython.address(common.registry_lock))
        if s.delayed_bytes:
            add_i64(cython.address(common.delayed_count), -1, RELAXED)
            add_i64(cython.address(common.delayed_bytes), -cython.cast(int64_t, s.delayed_bytes), RELAXED)
            r.tally[LIVE_DELAYED] -= 1
        else:
            left: int64_t = add_i64(cython.address(common.session_count), -1, RELAXED)
            holds(left >= 0, b"sessions: no more end than were made")
            r.tally[C_SESSIONS_ENDED] += 1
    free_backlog(s)
    free_replays(r, s)
    release(s.received)
    free_doubles(r, s.stored)
    free_clearing(s.stored)
    free_fingerprints(s.stored)
    release(s.stored)
    if s.will != cython.NULL:
        release_message(s.will.message, r.tally)
        del s.will
    r.sessions.erase(s.number)
    end_strain(r, s)
    if _withdraw(r, s, _WITHDRAWN_AT_ONCE) == 0:
        _begin_ending(r, s)
    else:
        _free_session(r, s)


def _withdraw(r, s, subscriptions_max):
    """Takes so many of a session's subscriptions out of the index; returns how many more it could have been,
    0 when there may be more.
    """
    left: cython.size_t = subscriptions_max
    given_up: vector[string]
    if s.subscriptions == cython.NULL:
        return left
    lock_exclusive(r.common.subscriptions)
    while left and not s.subscriptions.empty():
        count_steps(1)
        item = s.subscriptions.begin()
        filter: Span = span_of(cython.address(dereference(item).first))
        parts: SharedFilter = split_shared(filter)
        remove_subscription(r.common.subscriptions, parts.filter, parts.group, s)
        if parts.exclusive:
            given_up.push_back(dereference(item).first)
        r.tally[MEMORY_SESSIONS] -= _subscription_bytes(filter)
        s.subscriptions.erase(item)
        left -= 1
    unlock_exclusive(r.common.subscriptions)
    index: cython.size_t
    for index in range(given_up.size()):
        _give_up(r, s, split_shared(span_of(cython.address(given_up[index]))).filter)
    r.tally[LIVE_SUBSCRIPTIONS] -= subscriptions_max - left
    taken: int64_t = cython.cast(int64_t, subscriptions_max - left)
    add_i64(cython.address(r.common.subscription_count), -taken, RELAXED)
    return left


def _begin_ending(r, s):
    """A session with very many subscriptions is nobody's from now on, and gets nothing; the index forgets it
    in the turns that follow, and then it is freed.
    """
    s.ending = True
    lock_exclusive(r.common.subscriptions)
    move_all(r.common.subscriptions)  # what a cache knows names it
    unlock_exclusive(r.common.subscriptions)
    r.ending.push_back(s)


def continue_ending(r, subscriptions_max):
    """Once a turn: so many subscriptions of sessions that have ended leave the index."""
    while subscriptions_max and not r.ending.empty():
        subscriptions_max = _withdraw(r, r.ending.back(), subscriptions_max)
        if subscriptions_max:
            _free_session(r, r.ending.back())
            r.ending.pop_back()


def _free_session(r, s):
    withdrawn: cython.bint = s.subscriptions == cython.NULL or s.subscriptions.empty()
    holds(withdrawn, b"sessions: one that is freed is in no index")
    del s.subscriptions
    r.tally[LIVE_SESSIONS] -= 1
    r.tally[MEMORY_SESSIONS] -= _SESSION_BYTES
    del s


def set_online(r, s, online):
    """Says to all reactors whether the session can take its shared groups' messages now."""
    if s.memberships == cython.NULL or s.memberships.by_group.empty():
        return
    lock_exclusive(r.common.subscriptions)
    item = s.memberships.by_group.begin()
    while item != s.memberships.by_group.end():
        mark_online(r.common.subscriptions, dereference(item).first, s, online)
        preincrement(item)
    unlock_exclusive(r.common.subscriptions)
    enter_groups(r, s, online)


def _has_room(r, s):
    """Whether the limits allow one more subscription. What the store brings back is never too much, nor is
    what the embedding program wants.
    """
    if _comes_back(r, s) or s.internal:
        return True
    if load_int(cython.address(r.common.overloaded), RELAXED):
        return False
    total: int64_t = load_i64(cython.address(r.common.subscription_count), RELAXED)
    return (
        s.subscriptions.size() < r.common.limits.subscriptions_max
        and total < r.common.limits.subscriptions_total_max
    )


def _subscription_bytes(filter):
    """About what a subscription takes, in its session's table and by its text in the tree."""
    return 160 + 2 * cython.cast(int64_t, filter.size)


def add_subscription(r, s, filter, options, subscription_id, wants_retained):
    """Adds or replaces a subscription by its whole filter; returns the reason, granted QoS or 0x97, and
    whether its retained messages are to be sent: always, for a new subscription, or never, as its options
    want it [MQTT-3.3.1-9..11].
    """
    key: string
    key.assign(cython.cast(cython.p_char, filter.data), filter.size)
    if s.subscriptions == cython.NULL:
        owner: unique_ptr[SubscriptionMap] = make_unique[SubscriptionMap]()
        s.subscriptions = owner.release()
    known: cython.bint = s.subscriptions.count(key)
    if not known and not _has_room(r, s):
        r.tally[C_REFUSED_SUBSCRIPTIONS] += 1
        return RC_QUOTA_EXCEEDED
    parts: SharedFilter = split_shared(filter)
    if parts.exclusive and not _claim(r, s, parts.filter):
        r.tally[C_REFUSED_EXCLUSIVE] += 1
        return RC_QUOTA_EXCEEDED
    if not parts.shared and not known:
        _drop_other_form(r, s, parts.filter, parts.exclusive)
    handling: uint8_t = options >> 4 & 3
    comes_back: cython.bint = _comes_back(r, s)
    wants_retained[0] = (
        not parts.shared and not comes_back and (handling == 0 or (handling == 1 and not known))
    )
    kept: SessionSubscription
    kept.options = options
    if known and not wants_retained[0]:  # what is retained goes on to it
        kept.turn = s.subscriptions[0][key].turn
        kept.options |= s.subscriptions[0][key].options & OPTION_BACKLOG
    else:
        r.subscribes = r.subscribes + 1 if r.subscribes < 0xFFFF else 1
        kept.turn = r.subscribes
    if wants_retained[0] and s.stored != cython.NULL and options & OPTION_QOS and has_retained(r):
        kept.options |= OPTION_BACKLOG
    kept.subscription_id = subscription_id
    s.subscriptions[0][key] = kept
    stored: Subscription
    stored.session = s
    stored.subscription_id = subscription_id
    stored.reactor = r.index
    stored.options = options & ~(OPTION_STORED | OPTION_BACKLOG)
    if s.expiry_s:
        stored.options |= OPTION_STORED  # it may refuse a message because its queue is full
    if parts.shared and is_present(s):
        stored.options |= OPTION_ONLINE
    if s.stored != cython.NULL and not comes_back:
        _put_subscription(r, s, cython.address(key), cython.address(kept), False)
    group: uint64_t = 0
    lock_exclusive(r.common.subscriptions)
    put_subscription(r.common.subscriptions, parts.filter, parts.group, stored)
    if parts.shared:
        group = find_group_by_name(r.common.subscriptions, parts.filter, parts.group).id
    unlock_exclusive(r.common.subscriptions)
    if parts.shared:
        join_group(r, s, group, options, subscription_id)
    if not known:
        r.tally[LIVE_SUBSCRIPTIONS] += 1
        r.tally[MEMORY_SESSIONS] += _subscription_bytes(filter)
        add_i64(cython.address(r.common.subscription_count), 1, RELAXED)
    return RC_SUCCESS + (options & 3)


def _claim(r, s, filter):
    """Whether the session has a filter to itself from now on, or had it before."""
    common: cython.pointer[Common] = r.common
    key: string
    key.assign(cython.cast(cython.p_char, filter.data), filter.size)
    lock(cython.address(common.registry_lock))
    known: cython.bint = common.exclusives.count(key)
    own: cython.bint = not known or common.exclusives[key] == s.number
    if not known:
        common.exclusives[key] = s.number
        add_i64(cython.address(common.exclusive_count), 1, RELAXED)
    unlock(cython.address(common.registry_lock))
    return own


def _give_up(r, s, filter):
    """Somebody else may have the filter to itself now."""
    common: cython.pointer[Common] = r.common
    key: string
    key.assign(cython.cast(cython.p_char, filter.data), filter.size)
    lock(cython.address(common.registry_lock))
    if common.exclusives.count(key) and common.exclusives[key] == s.number:
        common.exclusives.erase(key)
        add_i64(cython.address(common.exclusive_count), -1, RELAXED)
    unlock(cython.address(common.registry_lock))


def _drop_other_form(r, s, filter, exclusive):
    """The index has one subscription of a session to a filter: of `$exclusive/F` and `F` the later counts."""
    other: string
    if not exclusive:
        if load_i64(cython.address(r.common.exclusive_count), RELAXED) == 0:
            return
        other.append(cython.cast(cython.p_char, b"$exclusive/"))
    other.append(cython.cast(cython.p_char, filter.data), filter.size)
    if s.subscriptions.count(other):
        end_backlog(r, s, span_of(cython.address(other)))
        drop_subscription(r, s, span_of(cython.address(other)))


def finish_backlog(r, s, filter):
    """Everything that is retained has been sent to a subscription, or stands in its session's queue."""
    if s.stored == cython.NULL or s.subscriptions == cython.NULL or not s.subscriptions.count(filter[0]):
        return
    subscription: cython.pointer[SessionSubscription] = cython.address(s.subscriptions[0][filter[0]])
    if subscription.options & OPTION_BACKLOG:
        subscription.options &= ~OPTION_BACKLOG
        _put_subscription(r, s, filter, subscription, True)


def subscription_turn(s, filter):
    """Which SUBSCRIBE a subscription is from, 0 when there is none to this filter."""
    key: string
    key.assign(cython.cast(cython.p_char, filter.data), filter.size)
    if s.subscriptions == cython.NULL or not s.subscriptions.count(key):
        return 0
    return s.subscriptions[0][key].turn


def drop_subscription(r, s, filter):
    """Removes a subscription by its whole filter; false when there was none."""
    key: string
    key.assign(cython.cast(cython.p_char, filter.data), filter.size)
    if s.subscriptions == cython.NULL or s.subscriptions.erase(key) == 0:
        # a node of a cluster that does not know of it says all the same that it has ended
        if s.stored != cython.NULL and r.common.ask_sessions and not r.follows:
            _delete_subscription(r, s, cython.address(key))
        return False
    if s.stored != cython.NULL and not r.follows:
        _delete_subscription(r, s, cython.address(key))
    parts: SharedFilter = split_shared(filter)
    lock_exclusive(r.common.subscriptions)
    if parts.shared:
        leave_group(r, s, find_group_by_name(r.common.subscriptions, parts.filter, parts.group).id)
    remove_subscription(r.common.subscriptions, parts.filter, parts.group, s)
    unlock_exclusive(r.common.subscriptions)
    if parts.exclusive:
        _give_up(r, s, parts.filter)
    r.tally[LIVE_SUBSCRIPTIONS] -= 1
    r.tally[MEMORY_SESSIONS] -= _subscription_bytes(filter)
    add_i64(cython.address(r.common.subscription_count), -1, RELAXED)
    return True


def assigned_client_id(r):
    """A client identifier that nobody can guess or has: "tidemq-" and 100 random bits in base 32."""
    random: uint8_t[20]
    alphabet: cython.p_char = b"abcdefghijklmnopqrstuvwxyz234567"
    text: string
    text.append(cython.cast(cython.p_char, b"tidemq-"))
    getrandom(random, 20, 0)
    index: cython.int
    for index in range(20):
        text.push_back(alphabet[random[index] & 31])
    return text
