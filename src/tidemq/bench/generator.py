"""The load generator: one thread, one epoll loop, every connection of a workload, no GIL on a message's way.

It must cost far less than any broker that it measures. So publishers send blocks of frames that are encoded once
and patched (sequence number, time, packet identifier), received bytes are parsed where they lie, sockets are
registered once, edge-triggered, and all acknowledgements of one read leave in one send.

Every payload begins with its sequence number (8 bytes), its time in ns (8) and its publisher (4), little-endian. A
subscriber keeps the next number that it expects from each publisher, so that in the good case checking is one
comparison; what is skipped is marked in a bitmap, and a number that comes late is told from one that comes twice.

Written apart from `tidemq.wire` on purpose: a fault there must not be shared by what measures it.
"""

import time

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdio import snprintf
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.tidemq.bench import linux
from cython.cimports.tidemq.bench.generator import (
    CLOSED,
    CONNECTING,
    GREETING,
    READY,
    SUBSCRIBING,
    Connection,
)
from cython.cimports.tidemq.bench.histogram import percentile, record

from tidemq.bench.workload import Latency, Outcome, Workload

if not cython.compiled:
    raise ImportError("tidemq.bench.generator is compiled code: run `make build`")

INPUT_BYTES = cython.declare(cython.size_t, 1 << 18)  # one read
PARTIAL_BYTES_MAX = cython.declare(cython.size_t, 1 << 16)  # a longer packet than any that we ask for
CONNECTING_MAX = cython.declare(cython.uint, 64)  # connections between SYN and CONNACK, below any backlog
FILTERS_PER_SUBSCRIBE = cython.declare(cython.uint, 256)
PACKET_BYTES_OTHER_MAX = cython.declare(cython.size_t, 16_384)  # CONNECT or SUBSCRIBE
TIMER_INDEX = cython.declare(uint32_t, 0xFFFFFFFF)  # the timer's entry in epoll events
SLICE_NS = cython.declare(int64_t, 200_000_000)  # the loop comes back to Python so often, for signals
TOPIC_STRIDE = cython.declare(uint64_t, 2_654_435_761)  # a prime: visits every topic, neighbours far apart
STAMP_BYTES = 20  # sequence number, time, publisher
DIGITS = cython.declare(cython.p_const_char, b"0123456789abcdef")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def clock_ns(clock: cython.int) -> int64_t:
    at = cython.declare(linux.timespec)
    linux.clock_gettime(clock, cython.address(at))
    return at.tv_sec * 1_000_000_000 + at.tv_nsec


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def reserve(c: cython.pointer[Connection], size: cython.size_t) -> cython.void:
    """Room for `size` more bytes of output: moves what waits to the front, or grows the buffer."""
    waiting: cython.size_t = c.output_end - c.output_start
    if c.output_end + size <= c.output_size:
        return
    if c.output_start > 0:
        memcpy_down(c.output, c.output_start, waiting)
        c.output_start, c.output_end = 0, waiting
    if waiting + size > c.output_size:
        c.output_size = (waiting + size) * 2
        c.output = cython.cast(cython.pointer[uint8_t], realloc(c.output, c.output_size))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def memcpy_down(data: cython.pointer[uint8_t], start: cython.size_t, size: cython.size_t) -> cython.void:
    i: cython.size_t
    for i in range(size):
        data[i] = data[start + i]


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
def write_hex(out: cython.pointer[uint8_t], value: uint32_t) -> cython.void:
    i: cython.int
    for i in range(8):
        out[7 - i] = DIGITS[value & 15]
        value >>= 4


def encode_frame(workload: Workload, publisher: int) -> bytes:
    """One PUBLISH of this publisher with zeros where a message's own numbers go."""
    topic = topic_of(workload, publisher)
    head = len(topic).to_bytes(2) + topic + (b"\0\0" if workload.qos else b"")
    head += b"\0" if workload.version == 5 else b""  # no properties
    stamp = bytes(16) + publisher.to_bytes(4, "little")
    body = head + stamp + b"x" * (workload.payload_bytes - STAMP_BYTES)
    return bytes([0x30 | workload.qos << 1]) + encode_varint(len(body)) + body


