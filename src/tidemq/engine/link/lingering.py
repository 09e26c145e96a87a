"""Sockets of connections that are over, until the client has seen why.

A socket that is closed while its client still sends answers with RST, which takes from the client what it had
not read yet: the DISCONNECT or CONNACK that says what was wrong. So the socket of a connection that we end is
only shut down for writing; what still comes is read and thrown away until the client closes too, for a second
at most.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint64_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    SHUT_WR,
    close,
    errno,
    recv,
    shutdown,
)
from cython.cimports.tidemq.engine.link.lingering import LINGER_MS, LINGERING_MAX
from cython.cimports.tidemq.engine.link.polling import watch
from cython.cimports.tidemq.engine.state.turning import Lingering

# of the key of its epoll events; the rest is the socket's number among those that have ever lingered here
_MARK = cython.declare(uint64_t, cython.cast(uint64_t, 1) << 62)
_READS = cython.declare(cython.int, 16)  # of a socket in a turn


def _drain(fd):
    """Throws away what has come. False: the client has closed, too. In none of the reactor's buffers: packets
    of the client that takes the session over may be in them, not handled yet.
    """
    unread: uint8_t[16384]
    reads: cython.int
    for reads in range(_READS):
        got: cython.Py_ssize_t = recv(fd, unread, cython.sizeof(unread), MSG_DONTWAIT)
        if got == 0 or (got < 0 and errno != EAGAIN and errno != EINTR):
            return False
        if got < 0:
            break
    return True


def _end(r, index):
    close(r.lingering[index].fd)
    r.lingering[index].fd = -1
    r.lingering_count -= 1
    while not r.lingering.empty() and r.lingering.front().fd < 0:
        count_steps(1)
        r.lingering.pop_front()
        r.lingering_first += 1


def linger(r, fd):
    """Takes over the socket of a connection that is over and has left ``r.epoll``."""
    one: Lingering
    shutdown(fd, SHUT_WR)
    if not _drain(fd):
        close(fd)
        return
    if r.lingering_count >= LINGERING_MAX:
        _end(r, 0)
    one.fd = fd
    one.until_ms = r.now_ms + LINGER_MS
    watch(r, fd, _MARK | (r.lingering_first + r.lingering.size()), 0)
    holds(r.lingering.empty() or r.lingering.front().fd >= 0, b"lingering: the oldest is open")
    r.lingering.push_back(one)
    r.lingering_count += 1
    holds(r.lingering_count <= r.lingering.size(), b"lingering: those that are open are among all")


def drain_lingering(r, key):
    """More has come, or the client has closed."""
    count_steps(1)
    index: uint64_t = (key & ~_MARK) - r.lingering_first  # very high where it has gone since
    if index < r.lingering.size() and r.lingering[index].fd >= 0 and not _drain(r.lingering[index].fd):
        _end(r, index)


def end_lingering(r, all):
    """Closes those whose time is over, or all of them."""
    while r.lingering.size() and (all or r.lingering[0].until_ms <= r.now_ms):
        count_steps(1)
        _end(r, 0)
