"""A calibration peer: passes the bytes of every publisher to every subscriber without parsing them.

It shows what this machine's sockets allow and what the load generator can drive, the ceiling for any
broker. It knows CONNECT and SUBSCRIBE by their first byte, answers as MQTT 3.1.1 does, and takes
everything else for QoS 0 frames of one fixed size, so that the streams of several publishers are never
mixed within a frame.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint32_t
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memcpy, memmove, memset
from cython.cimports.tidemq.bench import linux
from cython.cimports.tidemq.bench.peer.relay import Peer

if not cython.compiled:
    raise ImportError("tidemq.bench.peer.relay is compiled code: run `make build`")

BLOCK_BYTES = cython.declare(cython.size_t, 1 << 18)  # read in one turn at least, then written once to each
WAITING_BYTES_MAX = cython.declare(cython.size_t, 1 << 20)  # above it publishers are not read
LISTENER_INDEX = cython.declare(uint32_t, 0xFFFFFFFF)


def keep(peer, data, size):
    """Add bytes to what waits for this subscriber's socket."""
    waiting: cython.size_t = peer.waiting_end - peer.waiting_start
    if peer.waiting_end + size > peer.waiting_size:
        memmove(peer.waiting, peer.waiting + peer.waiting_start, waiting)
        peer.waiting_start, peer.waiting_end = 0, waiting
        if waiting + size > peer.waiting_size:
            peer.waiting_size = (waiting + size) * 2
            peer.waiting = cython.cast(cython.pointer[uint8_t], realloc(peer.waiting, peer.waiting_size))
    memcpy(peer.waiting + peer.waiting_end, data, size)
    peer.waiting_end += size