def topic_of(workload: Workload, publisher: int) -> bytes:
    """What this publisher publishes to; with several topics the last eight characters are patched."""
    topic = b"bench/%04d" % (publisher if workload.pairs else 0)
    return topic + b"/00000000" if workload.topics > 1 else topic


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def check_workload(workload: Workload) -> None:
    """Raise ValueError for what this generator cannot send or check."""
    if workload.payload_bytes < STAMP_BYTES or workload.payload_bytes > 32_768:
        raise ValueError(f"payload_bytes must be {STAMP_BYTES} to 32768, not {workload.payload_bytes}")
    if workload.mesh and workload.publishers != workload.subscribers:
        raise ValueError("in a mesh the publishers are the subscribers: give the same number of both")
    if workload.pairs and workload.publishers != workload.subscribers:
        raise ValueError("pairs need as many publishers as subscribers")
    if workload.topics > 1 and not workload.pairs:
        raise ValueError("several topics are for pairs: only there does a subscriber hear one publisher")
    if not 1 <= workload.window <= 32_767:
        raise ValueError("window must be 1 to 32767")
    if workload.version not in (4, 5):
        raise ValueError("version must be 4 (MQTT 3.1.1) or 5 (MQTT 5.0)")


@cython.cclass
class Generator:
    """Drives one workload against a broker on this machine: `connect()`, then `run()`, then `close()`.

    One thread at a time; the loop holds no GIL. Not for a second run: make another.
    """

    def __init__(self, workload: Workload, port: int) -> None:
        """Make the frames and tables of `workload`; the broker listens on 127.0.0.1:`port`."""
        check_workload(workload)
        self.workload = workload
        self.port = port
        self.publishers, self.subscribers = workload.publishers, workload.subscribers
        self.first_subscriber = 0 if workload.mesh else workload.publishers
        self.heard = 1 if workload.pairs else workload.publishers
        self.topics, self.topics_used = workload.topics, workload.topics_used or workload.topics
        self.window, self.qos, self.version = workload.window, workload.qos, workload.version
        self.pairs = workload.pairs
        self.messages = workload.messages
        self.payload_size = workload.payload_bytes
        self.outstanding_max = workload.outstanding_max // max(workload.publishers, 1)
        if workload.outstanding_max and not self.outstanding_max:
            self.outstanding_max = 1
        self.interval_ns = 1_000_000_000 // workload.rate_per_s if workload.rate_per_s else 0
        self._lay_out_frames()
        self._lay_out_connections()
        self.input.resize(PARTIAL_BYTES_MAX + INPUT_BYTES)
        memset(cython.address(self.latency), 0, cython.sizeof(self.latency))
        self.epoll = linux.epoll_create1(0)
        self.timer = linux.timerfd_create(linux.CLOCK_MONOTONIC, linux.TFD_NONBLOCK)

    def _lay_out_frames(self) -> None:
        workload: Workload = self.workload
        number: int
        frame: bytes = encode_frame(workload, 0)
        size: cython.size_t = len(frame)
        self.frame_size = size
        self.payload_at = size - self.payload_size
        self.packet_id_at = self.payload_at - (2 if self.version == 4 else 3)
        self.topic_at = frame.index(b"bench/")
        self.topic_size = len(topic_of(workload, 0))
        self.block_size = max(workload.block_bytes, size)
        self.frames.resize(size * self.publishers)
        for number in range(self.publishers):
            frame = encode_frame(workload, number)
            memcpy(cython.address(self.frames[number * size]), cython.cast(cython.p_const_char, frame), size)

    def _lay_out_connections(self) -> None:
        count: cython.size_t = self.first_subscriber + self.subscribers + self.workload.idle_connections
        number: cython.size_t
        c: cython.pointer[Connection]
        self.expected.resize(self.subscribers * self.heard)
        self.missing.resize(self.subscribers * self.heard)
        self.connections.resize(count)
        memset(self.connections.data(), 0, count * cython.sizeof(Connection))
        for number in range(count):
            c = cython.address(self.connections[number])
            c.fd = -1
            c.packet_id = c.acked_id = c.completed_id = 1
            if number < self.publishers:
                c.publishes = True
                c.publisher = number
                c.frame = cython.address(self.frames[number * self.frame_size])
            if self.first_subscriber <= number < self.first_subscriber + self.subscribers:
                c.subscribes = True
                c.subscriber = number - self.first_subscriber
                c.expected = cython.address(self.expected[c.subscriber * self.heard])
                c.missing = cython.address(self.missing[c.subscriber * self.heard])

    def __dealloc__(self):
        c: cython.pointer[Connection]
        number: cython.size_t
        for number in range(self.connections.size()):
            c = cython.address(self.connections[number])
            if c.fd >= 0:
                linux.close(c.fd)
            free(c.output)
            free(c.partial)
        for number in range(self.missing.size()):
            free(self.missing[number])
        linux.close(self.epoll)
        linux.close(self.timer)

    # ---------------------------------------------------------------- from Python

    def connect(self, timeout_s: float = 30.0) -> None:
        """Connect and subscribe everything; ConnectionError when refused, closed, or not done in time."""
        deadline = time.monotonic() + timeout_s
        while self.ready_count < self.connections.size():
            with cython.nogil:
                self.connect_for(SLICE_NS)
            if self.refusal:
                raise ConnectionError(f"the broker refused a connection or subscription with code {self.refusal}")
            if self.closed_count:
                raise ConnectionError("the broker closed a connection while the load was being set up")
            if time.monotonic() > deadline:
                raise ConnectionError(f"only {self.ready_count} of {self.connections.size()} connections ready")

    def run(self, idle_limit_s: float = 5.0) -> Outcome:
        """Send and receive everything; ends by itself when all has come, nothing comes any more, or a peer closes.

        `idle_limit_s` is how long nothing may arrive before what is still out counts as lost.
        """
        limit_ns: int64_t = int(idle_limit_s * 1e9)
        cpu_start_ns: int64_t = clock_ns(linux.CLOCK_THREAD_CPUTIME_ID)
        end: str = "complete"
        self.started_ns = self.progress_ns = clock_ns(linux.CLOCK_MONOTONIC)
        self.publishing = True
        self._start_publishers()
        while not self.finished():
            with cython.nogil:
                self.publish_for(SLICE_NS)
            if self.closed_count:
                end = "broker died"
                break
            if not self.finished() and self.now_ns - self.progress_ns > limit_ns:
                end = "stalled"
                break
        self.arm(0)
        self.cpu_ns = clock_ns(linux.CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns
        return self._outcome(end)

    def _start_publishers(self) -> None:
        number: cython.uint
        if self.interval_ns:
            linux.prctl(linux.PR_SET_TIMERSLACK, 1)
            self.arm(self.interval_ns)
            return
        for number in range(self.publishers):
            self.enqueue(number)

    def _outcome(self, end: str) -> Outcome:
        sent: uint64_t = 0
        number: cython.uint
        for number in range(self.publishers):
            sent += self.connections[number].sent
        fan_out: int = 1 if self.pairs else self.subscribers
        expected = sent * fan_out
        received = self.arrived - self.duplicates
        latency = None
        if self.interval_ns:
            quantiles = [percentile(cython.address(self.latency), q) / 1000 for q in (0.5, 0.99, 0.999)]
            latency = Latency(p50_us=quantiles[0], p99_us=quantiles[1], p999_us=quantiles[2])
        return Outcome(
            end=end,
            sent=sent,
            expected=expected,
            received=received,
            lost=expected - received,
            duplicates=self.duplicates,
            disordered=self.disordered,
            foreign=self.foreign,
            ack_errors=self.ack_errors,
            seconds=(self.progress_ns - self.started_ns) / 1e9,
            generator_cpu_s=self.cpu_ns / 1e9,
            latency=latency,
        )

    def close(self) -> None:
        """Send DISCONNECT and close every connection."""
        number: cython.size_t
        c: cython.pointer[Connection]
        for number in range(self.connections.size()):
            c = cython.address(self.connections[number])
            if c.stage == READY and c.output_start == c.output_end:
                linux.send(c.fd, cython.cast(cython.p_const_char, b"\xe0\x00"), 2, linux.MSG_NOSIGNAL)
            self.shut(c)

    # ---------------------------------------------------------------- the loop

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def connect_for(self, slice_ns: int64_t) -> cython.void:
        until_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC) + slice_ns
        while self.ready_count < self.connections.size() and not self.closed_count and not self.refusal:
            while self.opened < self.connections.size() and self.opened - self.ready_count < CONNECTING_MAX:
                self.open_next()
            self.turn(10)
            if self.now_ns > until_ns:
                return

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def publish_for(self, slice_ns: int64_t) -> cython.void:
        until_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC) + slice_ns
        while not self.closed_count:
            self.turn(0 if self.ready.size() else 50)
            if self.now_ns > until_ns or (not self.ready.size() and self.finished()):
                return

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def finished(self) -> cython.bint:
        number: cython.size_t
        c: cython.pointer[Connection]
        fan_out: uint64_t = 1 if self.pairs else self.subscribers
        if self.arrived - self.duplicates < self.messages * self.publishers * fan_out:
            return False
        for number in range(self.first_subscriber + self.subscribers):
            c = cython.address(self.connections[number])
            if c.in_flight or c.releasing or c.output_start < c.output_end:
                return False
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def turn(self, timeout_ms: cython.int) -> cython.void:
        """Take events, send what is due, then serve every connection that can go on, each once."""
        events = cython.declare(linux.epoll_event[256])
        i: cython.size_t
        count: cython.int = linux.epoll_wait(self.epoll, events, 256, timeout_ms)
        event: cython.int
        self.now_ns = clock_ns(linux.CLOCK_MONOTONIC)
        for event in range(count):
            self.take_event(events[event].data.u32, events[event].events)
        if self.interval_ns and self.publishing:
            self.publish_due()
        self.serving.swap(self.ready)
        for i in range(self.serving.size()):
            self.connections[self.serving[i]].queued = False
            self.serve(self.serving[i])
        self.serving.clear()
        self.release_held()

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def enqueue(self, index: uint32_t) -> cython.void:
        if not self.connections[index].queued:
            self.connections[index].queued = True
            self.ready.push_back(index)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def take_event(self, index: uint32_t, events: uint32_t) -> cython.void:
        c: cython.pointer[Connection]
        ticks: uint64_t
        if index == TIMER_INDEX:
            linux.read(self.timer, cython.address(ticks), 8)  # or it would not tick again
            return
        c = cython.address(self.connections[index])
        if events & (linux.EPOLLERR | linux.EPOLLHUP | linux.EPOLLRDHUP):
            c.hung_up = True
        if events & (linux.EPOLLIN | linux.EPOLLERR | linux.EPOLLHUP | linux.EPOLLRDHUP):
            c.readable = True
        if events & linux.EPOLLOUT:
            c.writable = True
        self.enqueue(index)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def serve(self, index: uint32_t) -> cython.void:
        """Read once, publish what the window allows, write once; queue again when more could be done at once."""
        c: cython.pointer[Connection] = cython.address(self.connections[index])
        if c.stage == CLOSED:
            return
        if c.stage == CONNECTING:
            self.append_connect(c)
        elif c.readable:
            self.receive(c)
        if self.publishing and c.publishes and not self.interval_ns:
            self.publish(c)
        self.flush(c)
        if c.stage == CLOSED:
            return
        if c.readable:
            self.enqueue(index)
        elif self.publishing and c.publishes and not self.interval_ns and c.writable and c.sent < self.messages:
            if self.qos and c.in_flight >= self.window:
                return  # an acknowledgement will wake it
            if self.allowance(c) > 0:
                self.enqueue(index)
            elif not c.held:
                c.held = True
                self.held.push_back(index)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def release_held(self) -> cython.void:
        """Let publishers go on once half of what they had outstanding is received, so that blocks stay large."""
        i: cython.size_t = 0
        index: uint32_t
        while i < self.held.size():
            index = self.held[i]
            if self.allowance(cython.address(self.connections[index])) * 2 >= self.outstanding_max:
                self.connections[index].held = False
                self.enqueue(index)
                self.held[i] = self.held.back()
                self.held.pop_back()
            else:
                i += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def shut(self, c: cython.pointer[Connection]) -> cython.void:
        if c.fd >= 0:
            linux.close(c.fd)
            c.fd = -1
            c.stage = CLOSED
            self.closed_count += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def flush(self, c: cython.pointer[Connection]) -> cython.void:
        """One send of all output; what does not fit waits for the socket's next event."""
        size: cython.Py_ssize_t
        if not c.writable or c.output_start == c.output_end:
            return
        size = linux.send(c.fd, c.output + c.output_start, c.output_end - c.output_start, linux.MSG_NOSIGNAL)
        if size < 0:
            c.writable = False
            if linux.errno != linux.EAGAIN:
                self.shut(c)
            return
        c.output_start += size
        if c.output_start < c.output_end:
            c.writable = False
        else:
            c.output_start = c.output_end = 0

    # ---------------------------------------------------------------- connecting

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def open_next(self) -> cython.void:
        index: uint32_t = self.opened
        c: cython.pointer[Connection] = cython.address(self.connections[index])
        address = cython.declare(linux.sockaddr_in)
        event = cython.declare(linux.epoll_event)
        on: cython.int = 1
        memset(cython.address(address), 0, cython.sizeof(address))
        address.sin_family = linux.AF_INET
        address.sin_port = linux.htons(self.port)
        address.sin_addr.s_addr = linux.htonl(linux.INADDR_LOOPBACK)
        self.opened += 1
        c.fd = linux.socket(linux.AF_INET, linux.SOCK_STREAM | linux.SOCK_NONBLOCK, 0)
        if c.fd < 0:
            self.closed_count += 1
            return
        linux.setsockopt(c.fd, linux.IPPROTO_TCP, linux.TCP_NODELAY, cython.address(on), cython.sizeof(on))
        linux.connect(
            c.fd,
            cython.cast(cython.pointer[cython.const[linux.sockaddr]], cython.address(address)),
            cython.sizeof(address),
        )
        c.stage = CONNECTING
        event.events = linux.EPOLLIN | linux.EPOLLOUT | linux.EPOLLRDHUP | linux.EPOLLET
        event.data.u32 = index
        linux.epoll_ctl(self.epoll, linux.EPOLL_CTL_ADD, c.fd, cython.address(event))

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def append_connect(self, c: cython.pointer[Connection]) -> cython.void:
        """Once TCP is up: CONNECT with a clean session, no keep alive, and a client id from the index."""
        fault: cython.int = 0
        size: linux.socklen_t = cython.sizeof(fault)
        client_id = cython.declare(cython.char[16])
        index: uint32_t = c - self.connections.data()
        at: cython.pointer[uint8_t]
        linux.getsockopt(c.fd, linux.SOL_SOCKET, linux.SO_ERROR, cython.address(fault), cython.address(size))
        if fault or c.hung_up:
            self.shut(c)
            return
        if not c.writable:
            return
        reserve(c, 64)
        at = c.output + c.output_end
        snprintf(client_id, 16, b"bench-%08x", index)
        at[0] = 0x10
        at[1] = 26 if self.version == 4 else 27
        memcpy(at + 2, cython.cast(cython.p_const_char, b"\x00\x04MQTT"), 6)
        at[8] = self.version
        at[9] = 0x02
        at[10] = at[11] = 0  # keep alive
        at += 12
        if self.version == 5:
            at[0] = 0  # no properties
            at += 1
        at[0] = 0
        at[1] = 14
        memcpy(at + 2, client_id, 14)
        c.output_end += 28 if self.version == 4 else 29
        c.stage = GREETING

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def append_subscribe(self, c: cython.pointer[Connection]) -> cython.void:
        """The next SUBSCRIBE of this connection; READY when it has none left."""
        count: uint32_t = 0
        topic: cython.pointer[cython.const[uint8_t]]
        at: cython.pointer[uint8_t]
        size: uint32_t
        i: uint32_t
        if c.subscribes:
            count = min(self.topics - c.filters_sent, FILTERS_PER_SUBSCRIBE)
        if count == 0:
            c.stage = READY
            self.ready_count += 1
            return
        c.stage = SUBSCRIBING
        reserve(c, PACKET_BYTES_OTHER_MAX)
        at = c.output + c.output_end
        # a subscriber of a pair hears its own publisher, any other hears them all on the one topic
        topic = cython.address(self.frames[(c.subscriber if self.pairs else 0) * self.frame_size + self.topic_at])
        size = (2 if self.version == 4 else 3) + count * (3 + self.topic_size)
        at[0] = 0x82
        if size > 127:
            at[1] = size & 127 | 128
            at[2] = size >> 7
            at += 3
        else:
            at[1] = size
            at += 2
        at[0] = 0
        at[1] = 1  # one SUBSCRIBE at a time: its packet identifier is always 1
        at += 2
        if self.version == 5:
            at[0] = 0
            at += 1
        for i in range(count):
            at[0] = 0
            at[1] = self.topic_size
            memcpy(at + 2, topic, self.topic_size)
            if self.topics > 1:
                write_hex(at + 2 + self.topic_size - 8, c.filters_sent + i)
            at[2 + self.topic_size] = self.qos
            at += 3 + self.topic_size
        c.filters_sent += count
        c.output_end = at - c.output

    # ---------------------------------------------------------------- receiving

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def receive(self, c: cython.pointer[Connection]) -> cython.void:
        """One read and all whole packets in it; the beginning of a further one is kept for the next read."""
        data: cython.pointer[uint8_t] = self.input.data()
        used: cython.size_t
        size: cython.size_t
        got: cython.Py_ssize_t
        before: uint64_t = self.arrived
        if c.partial_size:
            memcpy(data, c.partial, c.partial_size)
        got = linux.recv(c.fd, data + c.partial_size, INPUT_BYTES, 0)
        if got <= 0:
            c.readable = False
            if got == 0 or linux.errno != linux.EAGAIN:
                self.shut(c)
            return
        if cython.cast(cython.size_t, got) < INPUT_BYTES and not c.hung_up:
            c.readable = False
        self.now_ns = clock_ns(linux.CLOCK_MONOTONIC)
        size = c.partial_size + got
        used = self.parse(c, data, size)
        c.partial_size = size - used
        if c.partial_size > PARTIAL_BYTES_MAX:
            self.shut(c)
        elif c.partial_size:
            if c.partial == cython.NULL:
                c.partial = cython.cast(cython.pointer[uint8_t], malloc(PARTIAL_BYTES_MAX))
            memcpy(c.partial, data + used, c.partial_size)
        if self.arrived != before or self.publishing:
            self.progress_ns = self.now_ns

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def parse(
        self, c: cython.pointer[Connection], data: cython.pointer[cython.const[uint8_t]], size: cython.size_t
    ) -> cython.size_t:
        """Take every whole packet off `data`; returns the bytes they had."""
        at: cython.size_t = 0
        head: cython.size_t
        body: cython.size_t
        while size - at >= 2:
            body = data[at + 1]
            head = 2
            if body > 127:
                body &= 127
                while True:
                    if size - at <= head:
                        return at
                    body |= cython.cast(cython.size_t, data[at + head] & 127) << (7 * (head - 1))
                    head += 1
                    if data[at + head - 1] < 128 or head > 4:
                        break
            if size - at < head + body:
                return at
            if data[at] >> 4 == 3:
                self.take_publish(c, data[at], data + at + head, body)
            else:
                self.take_packet(c, data[at], data + at + head, body)
            at += head + body
        return at

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def take_publish(
        self,
        c: cython.pointer[Connection],
        first: uint8_t,
        body: cython.pointer[cython.const[uint8_t]],
        size: cython.size_t,
    ) -> cython.void:
        """Count one message, check its sequence number, acknowledge it."""
        at: cython.size_t = 2 + (body[0] << 8 | body[1])
        qos: cython.int = (first >> 1) & 3
        slot: uint32_t
        sequence: uint64_t
        if qos:
            append_ack(c, 0x40 if qos == 1 else 0x50, body[at] << 8 | body[at + 1])
            c.releasing += qos == 2
            at += 2
        if self.version == 5:
            at += 1 + body[at]  # a broker adds no long properties to messages that had none
        slot = cython.cast(cython.pointer[cython.const[uint32_t]], body + at + 16)[0]
        if self.pairs:
            slot -= c.subscriber
        if at + self.payload_size != size or slot >= self.heard or not c.subscribes or qos != self.qos:
            self.foreign += 1
            return
        self.arrived += 1
        sequence = cython.cast(cython.pointer[cython.const[uint64_t]], body + at)[0]
        if sequence == c.expected[slot]:
            c.expected[slot] += 1
        else:
            self.take_unexpected(c, slot, sequence)
        if self.interval_ns:
            record(
                cython.address(self.latency),
                self.now_ns - cython.cast(cython.pointer[cython.const[int64_t]], body + at + 8)[0],
            )

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def take_unexpected(
        self, c: cython.pointer[Connection], slot: uint32_t, sequence: uint64_t
    ) -> cython.void:
        """A number out of turn: mark what it skipped, or tell a late message from a repeated one."""
        skipped: uint64_t
        bit: uint8_t = 1 << (sequence & 7)
        if sequence >= self.messages:
            self.foreign += 1
            self.arrived -= 1
            return
        if c.missing[slot] == cython.NULL:
            c.missing[slot] = cython.cast(cython.pointer[uint8_t], calloc(self.messages // 8 + 1, 1))
        if sequence > c.expected[slot]:
            for skipped in range(c.expected[slot], sequence):
                c.missing[slot][skipped >> 3] |= 1 << (skipped & 7)
            c.expected[slot] = sequence + 1
        elif c.missing[slot][sequence >> 3] & bit:
            c.missing[slot][sequence >> 3] ^= bit
            self.disordered += 1
        else:
            self.duplicates += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def take_packet(
        self,
        c: cython.pointer[Connection],
        first: uint8_t,
        body: cython.pointer[cython.const[uint8_t]],
        size: cython.size_t,
    ) -> cython.void:
        """Anything but a PUBLISH."""
        kind: uint8_t = first >> 4
        i: cython.size_t
        if kind == 2:  # CONNACK
            if size < 2 or body[1] or c.stage != GREETING:
                self.refusal = body[1] or 0xFF
                return
            self.append_subscribe(c)
        elif kind == 9:  # SUBACK
            for i in range(2 if self.version == 4 else 3 + body[2], size):
                if body[i] != self.qos:
                    self.refusal = body[i] or 0xFF
            self.append_subscribe(c)
        elif 4 <= kind <= 7 and size >= 2:
            self.take_ack(c, kind, body[0] << 8 | body[1])
        elif kind == 14:  # a 5.0 broker says goodbye
            c.hung_up = True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def take_ack(self, c: cython.pointer[Connection], packet_type: uint8_t, packet_id: uint16_t) -> cython.void:
        """PUBACK and PUBCOMP free a place in the window, PUBREC and PUBREL are answered."""
        if packet_type == 6:  # PUBREL, of what we received
            append_ack(c, 0x70, packet_id)
            if c.releasing:
                c.releasing -= 1
            else:
                self.ack_errors += 1
            return
        if packet_type == 7:
            self.ack_errors += packet_id != c.completed_id
            c.completed_id = following_id(packet_id)
        else:
            self.ack_errors += packet_id != c.acked_id or (packet_type == 4) != (self.qos == 1)
            c.acked_id = following_id(packet_id)
        if packet_type == 5:
            append_ack(c, 0x62, packet_id)
        elif c.in_flight:
            c.in_flight -= 1

    # ---------------------------------------------------------------- publishing

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def allowance(self, c: cython.pointer[Connection]) -> uint64_t:
        """How many messages this publisher may send before its slowest subscriber has too many to come."""
        slowest: uint64_t = c.sent
        number: uint32_t
        if self.outstanding_max == 0:
            return self.messages
        if self.pairs:
            slowest = self.expected[c.publisher]
        else:
            for number in range(self.subscribers):
                slowest = min(slowest, self.expected[number * self.heard + c.publisher])
        return self.outstanding_max - min(c.sent - slowest, self.outstanding_max)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def publish(self, c: cython.pointer[Connection]) -> cython.void:
        """Fill the output with as many messages as block, window and allowance leave room for."""
        count: uint64_t
        if c.output_end >= self.block_size or not c.writable:
            return
        count = min((self.block_size - c.output_end) // self.frame_size, self.messages - c.sent)
        if self.qos:
            count = min(count, self.window - c.in_flight)
        if count:
            count = min(count, self.allowance(c))
        self.append_messages(c, count)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def append_messages(self, c: cython.pointer[Connection], count: uint64_t) -> cython.void:
        """Copy the frame `count` times and write into each what is its own."""
        at: cython.pointer[uint8_t]
        end: cython.pointer[uint8_t]
        size: cython.size_t = self.frame_size
        if count == 0:
            return
        reserve(c, count * size)
        at = c.output + c.output_end
        end = at + count * size
        c.output_end += count * size
        if self.qos:
            c.in_flight += count
        while at < end:
            memcpy(at, c.frame, size)
            cython.cast(cython.pointer[uint64_t], at + self.payload_at)[0] = c.sent
            cython.cast(cython.pointer[int64_t], at + self.payload_at + 8)[0] = self.now_ns
            if self.qos:
                at[self.packet_id_at] = c.packet_id >> 8
                at[self.packet_id_at + 1] = c.packet_id & 0xFF
                c.packet_id = following_id(c.packet_id)
            if self.topics > 1:
                write_hex(
                    at + self.topic_at + self.topic_size - 8, c.sent * TOPIC_STRIDE % self.topics_used
                )
            c.sent += 1
            at += size

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def publish_due(self) -> cython.void:
        """Paced: encode every message whose time has come, stamped with that time, whether or not its socket can
        take it, so that a broker that stalls is charged for the wait."""
        index: uint32_t
        now_ns: int64_t = self.now_ns
        while self.due < self.messages * self.publishers:
            self.now_ns = self.started_ns + cython.cast(int64_t, (self.due + 1) * self.interval_ns)
            if self.now_ns > now_ns:
                break
            index = self.due % self.publishers
            self.append_messages(cython.address(self.connections[index]), 1)
            self.enqueue(index)
            self.due += 1
        self.now_ns = now_ns

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def arm(self, interval_ns: uint64_t) -> cython.bint:
        """The periodic timer of paced runs; 0 stops it."""
        event = cython.declare(linux.epoll_event)
        at = cython.declare(linux.itimerspec)
        at.it_interval.tv_sec = at.it_value.tv_sec = interval_ns // 1_000_000_000
        at.it_interval.tv_nsec = at.it_value.tv_nsec = interval_ns % 1_000_000_000
        event.events = linux.EPOLLIN | linux.EPOLLET
        event.data.u32 = TIMER_INDEX
        linux.epoll_ctl(self.epoll, linux.EPOLL_CTL_ADD, self.timer, cython.address(event))
        return linux.timerfd_settime(self.timer, 0, cython.address(at), cython.NULL) == 0
