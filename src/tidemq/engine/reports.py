"""Events on their way up to the control plane: queued under a lock, one wake-up for as long as nobody has
taken them.

Only what the control plane decides on or asked for makes an event; the queue of what it merely wants to know
is bounded and what does not fit is counted.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.counters import C_DROPPED_RECEIVER_FULL, C_EVENTS_DROPPED
from cython.cimports.tidemq.engine.handles import handle_of
from cython.cimports.tidemq.engine.message import hold_message
from cython.cimports.tidemq.engine.state import EVENT_RECEIVED, Connection, Event, Message, Reactor, Shared
from cython.cimports.tidemq.engine.system import (
    NI_NUMERICHOST,
    NI_NUMERICSERV,
    getnameinfo,
    getpeername,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    sockaddr,
    sockaddr_storage,
    socklen_t,
    write,
)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def new_event(kind: uint8_t, connection: uint64_t) -> cython.pointer[Event]:
    """An empty event; whoever takes it from the queue frees it."""
    owner: unique_ptr[Event] = make_unique[Event]()
    event: cython.pointer[Event] = owner.release()
    event.kind = kind
    event.connection = connection
    return event


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def post_event(shared: cython.pointer[Shared], event: cython.pointer[Event]) -> cython.void:
    """Hands the event over to the queue."""
    pthread_mutex_lock(cython.address(shared.events_lock))
    first: cython.bint = shared.events.empty()
    shared.events.push_back(event)
    pthread_mutex_unlock(cython.address(shared.events_lock))
    if first:
        one: uint64_t = 1
        write(shared.event_wake, cython.address(one), cython.sizeof(uint64_t))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_full(shared: cython.pointer[Shared]) -> cython.bint:
    pthread_mutex_lock(cython.address(shared.events_lock))
    full: cython.bint = shared.events.size() >= shared.limits.event_queue_max
    pthread_mutex_unlock(cython.address(shared.events_lock))
    return full


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def post_report(r: cython.pointer[Reactor], event: cython.pointer[Event]) -> cython.void:
    """Hands over an event that nobody has to answer; dropped and counted when too many wait."""
    if _is_full(r.shared):
        r.tally[C_EVENTS_DROPPED] += 1
        del event
    else:
        post_event(r.shared, event)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _name_peer(c: cython.pointer[Connection]) -> cython.void:
    address: sockaddr_storage
    size: socklen_t = cython.sizeof(sockaddr_storage)
    host: cython.char[64]
    port: cython.char[16]
    memset(host, 0, 64)
    memset(port, 0, 16)
    where: cython.pointer[sockaddr] = cython.cast(cython.pointer[sockaddr], cython.address(address))
    if getpeername(c.fd, where, cython.address(size)) == 0:
        getnameinfo(where, size, host, 64, port, 16, NI_NUMERICHOST | NI_NUMERICSERV)
    c.peer.append(cython.cast(cython.p_char, host))
    c.peer.append(cython.cast(cython.p_char, b":"))
    c.peer.append(cython.cast(cython.p_char, port))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def connection_event(
    r: cython.pointer[Reactor], c: cython.pointer[Connection], kind: uint8_t
) -> cython.pointer[Event]:
    """An event about a connection, with its peer, client identifier and user name filled in."""
    event: cython.pointer[Event] = new_event(kind, handle_of(r, c))
    if c.peer.empty():
        _name_peer(c)
    event.peer = c.peer
    event.version = c.version
    if c.session != cython.NULL:
        event.client_id = c.session.client_id
    if c.username != cython.NULL:
        event.username = c.username[0]
        event.has_username = True
    return event


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def report_received(
    r: cython.pointer[Reactor], receiver: uint64_t, message: cython.pointer[Message]
) -> cython.void:
    """A message for a receiver of the embedding program; the event holds it."""
    if _is_full(r.shared):
        r.tally[C_DROPPED_RECEIVER_FULL] += 1
        return
    event: cython.pointer[Event] = new_event(EVENT_RECEIVED, receiver)
    hold_message(message)
    event.message = message
    post_event(r.shared, event)
