"""Clients as somebody who looks after the broker wants to see them: some at a time, by a cursor.

A reactor goes through its connections, slot by slot, and then through the sessions whose clients are away,
bucket by bucket. What comes or goes meanwhile may be missed; a client that moves may come twice; everybody
else comes once, unless the table of sessions grows: then its walk begins anew. A question takes at most
``_SLICE_NS`` of a turn, whatever it finds.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.clock import clock_ns
from cython.cimports.tidemq.engine.base.event import EVENT_ROSTER, Event
from cython.cimports.tidemq.engine.base.roster import (
    ROSTER_AWAY,
    ROSTER_CONNECTED,
    ROSTER_DONE,
    ListedClient,
    ListedFilter,
    Roster,
)
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.link.backpressure import queued_bytes, queued_messages
from cython.cimports.tidemq.engine.link.output import pending_output
from cython.cimports.tidemq.engine.link.reports import name_peer, new_event, post_event
from cython.cimports.tidemq.engine.queues.outbox import entry_at, ms_since
from cython.cimports.tidemq.engine.queues.queueing import age_ms
from cython.cimports.tidemq.engine.queues.sessions import Found, find_session
from cython.cimports.tidemq.engine.state.buckets import sessions_in
from cython.cimports.tidemq.engine.state.client import CONNECTED, Connection, Session
from cython.cimports.tidemq.engine.state.queue import Outbox
from cython.cimports.tidemq.engine.state.wall_clock import wall_offset
from cython.operator import dereference, preincrement

_SLICE_NS = cython.declare(int64_t, 2000000)  # of a turn, for one question
_IN_A_ROW = cython.declare(uint64_t, 64)  # looked at between two looks at the clock
_STEPS_MAX = cython.declare(uint64_t, 2048)  # connections or buckets looked at for one question
_IN_A_BUCKET = cython.declare(uint64_t, 256)  # places of `Roster.at`; there are never so many in one
_FILTERS_MAX = cython.declare(cython.size_t, 1000)  # of one client
_BYTES_MAX = cython.declare(uint64_t, 1048576)  # of an answer, but for its last row: names may be long


def call_roll(r, mail):
    """Answers a question, or hands it to the reactor that the client in question lives on."""
    roster: cython.pointer[Roster] = cython.cast(cython.pointer[Roster], mail.pointer)
    roster.bytes = roster.looked_at = 0
    roster.until_ns = clock_ns() + _SLICE_NS
    if roster.one:
        if _find_one(r, mail, roster):
            return
    else:
        _walk_connected(r, roster)
        _walk_away(r, roster)
        enough: cython.bint = roster.rows.size() <= roster.rows_max
        holds(enough, b"roll call: an answer has no more clients than were asked for")
    event: cython.pointer[Event] = new_event(EVENT_ROSTER, roster.number)
    event.roster = roster
    post_event(r.common, event)


def _find_one(r, mail, roster):
    """The client and its filters; True: the question has gone to another reactor."""
    found: Found = find_session(r, cython.address(roster.client_id), False)
    if found.session == cython.NULL:
        return False
    if found.reactor != r.index or found.moving:
        r.outgoing[found.reactor].push_back(mail[0])
        return True
    roster.rows.push_back(_row_of(r, found.session))
    if found.session.subscriptions == cython.NULL:
        return False
    each = found.session.subscriptions.begin()
    while each != found.session.subscriptions.end():
        count_steps(1)
        if roster.filters.size() >= _FILTERS_MAX or roster.bytes >= _BYTES_MAX:
            roster.more_filters = True
            return False
        filter: ListedFilter
        filter.topic_filter = dereference(each).first
        roster.bytes += filter.topic_filter.size()
        filter.options = dereference(each).second.options
        filter.subscription_id = dereference(each).second.subscription_id
        roster.filters.push_back(filter)
        preincrement(each)
    return False


def _is_over(roster):
    """Whether this turn has done enough for the question."""
    roster.looked_at += 1
    if roster.looked_at > _STEPS_MAX or roster.bytes >= _BYTES_MAX:
        return True
    return roster.looked_at % _IN_A_ROW == 0 and clock_ns() >= roster.until_ns


def _walk_connected(r, roster):
    """From where the question is on, until there are enough rows, or the time is over."""
    if roster.phase != ROSTER_CONNECTED:
        return
    while roster.at < r.connections.size() and roster.wanted & 1:
        count_steps(1)
        if roster.rows.size() >= roster.rows_max or _is_over(roster):
            return
        c: cython.pointer[Connection] = r.connections[roster.at]
        roster.at += 1
        if c == cython.NULL or c.state != CONNECTED or c.doomed or c.session == cython.NULL:
            continue
        if _is_wanted(r, roster, c.session) and _is_at(c, roster):
            _add(r, roster, c.session)
    roster.phase = ROSTER_AWAY
    roster.at = roster.buckets = 0


def _walk_away(r, roster):
    """The same for clients that are away."""
    if roster.phase != ROSTER_AWAY or roster.rows.size() >= roster.rows_max:
        return
    if roster.buckets != r.sessions.bucket_count():
        roster.at = 0
        roster.buckets = r.sessions.bucket_count()
    here: cython.bint = roster.wanted & 2 and roster.address.empty() and roster.listener.empty()
    here = here and not roster.by_username  # of a client that is away nothing of these is known
    while roster.at // _IN_A_BUCKET < roster.buckets and here:
        if _is_over(roster) or not _look_into(r, roster, roster.at // _IN_A_BUCKET):
            return
        roster.at = (roster.at // _IN_A_BUCKET + 1) * _IN_A_BUCKET
    roster.phase = ROSTER_DONE


def _look_into(r, roster, bucket):
    """The sessions of a bucket, from where the question is on; False: there are enough rows."""
    numbers: vector[uint64_t]
    index: cython.size_t
    holds(bucket < r.sessions.bucket_count(), b"roll call: a bucket is one of the table")
    sessions_in(r.sessions, bucket, numbers)
    count_steps(1 + numbers.size())
    for index in range(roster.at % _IN_A_BUCKET, numbers.size()):
        if roster.rows.size() >= roster.rows_max and index < _IN_A_BUCKET:
            roster.at = bucket * _IN_A_BUCKET + index
            return False
        s: cython.pointer[Session] = r.sessions[numbers[index]]
        if s.connection == cython.NULL and _is_wanted(r, roster, s):
            _add(r, roster, s)
    return True


def _is_wanted(r, roster, s):
    """Whether it is a client's session with such an identifier; for a survey, any queue."""
    if s.internal or s.ending or s.delayed_bytes or (s.group and not roster.survey):
        return False
    return s.client_id.compare(0, roster.client_id.size(), roster.client_id) == 0


