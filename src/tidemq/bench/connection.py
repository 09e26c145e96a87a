"""One connection of the load generator: its socket and what waits to be sent."""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.libc.stdlib import realloc
from cython.cimports.libc.string import memcpy, memmove, memset
from cython.cimports.tidemq.bench import linux
from cython.cimports.tidemq.bench.connection import CONNECTING, Connection

if not cython.compiled:
    raise ImportError("tidemq.bench.connection is compiled code: run `make build`")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def open_socket(
    c: cython.pointer[Connection], epoll: cython.int, index: uint32_t, port: uint16_t
) -> cython.bint:
    """Begin to connect to 127.0.0.1:`port`; registered with `epoll` once. False if no socket is to be had."""
    address = cython.declare(linux.sockaddr_in)
    event = cython.declare(linux.epoll_event)
    on: cython.int = 1
    memset(cython.address(address), 0, cython.sizeof(address))
    address.sin_family = linux.AF_INET
    address.sin_port = linux.htons(port)
    address.sin_addr.s_addr = linux.htonl(linux.INADDR_LOOPBACK)
    c.fd = linux.socket(linux.AF_INET, linux.SOCK_STREAM | linux.SOCK_NONBLOCK, 0)
    if c.fd < 0:
        return False
    linux.setsockopt(c.fd, linux.IPPROTO_TCP, linux.TCP_NODELAY, cython.address(on), cython.sizeof(on))
    linux.connect(
        c.fd,
        cython.cast(cython.pointer[cython.const[linux.sockaddr]], cython.address(address)),
        cython.sizeof(address),
    )
    c.stage = CONNECTING
    event.events = linux.EPOLLIN | linux.EPOLLOUT | linux.EPOLLRDHUP | linux.EPOLLET
    event.data.u32 = index
    linux.epoll_ctl(epoll, linux.EPOLL_CTL_ADD, c.fd, cython.address(event))
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_connected(c: cython.pointer[Connection]) -> cython.bint:
    """Of a writable socket: its TCP handshake succeeded."""
    fault: cython.int = 0
    size: linux.socklen_t = cython.sizeof(fault)
    linux.getsockopt(c.fd, linux.SOL_SOCKET, linux.SO_ERROR, cython.address(fault), cython.address(size))
    return fault == 0 and not c.hung_up


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def send_output(c: cython.pointer[Connection]) -> cython.bint:
    """One send of all output; the rest waits for the socket's next event. False when the peer is gone."""
    size: cython.Py_ssize_t
    if not c.writable or c.output_start == c.output_end:
        return True
    size = linux.send(c.fd, c.output + c.output_start, c.output_end - c.output_start, linux.MSG_NOSIGNAL)
    if size < 0:
        c.writable = False
        return linux.errno == linux.EAGAIN
    c.output_start += size
    if c.output_start < c.output_end:
        c.writable = False
    else:
        c.output_start = c.output_end = 0
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def reserve(c: cython.pointer[Connection], size: cython.size_t) -> cython.void:
    """Room for `size` more bytes of output: moves what waits to the front, or grows the buffer."""
    waiting: cython.size_t = c.output_end - c.output_start
    if c.output_end + size <= c.output_size:
        return
    if c.output_start > 0:
        memmove(c.output, c.output + c.output_start, waiting)
        c.output_start, c.output_end = 0, waiting
    if waiting + size > c.output_size:
        c.output_size = (waiting + size) * 2
        c.output = cython.cast(cython.pointer[uint8_t], realloc(c.output, c.output_size))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def append_ack(c: cython.pointer[Connection], first: uint8_t, packet_id: uint16_t) -> cython.void:
    at: cython.pointer[uint8_t]
    reserve(c, 4)
    at = c.output + c.output_end
    at[0] = first
    at[1] = 2
    at[2] = packet_id >> 8
    at[3] = packet_id & 0xFF
    c.output_end += 4


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def following_id(packet_id: uint16_t) -> uint16_t:
    return 1 if packet_id == 0xFFFF else packet_id + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def append_bytes(
    c: cython.pointer[Connection], data: cython.pointer[cython.const[uint8_t]], size: cython.size_t
) -> cython.void:
    reserve(c, size)
    memcpy(c.output + c.output_end, data, size)
    c.output_end += size
