"""Events on their way up to the control plane: queued under a lock, one wake-up for as long as nobody has
taken them.

Only what the control plane decides on or asked for makes an event; the queue of what it merely wants to know
is bounded and what does not fit is counted.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libc.stdio import snprintf
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_DROPPED_RECEIVER_FULL,
    C_EVENTS_DROPPED,
    MEMORY_BUFFERS,
)
from cython.cimports.tidemq.engine.base.event import (
    EVENT_ACKNOWLEDGED,
    EVENT_CONNECTED,
    EVENT_RECEIVED,
    EVENT_STOPPED,
    Event,
)
from cython.cimports.tidemq.engine.base.guarding import is_local_socket
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import hold_message
from cython.cimports.tidemq.engine.base.system import (
    AF_UNIX,
    NI_NUMERICHOST,
    NI_NUMERICSERV,
    RELAXED,
    SO_PEERCRED,
    SOL_SOCKET,
    getnameinfo,
    getpeername,
    getsockopt,
    load_i64,
    sockaddr,
    sockaddr_storage,
    socklen_t,
    store_i64,
    ucred,
    write,
)
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.reactor import WatchCount

_QUESTION_COPIES = cython.declare(int64_t, 2)  # of a packet that is decided on: ours, and the event's


def new_event(kind, connection):
    """An empty event; whoever takes it from the queue frees it."""
    owner: unique_ptr[Event] = make_unique[Event]()
    event: cython.pointer[Event] = owner.release()
    event.kind = kind
    event.connection = connection
    return event


def post_event(common, event):
    """Hands the event over to the queue."""
    lock(cython.address(common.events_lock))
    first: cython.bint = common.events.empty()
    common.events.push_back(event)
    unlock(cython.address(common.events_lock))
    if first:
        one: uint64_t = 1
        write(common.event_wake, cython.address(one), cython.sizeof(uint64_t))


def _is_full(common):
    lock(cython.address(common.events_lock))
    full: cython.bint = common.events.size() >= common.limits.event_queue_max
    unlock(cython.address(common.events_lock))
    return full


def post_report(r, event):
    """Hands over an event that nobody has to answer; dropped and counted when too many wait."""
    holds(
        event.kind >= EVENT_CONNECTED and event.kind != EVENT_STOPPED,
        b"reports: what somebody waits for is never dropped",
    )
    if _is_full(r.common):
        r.tally[C_EVENTS_DROPPED] += 1
        del event
    else:
        post_event(r.common, event)


def _name_process(c):
    """Of a client at a Unix socket: "unix:", its process and a number that no other has now."""
    who: ucred
    size: socklen_t = cython.sizeof(ucred)
    text: cython.char[32]
    memset(cython.address(who), 0, cython.sizeof(ucred))
    getsockopt(c.fd, SOL_SOCKET, SO_PEERCRED, cython.address(who), cython.address(size))
    snprintf(text, 32, b"unix:%d.%d", who.pid, c.fd)
    set_peer(c, text)


def set_peer(c, text):
    """From now on the other side is known by this."""
    if c.peer == cython.NULL:
        owner: unique_ptr[string] = make_unique[string]()
        c.peer = owner.release()
    c.peer.assign(text)


def name_peer(c):
    """Finds out the address of the other side, once."""
    if c.peer != cython.NULL:
        return
    address: sockaddr_storage
    size: socklen_t = cython.sizeof(sockaddr_storage)
    host: cython.char[64]
    port: cython.char[16]
    memset(host, 0, 64)
    memset(port, 0, 16)
    where: cython.pointer[sockaddr] = cython.cast(cython.pointer[sockaddr], cython.address(address))
    if getpeername(c.fd, where, cython.address(size)) == 0:
        if address.ss_family == AF_UNIX:
            _name_process(c)
            return
        getnameinfo(where, size, host, 64, port, 16, NI_NUMERICHOST | NI_NUMERICSERV)
    set_peer(c, host)
    c.peer.append(cython.cast(cython.p_char, b":"))
    c.peer.append(cython.cast(cython.p_char, port))


def is_local(c):
    """Whether the client is on this machine: at a loopback address, or at a Unix socket."""
    if c.peer == cython.NULL:  # no proxy has said where it is
        return is_local_socket(c.fd)
    host: string = c.peer.substr(0, c.peer.rfind(b":"))
    if host == b"unix" or host == b"::1":
        return True
    return host.compare(0, 4, b"127.") == 0 or host.compare(0, 11, b"::ffff:127.") == 0


def connection_event(r, c, kind):
    """An event about a connection, with its peer, client identifier and user name filled in."""
    holds(r.connections[c.slot] == c, b"reports: an event about a connection comes from where that is")
    event: cython.pointer[Event] = new_event(kind, handle_of(r, c))
    name_peer(c)
    event.peer = c.peer[0]
    event.version = c.version
    if c.session != cython.NULL:
        event.client_id = c.session.client_id
    if c.identity != cython.NULL and c.identity.username != cython.NULL:
        event.username = c.identity.username[0]
        event.has_username = True
    return event


def count_watched(common, watch, payload_bytes):
    """A message on a topic filter that somebody watches. Only the reactor of receivers counts."""
    counted: cython.pointer[WatchCount] = cython.address(common.watched[watch - 1])
    messages: int64_t = load_i64(cython.address(counted.messages), RELAXED) + 1
    store_i64(cython.address(counted.messages), messages, RELAXED)
    size: int64_t = load_i64(cython.address(counted.payload_bytes), RELAXED) + payload_bytes
    store_i64(cython.address(counted.payload_bytes), size, RELAXED)


def report_received(r, receiver, message):
    """A message for a receiver of the embedding program; the event holds it."""
    if _is_full(r.common):
        r.tally[C_DROPPED_RECEIVER_FULL] += 1
        return
    event: cython.pointer[Event] = new_event(EVENT_RECEIVED, receiver)
    hold_message(message)
    event.message = message
    post_event(r.common, event)


def report_acknowledged(r, s, entry):
    """A message that plugins want to know this of; the event holds it."""
    if entry.message == cython.NULL or s.internal:
        return
    if _is_full(r.common):
        r.tally[C_EVENTS_DROPPED] += 1
        return
    event: cython.pointer[Event] = new_event(EVENT_ACKNOWLEDGED, 0)
    event.client_id = s.client_id
    event.reason = entry.qos
    hold_message(entry.message)
    event.message = entry.message
    post_event(r.common, event)


def keep_packet(r, first, body, size):
    owner: unique_ptr[string] = make_unique[string]()
    kept: cython.pointer[string] = owner.release()
    kept.push_back(cython.cast(cython.char, first))
    kept.append(cython.cast(cython.p_char, body), size)
    r.tally[MEMORY_BUFFERS] += _QUESTION_COPIES * cython.cast(int64_t, kept.size())
    return kept


def drop_packet(r, kept):
    if kept != cython.NULL:
        r.tally[MEMORY_BUFFERS] -= _QUESTION_COPIES * cython.cast(int64_t, kept.size())
        del kept
