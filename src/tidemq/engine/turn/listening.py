"""Listening sockets: what comes in is counted, refused beyond the limits, or becomes a connection."""

import cython
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_CONNECTIONS_REFUSED,
    C_LISTENERS_THROTTLED,
    C_REFUSED_ADDRESS,
)
from cython.cimports.tidemq.engine.base.guarding import address_of_socket, give_place, take_place
from cython.cimports.tidemq.engine.base.listener import ListeningSocket
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.system import (
    EFD_CLOEXEC,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOMEM,
    EPOLL_CTL_DEL,
    EPOLLEXCLUSIVE,
    RELAXED,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    accept4,
    close,
    epoll_ctl,
    errno,
    eventfd,
    load_i64,
)
from cython.cimports.tidemq.engine.clients.closing import open_connection
from cython.cimports.tidemq.engine.link.polling import watch
from cython.cimports.tidemq.engine.link.rates import charge_accept, may_accept_at
from cython.cimports.tidemq.engine.link.timers import add_timer
from cython.cimports.tidemq.engine.state.mail import TIMER_LISTENING
from cython.cimports.tidemq.engine.state.reactor import Common

# of the key of a listening socket's epoll events; the rest is its place in `Reactor.listening`
_MARK = cython.declare(uint64_t, cython.cast(uint64_t, 1) << 63)
_ACCEPTS_MAX = cython.declare(cython.int, 64)  # of one listener in one turn
_NOBODY = cython.declare(cython.int, -1)
_NO_ROOM = cython.declare(cython.int, -2)
_ROOM_MS = cython.declare(int64_t, 100)  # between two looks whether there is room again


def add_listening(r, fd, listener, alone):
    """Accepts from a listening socket, which is this reactor's ``alone`` or shared by all; before it runs."""
    socket: ListeningSocket
    socket.fd = fd
    socket.listener = listener
    socket.alone = alone
    r.listening.push_back(socket)
    watch_listening(r, _MARK | (r.listening.size() - 1))


def watch_listening(r, key):
    """Tells of clients at a listening socket; of those who share it, one reactor is woken."""
    holds(key & _MARK != 0, b"listening: the key of a listening socket bears the mark")
    holds((key & ~_MARK) < r.listening.size(), b"listening: a key names a socket of the list")
    socket: ListeningSocket = r.listening[key & ~_MARK]
    if not r.stopping:
        watch(r, socket.fd, key, 0 if socket.alone else EPOLLEXCLUSIVE)


def _accepted(r, listening):
    """A new connection's descriptor, or _NOBODY waits, or there is _NO_ROOM even to refuse somebody.

    When no descriptor is left, the reserved one is given up to refuse with. The lock keeps other reactors
    from accepting with it meanwhile; another thread of the program may still get hold of it, or another
    program of the system's last.
    """
    common: cython.pointer[Common] = r.common
    lock(cython.address(common.accept_lock))
    fd: cython.int = accept4(listening, cython.NULL, cython.NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
    if fd < 0:
        fd = _NOBODY
        if errno in (EMFILE, ENFILE):
            close(common.reserve)
            fd = accept4(listening, cython.NULL, cython.NULL, SOCK_CLOEXEC)
            if fd >= 0:
                close(fd)
                r.tally[C_CONNECTIONS_REFUSED] += 1
                fd = _NOBODY
            elif errno in (EMFILE, ENFILE):
                fd = _NO_ROOM
            common.reserve = eventfd(0, EFD_CLOEXEC)
        elif errno in (ENOBUFS, ENOMEM):
            fd = _NO_ROOM
    elif common.reserve < 0:
        common.reserve = eventfd(0, EFD_CLOEXEC)
    unlock(cython.address(common.accept_lock))
    return fd


def _is_full(r, listener):
    if load_i64(cython.address(r.common.connection_count), RELAXED) >= r.common.limits.connections_max:
        return True
    return (
        listener.connections_max > 0
        and load_i64(cython.address(listener.connection_count), RELAXED) >= listener.connections_max
    )


def _rest(r, fd, key, until_ms):
    """Takes nobody there until then: they wait in the kernel's queue."""
    # an exclusive event cannot be changed, only taken out
    epoll_ctl(r.epoll, EPOLL_CTL_DEL, fd, cython.NULL)
    add_timer(r, until_ms, key, TIMER_LISTENING)


def accept_connections(r, key):
    """Takes the clients that wait at one of the listening sockets, up to a number a turn."""
    count: cython.int
    socket: ListeningSocket = r.listening[key & ~_MARK]
    for count in range(_ACCEPTS_MAX):
        again_ms: int64_t = may_accept_at(r, socket.listener)
        if again_ms:
            _rest(r, socket.fd, key, again_ms)
            r.tally[C_LISTENERS_THROTTLED] += 1
            return
        fd: cython.int = _accepted(r, socket.fd)
        if fd == _NO_ROOM:
            _rest(r, socket.fd, key, r.now_ms + _ROOM_MS)
        if fd < 0:
            return
        charge_accept(r, socket.listener)
        if _is_full(r, socket.listener) or not _open(r, fd, socket.listener):
            close(fd)
            r.tally[C_CONNECTIONS_REFUSED] += 1


def _open(r, fd, listener):
    """False: its address has enough connections, or there is no memory for one more."""
    address: uint64_t = 0
    if listener.connections_per_address_max and not listener.proxied:
        address = address_of_socket(fd)
    if address and not take_place(
        cython.address(r.common.guard), address, listener.connections_per_address_max
    ):
        r.tally[C_REFUSED_ADDRESS] += 1
        return False
    if open_connection(r, fd, listener, address):
        return True
    if address:
        give_place(cython.address(r.common.guard), address)
    return False
