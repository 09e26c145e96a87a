"""What somebody who looks after the broker wants to know, or have done, of retained messages, subscriptions,
and one client's queue and session. An answer has some rows and says where the next ones begin; it takes at
most ``_SLICE_NS`` of a turn, and holds the lock of an index for a part of that.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.clock import clock_ns
from cython.cimports.tidemq.engine.base.counters import C_RETAINED_CLEARED
from cython.cimports.tidemq.engine.base.event import EVENT_INQUIRY, Event
from cython.cimports.tidemq.engine.base.inquiry import (
    INQUIRY_END,
    INQUIRY_MATCHING,
    INQUIRY_PURGE,
    INQUIRY_RETAINED,
    INQUIRY_SUBSCRIBED,
    INQUIRY_TRACE,
    Inquiry,
    ListedMessage,
    ListedSubscriber,
)
from cython.cimports.tidemq.engine.base.message import (
    Message,
    hold_message,
    payload_of,
    release_message,
    topic_of,
)
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import ACQUIRE, load_u64
from cython.cimports.tidemq.engine.index.levels import (
    NO_NODE,
    ROOT,
    LevelNode,
    append_path,
    find_path,
    match_filters,
    node_at,
)
from cython.cimports.tidemq.engine.index.retained_index import (
    RetainedWalk,
    close_walk,
    continue_walk,
    open_walk,
    resume_walk,
    walk_place,
)
from cython.cimports.tidemq.engine.index.retained_index import lock_shared as lock_retained
from cython.cimports.tidemq.engine.index.retained_index import unlock_shared as unlock_retained
from cython.cimports.tidemq.engine.index.subscribers import (
    GROUP,
    NODE_REACTOR,
    PLUGIN_REACTOR,
    SET,
    STREAM_REACTOR,
    SubscriberSet,
    Subscription,
)
from cython.cimports.tidemq.engine.index.subscriptions import (
    SharedGroup,
    find_group_by_name,
    held_by,
    lock_shared,
    unlock_shared,
)
from cython.cimports.tidemq.engine.link.output import doom
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.link.reports import new_event, post_event
from cython.cimports.tidemq.engine.link.timers import time_session
from cython.cimports.tidemq.engine.link.tracing import begin_trace
from cython.cimports.tidemq.engine.queues.outbox import entry_at
from cython.cimports.tidemq.engine.queues.queueing import purge_queue
from cython.cimports.tidemq.engine.queues.retaining import is_over, remove_if_same
from cython.cimports.tidemq.engine.queues.sessions import Found, find_session
from cython.cimports.tidemq.engine.queues.shards import look_at_room
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.queue import DONE, WAITING, Entry, Outbox
from cython.cimports.tidemq.engine.state.wall_clock import wall_offset
from cython.cimports.tidemq.wire.protocol import RC_ADMINISTRATIVE_ACTION, Span
from cython.cimports.tidemq.wire.topics import SharedFilter, split_shared

_SLICE_NS = cython.declare(int64_t, 2000000)  # of a turn, for one inquiry
_UNDER_LOCK = cython.declare(uint32_t, 64)  # retained messages taken while the index is locked
_BYTES_MAX = cython.declare(uint64_t, 1048576)  # of an answer, but for its last row
_PURGED_MAX = cython.declare(uint64_t, 4096)  # messages that leave memory for one inquiry


def answer_inquiry(r, mail):
    """Answers it, or hands it to the reactor that the client in question lives on."""
    q: cython.pointer[Inquiry] = cython.cast(cython.pointer[Inquiry], mail.pointer)
    q.until_ns = clock_ns() + _SLICE_NS
    if q.kind == INQUIRY_RETAINED:
        _walk_retained(r, q)
    elif q.kind == INQUIRY_SUBSCRIBED:
        _list_subscribed(r, q)
    elif q.kind == INQUIRY_MATCHING:
        _list_matching(r, q)
    elif not _act_on_client(r, mail, q):
        return
    rows: cython.size_t = q.messages.size() + q.subscribers.size()
    holds(rows <= q.rows_max, b"inquiries: an answer has no more rows than were asked for")
    event: cython.pointer[Event] = new_event(EVENT_INQUIRY, q.number)
    event.inquiry = q
    post_event(r.common, event)


def _is_enough(q):
    return q.messages.size() + q.subscribers.size() >= q.rows_max or q.bytes >= _BYTES_MAX


def _listed(r, q, message):
    listed: ListedMessage
    wall_ms: int64_t = wall_offset(r.common) // 1000000
    topic: Span = topic_of(message)
    payload: Span = payload_of(message)
    listed.topic.assign(cython.cast(cython.p_char, topic.data), topic.size)
    listed.payload.assign(cython.cast(cython.p_char, payload.data), min(payload.size, q.payload_bytes_max))
    listed.payload_size = payload.size
    listed.qos = message.qos
    listed.retain = message.retain
    listed.in_flight = False
    listed.came_ms = cython.cast(int64_t, message.id.clock // 1000000)
    listed.expires_ms = message.expires_ms + wall_ms if message.expires_ms else 0
    return listed


# --- retained messages -----------------------------------------------------------------------------


def _add_retained(r, q, message):
    """One that the walk has found: to the rows, or out of the index."""
    if q.clears:
        if not remove_if_same(r, message):
            return
        r.tally[C_RETAINED_CLEARED] += 1
    elif is_over(r, message):
        return
    q.count += 1
    q.count_bytes += message.payload_size
    if q.clears or q.rows_max == 0:
        return
    q.messages.push_back(_listed(r, q, message))
    q.bytes += q.messages.back().topic.size() + q.messages.back().payload.size()


def _take_slice(r, q, walk):
    """Goes on for as long as the lock may be held; whether there may be more."""
    index: cython.size_t
    wanted: uint32_t = _UNDER_LOCK
    if q.rows_max:
        wanted = min(wanted, q.rows_max - cython.cast(uint32_t, q.messages.size()))
    r.found.clear()
    lock_retained(r.common.retained)
    more: cython.bint = continue_walk(walk, wanted, cython.address(r.found))
    for index in range(r.found.size()):
        hold_message(cython.cast(cython.pointer[Message], r.found[index]))
    unlock_retained(r.common.retained)
    for index in range(r.found.size()):
        message: cython.pointer[Message] = cython.cast(cython.pointer[Message], r.found[index])
        _add_retained(r, q, message)
        release_message(message, r.tally)
    return more


def _walk_retained(r, q):
    """From its place on, until there are enough rows or the time is over. Without rows: only counts."""
    walk: cython.pointer[RetainedWalk] = open_walk(r.common.retained, span_of(cython.address(q.text)))
    lock_retained(r.common.retained)
    q.found = resume_walk(walk, span_of(cython.address(q.place)))
    unlock_retained(r.common.retained)
    q.place.clear()
    q.more = q.found
    while q.more and not (q.rows_max and _is_enough(q)):
        q.more = _take_slice(r, q, walk)
        if clock_ns() >= q.until_ns:
            break
    if q.more:
        lock_retained(r.common.retained)
        walk_place(walk, cython.address(q.place))
        unlock_retained(r.common.retained)
    close_walk(walk)


# --- subscriptions ---------------------------------------------------------------------------------


def _add_subscriber(r, q, item, node, group):
    """A subscription, if it is not one of those that were in answers before. The index is locked."""
    if item.reactor == PLUGIN_REACTOR or item.reactor == NODE_REACTOR:
        return
    q.position += 1
    if q.position <= q.skip:
        return
    if _is_enough(q):
        q.more = True
        return
    path: string
    listed: ListedSubscriber
    append_path(r.common.subscriptions.filters, node, cython.address(path))
    listed.topic_filter = path.substr(1)
    listed.group.assign(cython.cast(cython.p_char, group.data), group.size)
    listed.options = item.options
    listed.subscription_id = item.subscription_id
    listed.stream = item.reactor == STREAM_REACTOR
    listed.connected = False
    if listed.stream:
        listed.subscription_id = 0  # it is the stream's number
    else:
        s: cython.pointer[Session] = cython.cast(cython.pointer[Session], item.session)
        listed.client_id = s.client_id
        client: uint64_t = load_u64(
            cython.cast(cython.pointer[uint64_t], cython.address(s.connection)), ACQUIRE
        )
        listed.connected = client != 0
    q.bytes += listed.client_id.size() + listed.topic_filter.size() + listed.group.size()
    q.subscribers.push_back(listed)


def _add_held(r, q, item, node):
    """What stands at a filter: a subscription, or a shared group with its members."""
    at: uint32_t
    if item.kind != GROUP:
        _add_subscriber(r, q, item, node, Span(cython.NULL, 0))
        return
    group: cython.pointer[SharedGroup] = cython.cast(cython.pointer[SharedGroup], item.session)
    for at in range(group.members.count):
        if q.more:
            return
        _add_subscriber(r, q, group.members.items + at, node, group.name)


def _list_node(r, q, node):
    at: uint32_t
    held: cython.pointer[Subscription] = held_by(node)
    if held.session == cython.NULL:
        return
    if held.kind != SET:
        _add_held(r, q, held, node)
        return
    members: cython.pointer[SubscriberSet] = cython.cast(cython.pointer[SubscriberSet], held.session)
    for at in range(members.count):
        if q.more:
            return
        _add_held(r, q, members.items + at, node)


def _list_subscribed(r, q):
    """Who has subscribed to exactly this filter."""
    at: uint32_t
    parts: SharedFilter = split_shared(span_of(cython.address(q.text)))
    lock_shared(r.common.subscriptions)
    node: uint32_t = find_path(r.common.subscriptions.filters, ROOT, parts.filter)
    if node != NO_NODE and not parts.shared:
        _list_node(r, q, node_at(r.common.subscriptions.filters, node))
    elif node != NO_NODE:
        group: cython.pointer[SharedGroup] = find_group_by_name(
            r.common.subscriptions, parts.filter, parts.group
        )
        if group != cython.NULL:
            for at in range(group.members.count):
                if not q.more:
                    stand: cython.pointer[LevelNode] = node_at(r.common.subscriptions.filters, node)
                    _add_subscriber(r, q, group.members.items + at, stand, group.name)
    unlock_shared(r.common.subscriptions)
    q.found = True


def _list_matching(r, q):
    """Whose subscriptions match a topic, overlapping ones of a session each by itself."""
    frontier: vector[uint32_t]
    nodes: vector[cython.pointer[LevelNode]]
    index: cython.size_t
    lock_shared(r.common.subscriptions)
    match_filters(
        r.common.subscriptions.filters,
        span_of(cython.address(q.text)),
        cython.address(frontier),
        cython.address(nodes),
    )
    count_steps(frontier.size())
    for index in range(nodes.size()):
        if not q.more:
            _list_node(r, q, nodes[index])
    unlock_shared(r.common.subscriptions)
    q.found = True


# --- one client ------------------------------------------------------------------------------------


def _list_queue(r, q, s):
    """The messages of QoS 1 and 2 in memory, oldest first; and where those are that only the store has."""
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    place: uint64_t = max(q.skip, box.head)
    if s.stored != cython.NULL:
        q.queue = s.number
        q.stored = s.stored.waiting
        q.edge_clock = s.stored.edge.clock
        q.edge_origin = s.stored.edge.origin
    while place < box.tail:
        count_steps(1)
        if _is_enough(q):
            q.more = True
            q.skip = place
            return
        entry: cython.pointer[Entry] = entry_at(box, place)
        place += 1
        if entry.state == DONE or entry.message == cython.NULL:
            continue  # of what was released only the identifier is left
        listed: ListedMessage = _listed(r, q, entry.message)
        listed.qos = entry.qos
        listed.retain = entry.retain
        listed.in_flight = entry.state != WAITING
        q.bytes += listed.topic.size() + listed.payload.size()
        q.messages.push_back(listed)


def _end_session(r, s):
    """As if its time were over; the client that is there is told that it was the administrator."""
    s.expiry_s = 0
    if s.connection != cython.NULL:
        doom(r, s.connection, RC_ADMINISTRATIVE_ACTION, 0)
    else:
        s.ends_ms = r.now_ms
        time_session(r, s)


def _act_on_client(r, mail, q):
    """False: the inquiry has gone to the reactor that the client lives on."""
    found: Found = find_session(r, cython.address(q.text), False)
    q.found = found.session != cython.NULL
    if not q.found:
        return True
    if found.reactor != r.index or found.moving:
        r.outgoing[found.reactor].push_back(mail[0])
        return False
    holds(found.session.reactor == r.index, b"inquiries: a client's is answered where the client lives")
    if q.kind == INQUIRY_END:
        _end_session(r, found.session)
    elif q.kind == INQUIRY_TRACE:
        if found.session.connection != cython.NULL:
            begin_trace(r, found.session.connection)
    elif q.kind == INQUIRY_PURGE:
        q.count = purge_queue(r, found.session, _PURGED_MAX)
        q.more = q.count == _PURGED_MAX
        look_at_room(r, found.session)
    else:
        _list_queue(r, q, found.session)
    return True
