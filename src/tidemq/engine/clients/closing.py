"""How a connection begins and ends on a reactor, and what its end means for session and will."""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.allocation import release
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.base.counters import (
    C_CONNECTIONS_ACCEPTED,
    C_CONNECTIONS_CLOSED,
    C_FAULTS,
    LIVE_BUFFERS,
    LIVE_CONNECTIONS,
    MEMORY_BUFFERS,
    MEMORY_CONNECTIONS,
)
from cython.cimports.tidemq.engine.base.event import EVENT_DISCONNECTED, Event
from cython.cimports.tidemq.engine.base.guarding import give_place
from cython.cimports.tidemq.engine.base.system import (
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    EPOLLIN,
    EPOLLOUT,
    IPPROTO_TCP,
    RELAXED,
    RELEASE,
    TCP_NODELAY,
    add_i64,
    close,
    epoll_ctl,
    epoll_event,
    setsockopt,
    store_u64,
)
from cython.cimports.tidemq.engine.clients.authorising import bring_up_to_date, free_identity
from cython.cimports.tidemq.engine.clients.holding import drop_held
from cython.cimports.tidemq.engine.clients.replaying import report_delivered
from cython.cimports.tidemq.engine.clients.wills import (
    discard_will,
    publish_last_will,
    publish_will,
    waits_for_store,
)
from cython.cimports.tidemq.engine.index.rules import release_rules
from cython.cimports.tidemq.engine.link.backpressure import stop_waiting
from cython.cimports.tidemq.engine.link.lingering import linger
from cython.cimports.tidemq.engine.link.output import flush_output, free_output, pending_output
from cython.cimports.tidemq.engine.link.rates import end_hold
from cython.cimports.tidemq.engine.link.replies import write_disconnect
from cython.cimports.tidemq.engine.link.reports import connection_event, drop_packet, post_report
from cython.cimports.tidemq.engine.link.timers import begin_expiry, time_connection, time_session
from cython.cimports.tidemq.engine.link.tracing import is_traced, trace_end
from cython.cimports.tidemq.engine.link.wrapping import (
    conclude_transport,
    connection_bytes,
    drop_transport,
    open_transport,
)
from cython.cimports.tidemq.engine.queues.backlogs import suspend_backlog
from cython.cimports.tidemq.engine.queues.handbacks import return_held
from cython.cimports.tidemq.engine.queues.queueing import evict_waiting
from cython.cimports.tidemq.engine.queues.replayed import evict_replayed
from cython.cimports.tidemq.engine.queues.sessions import end_session, set_online, store_session
from cython.cimports.tidemq.engine.state.client import CLOSING, CONNECTED, Connection, Session
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.engine.state.wall_clock import wall_offset
from cython.cimports.tidemq.net.transport import fault_name
from cython.cimports.tidemq.wire.protocol import FAULT_TRANSPORT

_WILL_AGAIN_MS = cython.declare(int64_t, 1000)  # while the store takes nothing


def place_connection(r, c):
    """Gives a connection a slot here and begins to read from it."""
    if r.free_slots.empty():
        c.slot = cython.cast(uint32_t, r.connections.size())
        r.connections.push_back(c)
        r.generations.push_back(1)
    else:
        c.slot = r.free_slots.back()
        r.free_slots.pop_back()
        holds(r.connections[c.slot] == cython.NULL, b"closing: a free slot has no connection")
        r.connections[c.slot] = c
    c.generation = r.generations[c.slot]
    if ASSERTS:
        named: cython.pointer[Connection] = connection_of(r, handle_of(r, c))
        holds(named == c, b"closing: a handle names the connection that it is made for")
    event: epoll_event
    event.events = EPOLLIN
    event.data.u64 = handle_of(r, c)
    c.interest = EPOLLIN
    epoll_ctl(r.epoll, EPOLL_CTL_ADD, c.fd, cython.address(event))
    r.tally[LIVE_CONNECTIONS] += 1


def open_connection(r, fd, listener, address):
    """A connection for a socket just accepted; its CONNECT is timed. False: no memory for its transport.

    ``address``: at which it is counted, 0: at none.
    """
    owner: unique_ptr[Connection] = make_unique[Connection]()
    c: cython.pointer[Connection] = owner.release()
    c.fd = fd
    c.listener = listener
    if not open_transport(c):
        del c
        return False
    c.packet_bytes_max = cython.cast(uint32_t, 0xFFFFFFFF)
    c.qos_max = listener.qos_max
    c.retain_available = listener.retain_available
    c.last_read_ms = r.now_ms
    c.address = address
    c.placed = address != 0
    one: cython.int = 1
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, cython.address(one), cython.sizeof(cython.int))
    place_connection(r, c)
    c.deadline_ms = r.now_ms + r.common.limits.connect_timeout_ms
    time_connection(r, c, c.deadline_ms)
    add_i64(cython.address(r.common.connection_count), 1, RELAXED)
    add_i64(cython.address(listener.connection_count), 1, RELAXED)
    r.tally[MEMORY_CONNECTIONS] += connection_bytes(c)
    r.tally[C_CONNECTIONS_ACCEPTED] += 1
    return True