def _is_at(c, roster):
    """Whether a connection is what the question wants."""
    if not roster.listener.empty() and c.listener.name != roster.listener:
        return False
    if roster.by_username:
        if c.identity == cython.NULL or c.identity.username == cython.NULL:
            return False
        if c.identity.username[0] != roster.username:
            return False
    if roster.address.empty():
        return True
    peer: string = _peer_of(c)
    host: string = peer.substr(0, peer.rfind(b":"))
    if host.compare(0, 7, b"::ffff:") == 0 and host.find(b".") < host.size():
        host = host.substr(7)  # of IPv4, at a listener for both
    return host == roster.address


def _peer_of(c):
    """The name of the other side; it is not kept for those who are only looked at."""
    known: cython.bint = c.peer != cython.NULL
    name_peer(c)
    peer: string = c.peer[0]
    if not known:
        del c.peer
        c.peer = cython.NULL
    return peer


def _oldest_ms(r, s):
    """Age of the first message in a queue, in memory or in the store; -1: there is none."""
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    if box.head != box.tail:
        # what waits may be older than what was sent
        waiting: uint64_t = box.next if box.next != box.tail else box.head
        sent_ms: int64_t = ms_since(entry_at(box, box.head).since_ms, r.now_ms)
        return max(sent_ms, cython.cast(int64_t, ms_since(entry_at(box, waiting).since_ms, r.now_ms)))
    if s.stored == cython.NULL or s.stored.waiting == 0:
        return -1
    return age_ms(r, s.stored.oldest)


def _add(r, roster, s):
    """One that is wanted: to the rows, or to the survey."""
    if not roster.survey:
        roster.rows.push_back(_row_of(r, s))
        roster.bytes += roster.rows.back().client_id.size() + roster.rows.back().username.size()
        return
    oldest_ms: int64_t = _oldest_ms(r, s)
    if oldest_ms > roster.oldest_ms:
        roster.oldest_ms = oldest_ms
        roster.oldest_client = s.client_id


def _row_of(r, s):
    row: ListedClient
    wall_ms: int64_t = wall_offset(r.common) // 1000000
    c: cython.pointer[Connection] = s.connection
    row.client_id = s.client_id
    row.reactor = r.index
    row.expiry_s = s.expiry_s
    row.inflight = s.outbox.inflight
    row.queued_messages = queued_messages(s)
    row.queued_bytes = queued_bytes(s)
    row.subscriptions = 0 if s.subscriptions == cython.NULL else s.subscriptions.size()
    row.has_will = s.will != cython.NULL
    row.slow = s.strain != cython.NULL and s.strain.slow
    row.left_reason = s.left_reason
    row.left_fault = s.left_fault
    row.left_by_itself = s.left_by_itself
    row.left_ms = s.left_ms
    row.ends_ms = s.ends_ms + wall_ms if s.ends_ms and c == cython.NULL else 0
    row.oldest_ms = _oldest_ms(r, s)
    row.connected = c != cython.NULL
    row.paused = False
    row.has_username = False
    row.version = 0
    row.send_max = 0
    row.keep_alive_s = 0
    row.since_ms = 0
    row.output_bytes = 0
    row.bytes_received = 0
    row.bytes_sent = 0
    row.messages_received = 0
    if c == cython.NULL:
        return row
    row.peer = _peer_of(c)
    row.listener = c.listener.name
    row.version = c.version
    row.send_max = c.send_max
    row.keep_alive_s = c.keep_alive_ms * 2 // 3000
    row.paused = c.pause_count > 0
    row.since_ms = c.since_ns // 1000000 + wall_ms
    row.output_bytes = pending_output(c)
    row.bytes_received = c.bytes_received
    row.bytes_sent = c.bytes_sent
    row.messages_received = c.messages_received
    if c.identity != cython.NULL and c.identity.username != cython.NULL:
        row.has_username = True
        row.username = c.identity.username[0]
    return row
