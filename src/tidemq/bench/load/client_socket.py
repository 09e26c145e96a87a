"""One connection of the load generator: its socket and what waits to be sent."""

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.stdlib import realloc
from cython.cimports.libc.string import memcpy, memmove
from cython.cimports.tidemq.bench import linux
from cython.cimports.tidemq.bench.load.client_socket import CONNECTING
from cython.cimports.tidemq.net.buffer import Buffer, discard
from cython.cimports.tidemq.net.transport import ENDED, OPEN, conclude, unwrap, wrap

if not cython.compiled:
    raise ImportError("tidemq.bench.load.client_socket is compiled code: run `make build`")


def open_socket(c, epoll, index, to, source):
    """Begin to connect; registered with `epoll` once. 0, or the errno of what could not be begun.

    `source` is an address of this machine, NULL: any. Its port is chosen when the peer is known, so that each
    address has all ports for each peer.
    """
    event = cython.declare(linux.epoll_event)
    on: cython.int = 1
    fault: cython.int
    c.fd = linux.socket(to.family, linux.SOCK_STREAM | linux.SOCK_NONBLOCK, 0)
    if c.fd < 0:
        return linux.errno
    if to.family != linux.AF_UNIX:
        linux.setsockopt(c.fd, linux.IPPROTO_TCP, linux.TCP_NODELAY, cython.address(on), cython.sizeof(on))
    if source != cython.NULL:
        linux.setsockopt(
            c.fd, linux.IPPROTO_IP, linux.IP_BIND_ADDRESS_NO_PORT, cython.address(on), cython.sizeof(on)
        )
    if (source != cython.NULL and linux.bind(c.fd, sockaddr_of(source), source.size)) or (
        linux.connect(c.fd, sockaddr_of(to), to.size) and linux.errno != linux.EINPROGRESS
    ):
        fault = linux.errno
        linux.close(c.fd)
        c.fd = -1
        return fault
    c.stage = CONNECTING
    event.events = linux.EPOLLIN | linux.EPOLLOUT | linux.EPOLLRDHUP | linux.EPOLLET
    event.data.u32 = index
    linux.epoll_ctl(epoll, linux.EPOLL_CTL_ADD, c.fd, cython.address(event))
    return 0


def sockaddr_of(address):
    """As the system's calls want it."""
    return cython.cast(cython.pointer[cython.const[linux.sockaddr]], cython.address(address.storage))


def socket_fault(c):
    """Of a socket that has finished its handshake: the errno of its failure, or 0."""
    fault: cython.int = 0
    size: linux.socklen_t = cython.sizeof(fault)
    linux.getsockopt(c.fd, linux.SOL_SOCKET, linux.SO_ERROR, cython.address(fault), cython.address(size))
    return fault


def send_output(c):
    """One send of all output; the rest waits for the socket's next event. False when the peer is gone."""
    size: cython.Py_ssize_t
    if c.transport != cython.NULL:
        return send_wrapped(c)
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


def send_wrapped(c):
    """The same through a transport. MQTT is wrapped when what was wrapped before has gone, all at once."""
    out: cython.pointer[Buffer] = cython.address(c.transport.output)
    size: cython.Py_ssize_t
    while True:
        if out.end == 0 and c.output_start < c.output_end and c.transport.phase == OPEN:
            if not wrap(c.transport, c.output + c.output_start, c.output_end - c.output_start):
                return False
            c.output_start = c.output_end = 0
        if not c.writable or out.end == 0:
            return True
        size = linux.send(c.fd, out.bytes + out.start, out.end - out.start, linux.MSG_NOSIGNAL)
        if size < 0:
            c.writable = False
            return linux.errno == linux.EAGAIN
        if cython.cast(cython.size_t, size) < out.end - out.start:
            c.writable = False
        discard(out, size)


def unsent(c):
    """Something waits for the socket."""
    return c.output_start < c.output_end or (c.transport != cython.NULL and c.transport.output.end > 0)


def receive_wrapped(c, wire, size, to):
    """One read of up to `size` bytes through a transport: bytes of MQTT at `to`, 0 where that was nothing of
    it. -1: the connection is over. `readable` is kept.
    """
    got: cython.Py_ssize_t
    kept: cython.size_t
    if c.transport.phase >= ENDED:
        return -1
    got = linux.recv(c.fd, wire, size, 0)
    if got <= 0:
        c.readable = False
        return 0 if got < 0 and linux.errno == linux.EAGAIN else -1
    kept = unwrap(c.transport, wire, got, to)
    # where it is over, come back when what came before the end is taken
    c.readable = cython.cast(cython.size_t, got) == size or c.hung_up or c.transport.phase >= ENDED
    return kept


def say_goodbye(c):
    """DISCONNECT, and what the transport says at the end; as far as the socket takes it at once."""
    append_bytes(c, cython.cast(cython.p_const_uchar, cython.cast(cython.p_const_char, b"\xe0\x00")), 2)
    if c.transport != cython.NULL and c.transport.phase == OPEN:
        wrap(c.transport, c.output + c.output_start, c.output_end - c.output_start)
        c.output_start = c.output_end = 0
        conclude(c.transport)
    send_output(c)


def reserve(c, size):
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


def append_ack(c, first, packet_id):
    at: cython.pointer[uint8_t]
    reserve(c, 4)
    at = c.output + c.output_end
    at[0] = first
    at[1] = 2
    at[2] = packet_id >> 8
    at[3] = packet_id & 0xFF
    c.output_end += 4


def following_id(packet_id):
    return 1 if packet_id == 0xFFFF else packet_id + 1


def append_bytes(c, data, size):
    reserve(c, size)
    memcpy(c.output + c.output_end, data, size)
    c.output_end += size