def remove_connection(r, c):
    """Takes a connection off this reactor: its slot, its events, and everything that points to it here."""
    own: cython.bint = c.slot < r.connections.size() and r.connections[c.slot] == c
    holds(own, b"closing: a connection leaves the slot that it was given")
    holds(c.generation == r.generations[c.slot], b"closing: a slot has the generation of its connection")
    epoll_ctl(r.epoll, EPOLL_CTL_DEL, c.fd, cython.NULL)
    r.tally[LIVE_CONNECTIONS] -= 1
    if c.session != cython.NULL and c.session.connection == c:
        stop_waiting(r, c.session)
    r.connections[c.slot] = cython.NULL
    r.generations[c.slot] += 1
    if r.generations[c.slot] == 0:
        r.generations[c.slot] = 1
    r.free_slots.push_back(c.slot)
    c.timer_ms = 0
    c.overloaded = False
    c.reviewing = 0
    c.backlogged = False
    end_hold(r, c)
    c.pause_count = 0
    c.owed = 0
    c.in_debt = False
    c.homing = 0
    c.resumes = 0  # a section of this reactor's


def update_interest(r, c):
    """Reads unless a decision or a slow receiver is waited for; writes while something is left to write."""
    wanted: uint32_t = 0
    if not c.asked and c.pause_count == 0 and not c.stalled:
        wanted = EPOLLIN
    if pending_output(c):
        wanted |= EPOLLOUT
        if not c.interest & EPOLLOUT and r.common.limits.output_stalled_ms_max:
            c.output_ms = r.now_ms
            c.unsent = 0x7FFFFFFF
            time_connection(r, c, r.now_ms + r.common.limits.output_stalled_ms_max // 2)
    if wanted == c.interest:
        return
    event: epoll_event
    event.events = wanted
    event.data.u64 = handle_of(r, c)
    c.interest = wanted
    epoll_ctl(r.epoll, EPOLL_CTL_MOD, c.fd, cython.address(event))


def _leave_session(r, c, s):
    """The client is gone: its will and the end of its session become due, now or later."""
    # atomic: the façade looks whether there is one
    store_u64(cython.cast(cython.pointer[uint64_t], cython.address(s.connection)), 0, RELEASE)
    s.left_ms = r.now_ms + wall_offset(r.common) // 1000000
    s.left_by_itself = c.departed
    s.left_fault = c.doom_fault
    if not c.departed:
        s.left_reason = c.doom_reason
    set_online(r, s, False)
    suspend_backlog(s)
    if s.memberships != cython.NULL:
        return_held(r, s)
    if s.received_count == 0:
        release(s.received)
        s.received = cython.NULL
    if c.clean_disconnect:
        discard_will(r, s)
    if s.expiry_s == 0:
        publish_last_will(r, s)
        end_session(r, s)
        return
    if s.will != cython.NULL:
        if s.will.delay_s or waits_for_store(r, s):
            s.will_ms = r.now_ms + max(cython.cast(int64_t, s.will.delay_s), 1) * 1000
        else:
            publish_will(r, s)
    begin_expiry(r, s)
    r.sessions[s.number] = s  # where those that are away are found
    time_session(r, s)
    evict_replayed(r, s)
    if s.stored != cython.NULL:
        evict_waiting(r, s)
        store_session(r, s)


def _is_on_its_way(s):
    """Whether a session is about to be another node's, or came from there and is not here with all that is
    its own: its client may have come, and be waiting for it. It is timed again when it stays, or all is here.
    """
    return s.handed or (s.stored != cython.NULL and s.stored.older_may_come)


def session_due(r, number, due_ms):
    """A session's timer: publishes a delayed will, ends what has expired [MQTT-3.1.3-9]. Returns how many
    subscriptions went with it.
    """
    if not r.sessions.count(number):
        return 0
    s: cython.pointer[Session] = r.sessions[number]
    if s.internal or s.timer_ms != due_ms:
        return 0
    s.timer_ms = 0
    if s.connection != cython.NULL:
        if s.stored == cython.NULL:
            r.sessions.erase(number)
        return 0
    if _is_on_its_way(s):
        return 0
    if s.will != cython.NULL and s.will.token:
        return 0  # the session is looked at again when its will is kept
    subscriptions: cython.int = 0
    if s.subscriptions != cython.NULL:
        subscriptions = cython.cast(cython.int, s.subscriptions.size())
    ends: cython.bint = s.ends_ms and s.ends_ms <= r.now_ms
    if s.will != cython.NULL and s.will_ms and (s.will_ms <= r.now_ms or ends):
        if waits_for_store(r, s):
            s.will.delay_s = 0  # is over
            s.will_ms = r.now_ms + _WILL_AGAIN_MS
            s.ends_ms = max(s.ends_ms, s.will_ms) if ends else s.ends_ms
            time_session(r, s)
            return 0
        publish_will(r, s)
        if s.will != cython.NULL:
            return 0
    if ends:
        end_session(r, s)
        return subscriptions
    store_session(r, s)
    time_session(r, s)
    return 0


def _free_parts(r, c):
    free_output(r, c)
    drop_transport(r, c)
    if c.input != cython.NULL:
        free(c.input)
        r.tally[LIVE_BUFFERS] -= 1
        r.tally[MEMORY_BUFFERS] -= c.input_capacity
        c.input = cython.NULL
    drop_packet(r, c.connect_packet)
    drop_packet(r, c.pending_packet)
    release_rules(c.rules, r.tally)
    free_identity(r, c)
    del c.usage
    del c.peer
    del c.aliases_in
    del c.aliases_out
    c.connect_packet = cython.NULL
    c.pending_packet = cython.NULL
    c.usage = cython.NULL
    c.peer = cython.NULL
    c.rules = cython.NULL
    c.aliases_in = cython.NULL
    c.aliases_out = cython.NULL


def _say_goodbye(r, c):
    """Sends what is left, with a DISCONNECT where the server ends a 5.0 connection, and closes the socket."""
    if c.state == CONNECTED and c.doom_reason >= 0x80:
        write_disconnect(r, c, c.doom_reason)
    sent: cython.bint = flush_output(r, c)
    if sent and c.transport != cython.NULL:
        conclude_transport(r, c)
    if sent and (c.doom_reason or c.transport != cython.NULL):
        linger(r, c.fd)
    else:
        close(c.fd)


def close_connection(r, c):
    """Ends a connection now. The struct is freed at the end of the turn where it is in ``r.touched``, else
    here.
    """
    holds(c.state != CLOSING, b"closing: a connection is closed once")
    if r.review_left:
        bring_up_to_date(r, c)  # its will is judged by the rules of now
    if c.doom_fault:
        r.tally[C_FAULTS] += 1
    if is_traced(c):
        trace_end(r, c)
    if c.doom_fault or (r.common.report_connections and c.state == CONNECTED):
        event: cython.pointer[Event] = connection_event(r, c, EVENT_DISCONNECTED)
        event.reason = c.doom_reason
        event.fault = c.doom_fault
        event.listener = c.listener.name
        event.epoch = c.bytes_received + c.bytes_sent
        event.offset = r.now_ns - c.since_ns if c.since_ns else 0
        if c.doom_fault == FAULT_TRANSPORT and c.transport != cython.NULL:
            event.text.assign(fault_name(c.transport))
        post_report(r, event)
    if c.delivered:
        report_delivered(r, c, True)
    drop_held(r, c)
    remove_connection(r, c)  # before the descriptor is closed: then its number may be another thread's
    s: cython.pointer[Session] = c.session
    c.session = cython.NULL
    if c.state == CONNECTED and s != cython.NULL and s.connection == c:
        _leave_session(r, c, s)  # who sees that the connection has ended finds its client gone
    _say_goodbye(r, c)
    c.state = CLOSING
    c.doomed = True
    c.fd = -1
    if c.placed:
        give_place(cython.address(r.common.guard), c.address)
    r.tally[MEMORY_CONNECTIONS] -= connection_bytes(c)
    _free_parts(r, c)
    left: int64_t = add_i64(cython.address(r.common.connection_count), -1, RELAXED)
    holds(left >= 0, b"closing: no more connections end than began")
    left = add_i64(cython.address(c.listener.connection_count), -1, RELAXED)
    holds(left >= 0, b"closing: of a listener no more connections end than began")
    r.tally[C_CONNECTIONS_CLOSED] += 1
    if not c.touched:
        del c
