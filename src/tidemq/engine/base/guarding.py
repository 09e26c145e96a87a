"""Who comes too often: connections by address, and clients that connect again and again (flapping).

A client is its identifier together with its address: who uses another's identifier elsewhere gets itself
banned and nobody else. The table is bounded; who came first is forgotten first.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.guarding import Visits
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.system import (
    AF_INET,
    AF_INET6,
    AF_UNIX,
    getpeername,
    pthread_mutex_destroy,
    pthread_mutex_init,
    sockaddr,
    sockaddr_storage,
    socklen_t,
)

# before the number of an IPv4 address: as a network of IPv6 it is of multicast, from where nobody connects
_IPV4 = cython.declare(uint64_t, cython.cast(uint64_t, 0xFFFFFFFF) << 32)
_MAPPED = cython.declare(cython.p_const_char, b"\0\0\0\0\0\0\0\0\0\0\xff\xff")
_LOOPBACK = cython.declare(cython.p_const_char, b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1")
_FORGOTTEN_MAX = cython.declare(cython.int, 4)  # old clients at each new visit


def init_guard(guard):
    pthread_mutex_init(cython.address(guard.lock), cython.NULL)


def destroy_guard(guard):
    pthread_mutex_destroy(cython.address(guard.lock))


def _number(data, size):
    number: uint64_t = 0
    index: cython.int
    for index in range(size):
        number = number << 8 | data[index]
    return number


def address_of_bytes(address):
    """Of an IPv6 address; that of IPv4 is ::ffff:a.b.c.d there."""
    if memcmp(address, _MAPPED, 12) == 0:
        return _IPV4 | _number(address + 12, 4)
    # ::/64, of the loopback address, is a network as well, and 0 means none
    return _number(address, 8) or 1


def address_of_socket(fd):
    """Of the peer; a Unix socket's has none."""
    address: sockaddr_storage
    size: socklen_t = cython.sizeof(sockaddr_storage)
    memset(cython.address(address), 0, cython.sizeof(sockaddr_storage))
    data: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], cython.address(address))
    where: cython.pointer[sockaddr] = cython.cast(cython.pointer[sockaddr], cython.address(address))
    if getpeername(fd, where, cython.address(size)) != 0:
        return 0
    if address.ss_family == AF_INET:
        return _IPV4 | _number(data + 4, 4)  # after family and port
    if address.ss_family == AF_INET6:
        return address_of_bytes(data + 8)  # after family, port and flow
    return 0


def is_local_socket(fd):
    """Whether the peer is on this machine: at a loopback address, or at a Unix socket."""
    address: sockaddr_storage
    size: socklen_t = cython.sizeof(sockaddr_storage)
    memset(cython.address(address), 0, cython.sizeof(sockaddr_storage))
    data: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], cython.address(address))
    if getpeername(fd, cython.cast(cython.pointer[sockaddr], cython.address(address)), cython.address(size)):
        return False
    if address.ss_family == AF_INET6:
        if memcmp(data + 8, _MAPPED, 12) == 0:
            return data[20] == 127
        return memcmp(data + 8, _LOOPBACK, 16) == 0
    return address.ss_family == AF_UNIX or (address.ss_family == AF_INET and data[4] == 127)


def take_place(guard, address, most):
    """One more connection of the address, if it has fewer than ``most``. Its end is `give_place`."""
    lock(cython.address(guard.lock))
    allowed: cython.bint = guard.addresses[address] < most
    if allowed:
        guard.addresses[address] += 1
    unlock(cython.address(guard.lock))
    return allowed


def give_place(guard, address):
    lock(cython.address(guard.lock))
    left: int64_t = guard.addresses[address] - 1
    holds(left >= 0, b"guard: a place that is given back was taken")
    if left > 0:
        guard.addresses[address] = left
    else:
        guard.addresses.erase(address)
    unlock(cython.address(guard.lock))


def visitor_of(guard, client_id, address):
    """A number for a client at an address; nobody without the table's key can find two with one number."""
    key: string
    key.resize(8)
    memcpy(cython.cast(cython.p_void, key.data()), cython.address(address), 8)
    key.append(cython.cast(cython.p_char, client_id.data), client_id.size)
    return guard.hash.of(key.data(), key.size())


def is_banned(guard, visitor, now_ms):
    lock(cython.address(guard.lock))
    banned: cython.bint = guard.clients.count(visitor) and guard.clients[visitor].banned_ms > now_ms
    unlock(cython.address(guard.lock))
    return banned


def _forget_old(guard, now_ms, window_ms, clients_max):
    """Takes out who came first: whose window and ban are over, and others where the table is full."""
    count: cython.int
    for count in range(_FORGOTTEN_MAX):
        if guard.order.empty():
            return
        oldest: uint64_t = guard.order.front()
        visits: Visits = guard.clients[oldest]
        over: cython.bint = visits.began_ms + window_ms <= now_ms and visits.banned_ms <= now_ms
        if not over and guard.order.size() < clients_max:
            return
        guard.order.pop_front()
        guard.clients.erase(oldest)


def note_visit(guard, visitor, now_ms, connects_max, window_ms, ban_ms, clients_max):
    """Counts a connect. False: it is one too many in the window, and the client banned from now on."""
    lock(cython.address(guard.lock))
    if not guard.clients.count(visitor):
        _forget_old(guard, now_ms, window_ms, clients_max)
        guard.order.push_back(visitor)
    visits: cython.pointer[Visits] = cython.address(guard.clients[visitor])
    holds(guard.order.size() == guard.clients.size(), b"guard: each client has one place in the order")
    if visits.began_ms + window_ms <= now_ms or visits.connects == 0:
        visits.began_ms = now_ms
        visits.connects = 0
    visits.connects += 1
    allowed: cython.bint = visits.connects <= connects_max
    if not allowed:
        visits.banned_ms = now_ms + ban_ms
        visits.connects = 0
    unlock(cython.address(guard.lock))
    return allowed