@cython.cclass
class Relay:
    """Listens on 127.0.0.1; `serve()` runs until the process is killed. One thread, no GIL."""

    def __init__(self, port: int, frame_bytes: int) -> None:
        """Bind `port` (0 picks one) for frames of `frame_bytes`; OSError when it is taken."""
        address = cython.declare(linux.sockaddr_in)
        event = cython.declare(linux.epoll_event)
        on: cython.int = 1
        self.frame_size = frame_bytes
        self.block.resize(max(BLOCK_BYTES, 4 * self.frame_size))  # one that is read has room for two
        self.epoll = linux.epoll_create1(0)
        self.listener = linux.socket(linux.AF_INET, linux.SOCK_STREAM | linux.SOCK_NONBLOCK, 0)
        linux.setsockopt(
            self.listener, linux.SOL_SOCKET, linux.SO_REUSEADDR, cython.address(on), cython.sizeof(on)
        )
        memset(cython.address(address), 0, cython.sizeof(address))
        address.sin_family = linux.AF_INET
        address.sin_port = linux.htons(port)
        address.sin_addr.s_addr = linux.htonl(linux.INADDR_LOOPBACK)
        if linux.bind(
            self.listener,
            cython.cast(cython.pointer[cython.const[linux.sockaddr]], cython.address(address)),
            cython.sizeof(address),
        ):
            raise OSError(f"port {port} is taken")
        linux.listen(self.listener, 1024)
        event.events = linux.EPOLLIN
        event.data.u32 = LISTENER_INDEX
        linux.epoll_ctl(self.epoll, linux.EPOLL_CTL_ADD, self.listener, cython.address(event))

    def __dealloc__(self):
        number: cython.size_t
        for number in range(self.peers.size()):
            self.shut(cython.address(self.peers[number]))
            free(self.peers[number].partial)
            free(self.peers[number].waiting)
        linux.close(self.epoll)
        linux.close(self.listener)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        address = cython.declare(linux.sockaddr_in)
        size: linux.socklen_t = cython.sizeof(address)
        linux.getsockname(
            self.listener,
            cython.cast(cython.pointer[linux.sockaddr], cython.address(address)),
            cython.address(size),
        )
        return linux.ntohs(address.sin_port)

    def serve(self) -> None:
        """Relay for ever; comes back to Python once in many turns, for signals."""
        _turn: cython.int
        while True:
            with cython.nogil:
                for _turn in range(1000):
                    self.turn()

    def turn(self):
        """Read publishers until the block is full, then write it once to every subscriber."""
        events = cython.declare(linux.epoll_event[256])
        index: uint32_t
        event: cython.int
        i: cython.size_t
        held: cython.bint = self.blocked()
        count: cython.int = linux.epoll_wait(
            self.epoll, events, 256, 0 if self.ready.size() and not held else 100
        )
        for event in range(count):
            index = events[event].data.u32
            if index == LISTENER_INDEX:
                self.accept_all()
                continue
            if events[event].events & ~cython.cast(uint32_t, linux.EPOLLOUT):
                self.peers[index].readable = True
                self.enqueue(index)
            if events[event].events & linux.EPOLLOUT:
                self.peers[index].writable = True
        if not self.blocked():
            self.serving.swap(self.ready)
            for i in range(self.serving.size()):
                self.peers[self.serving[i]].queued = False
                self.read(self.serving[i])
            self.serving.clear()
        self.pass_on()

    def accept_all(self):
        peer = cython.declare(Peer)
        event = cython.declare(linux.epoll_event)
        on: cython.int = 1
        while True:
            memset(cython.address(peer), 0, cython.sizeof(peer))
            peer.fd = linux.accept4(self.listener, cython.NULL, cython.NULL, linux.SOCK_NONBLOCK)
            if peer.fd < 0:
                return
            linux.setsockopt(
                peer.fd, linux.IPPROTO_TCP, linux.TCP_NODELAY, cython.address(on), cython.sizeof(on)
            )
            peer.writable = True
            peer.partial = cython.cast(cython.pointer[uint8_t], malloc(self.frame_size))
            event.events = linux.EPOLLIN | linux.EPOLLOUT | linux.EPOLLRDHUP | linux.EPOLLET
            event.data.u32 = self.peers.size()
            self.peers.push_back(peer)
            linux.epoll_ctl(self.epoll, linux.EPOLL_CTL_ADD, peer.fd, cython.address(event))

    def enqueue(self, index):
        if not self.peers[index].queued:
            self.peers[index].queued = True
            self.ready.push_back(index)

    def read(self, index):
        """One read into the block, behind the beginning of a frame that the last one left."""
        peer: cython.pointer[Peer] = cython.address(self.peers[index])
        at: cython.pointer[uint8_t] = self.block.data() + self.block_used
        room: cython.size_t = self.block.size() - self.block_used
        whole: cython.size_t
        got: cython.Py_ssize_t
        if peer.fd < 0:
            return
        if room < 2 * self.frame_size:
            self.enqueue(index)
            return
        memcpy(at, peer.partial, peer.partial_size)
        got = linux.recv(peer.fd, at + peer.partial_size, room - peer.partial_size, 0)
        if got <= 0:
            if got == 0 or linux.errno != linux.EAGAIN:
                self.shut(peer)
            return
        self.enqueue(index)  # read it empty: a hang-up may lie behind the bytes
        if peer.partial_size == 0 and at[0] != 0x30:
            self.greet(index, at)
            return
        whole = (peer.partial_size + got) // self.frame_size * self.frame_size
        peer.partial_size = peer.partial_size + got - whole
        memcpy(peer.partial, at + whole, peer.partial_size)
        self.block_used += whole

    def greet(self, index, data):
        """CONNECT, SUBSCRIBE to one filter, DISCONNECT."""
        peer: cython.pointer[Peer] = cython.address(self.peers[index])
        if data[0] == 0x10:
            linux.send(peer.fd, cython.cast(cython.p_const_char, b"\x20\x02\x00\x00"), 4, linux.MSG_NOSIGNAL)
        elif data[0] == 0x82:
            linux.send(
                peer.fd, cython.cast(cython.p_const_char, b"\x90\x03\x00\x01\x00"), 5, linux.MSG_NOSIGNAL
            )
            peer.subscribes = True
            self.subscribers.push_back(index)
        else:
            self.shut(peer)

    def shut(self, peer):
        if peer.fd >= 0:
            linux.close(peer.fd)
            peer.fd = -1
            peer.waiting_start = peer.waiting_end = 0

    def blocked(self):
        """Some subscriber has too much waiting."""
        i: cython.size_t
        peer: cython.pointer[Peer]
        for i in range(self.subscribers.size()):
            peer = cython.address(self.peers[self.subscribers[i]])
            if peer.waiting_end - peer.waiting_start > WAITING_BYTES_MAX and not peer.writable:
                return True
        return False

    def pass_on(self):
        i: cython.size_t
        for i in range(self.subscribers.size()):
            self.hand(cython.address(self.peers[self.subscribers[i]]))
        self.block_used = 0

    def hand(self, peer):
        """The turn's block to one subscriber, behind what waits; what does not fit waits in turn."""
        data: cython.pointer[uint8_t] = self.block.data()
        size: cython.size_t = self.block_used
        sent: cython.Py_ssize_t
        if peer.fd < 0:
            return
        if peer.waiting_start < peer.waiting_end:
            keep(peer, data, size)
            data = peer.waiting + peer.waiting_start
            size = peer.waiting_end - peer.waiting_start
        if size == 0 or not peer.writable:
            if size and data == self.block.data():
                keep(peer, data, size)
            return
        sent = linux.send(peer.fd, data, size, linux.MSG_NOSIGNAL)
        if sent < 0 and linux.errno != linux.EAGAIN:
            self.shut(peer)
            return
        sent = max(sent, 0)
        peer.writable = cython.cast(cython.size_t, sent) == size
        if data == self.block.data():
            if not peer.writable:
                keep(peer, data + sent, size - sent)
        else:
            peer.waiting_start += sent
