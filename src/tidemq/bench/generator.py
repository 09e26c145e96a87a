"""The load generator: one thread, one epoll loop, every connection of a workload, no GIL on a message's
way.

It must cost far less than any broker that it measures. So publishers send blocks of frames that are
encoded once, copied and patched (sequence number, time, packet identifier), received bytes are parsed
where they lie, sockets are registered once, edge-triggered, and all acknowledgements of one read leave
in one send.

Written apart from `tidemq.wire` on purpose: a fault there must not be shared by what measures it.
"""

import time

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.tidemq.bench import linux
from cython.cimports.tidemq.bench.connection import (
    ACCEPTED,
    CLOSED,
    CONNECTING,
    GREETING,
    READY,
    SUBSCRIBING,
    Connection,
    append_bytes,
    following_id,
    is_connected,
    open_socket,
    reserve,
    send_output,
)
from cython.cimports.tidemq.bench.histogram import Histogram, percentile
from cython.cimports.tidemq.bench.payloads import fill_random, write_hex
from cython.cimports.tidemq.bench.receiver import parse

from tidemq.bench.frames import check_workload, encode_connect, encode_publish, encode_subscribes, topic_of
from tidemq.bench.workload import End, Latency, Outcome, Workload

if not cython.compiled:
    raise ImportError("tidemq.bench.generator is compiled code: run `make build`")

INPUT_BYTES = cython.declare(cython.size_t, 1 << 18)  # one read
PARTIAL_BYTES_MAX = cython.declare(cython.size_t, 1 << 16)  # a longer packet than any that we ask for
CONNECTING_MAX = cython.declare(cython.uint, 64)  # connections between SYN and CONNACK, below any backlog
TIMER_INDEX = cython.declare(uint32_t, 0xFFFFFFFF)  # the timer's entry in epoll events
SLICE_NS = cython.declare(int64_t, 200_000_000)  # the loop comes back to Python so often, for signals
LINGER_NS = cython.declare(int64_t, 20_000_000)  # after the last message, for what comes twice
TOPIC_STRIDE = cython.declare(uint64_t, 2_654_435_761)  # a prime: visits every topic, neighbours far apart


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def clock_ns(clock: cython.int) -> int64_t:
    at = cython.declare(linux.timespec)
    linux.clock_gettime(clock, cython.address(at))
    return at.tv_sec * 1_000_000_000 + at.tv_nsec


@cython.cfunc
def quantiles(histogram: cython.pointer[cython.const[Histogram]]) -> object:
    p50, p99, p999 = (percentile(histogram, share) / 1000 for share in (0.5, 0.99, 0.999))
    return Latency(p50_us=p50, p99_us=p99, p999_us=p999)


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
        self.topics, self.topics_used = workload.topics, workload.topics_used or workload.topics
        self.window = workload.window
        self.outstanding_max = -(-workload.outstanding_max // max(workload.publishers, 1))
        if workload.part == "enqueue":
            self.outstanding_max = 0
        self.random, self.noise = workload.random, 0x9E3779B97F4A7C15  # any seed but 0
        self.draining, self.deliveries = workload.part == "drain", workload.deliveries
        self.interval_ns = 1_000_000_000 // workload.rate_per_s if workload.rate_per_s else 0
        self.polls = workload.poll
        memset(cython.address(self.tally), 0, cython.sizeof(self.tally))
        self.load.version, self.load.qos = workload.version, workload.qos
        self.load.pairs, self.load.paced = workload.pairs, workload.rate_per_s > 0
        self.load.acks_timed = workload.window == 1 and workload.qos > 0 and not workload.rate_per_s
        self.load.heard = 1 if workload.pairs else workload.publishers
        self.load.messages, self.load.payload_size = workload.messages, workload.payload_bytes
        self._lay_out_frames()
        self._lay_out_connections()
        self._lay_out_requests()
        self.input.resize(PARTIAL_BYTES_MAX + INPUT_BYTES)
        self._open_timer()

    def _lay_out_frames(self) -> None:
        workload: Workload = self.workload
        number: int
        frame: bytes = encode_publish(workload, 0)
        size: cython.size_t = len(frame)
        self.frame_size = size
        self.payload_at = size - self.load.payload_size
        self.packet_id_at = self.payload_at - (2 if self.load.version == 4 else 3)
        self.topic_digits_at = frame.index(b"bench/") + len(topic_of(workload, 0)) - 8
        self.block_size = max(workload.block_bytes, size)
        self.frames.resize(size * self.publishers)
        for number in range(self.publishers):
            frame = encode_publish(workload, number)
            memcpy(cython.address(self.frames[number * size]), cython.cast(cython.p_const_char, frame), size)

    def _lay_out_connections(self) -> None:
        count: cython.size_t = self.first_subscriber + self.subscribers + self.workload.idle_connections
        number: cython.size_t
        c: cython.pointer[Connection]
        self.expected.resize(self.subscribers * self.load.heard)
        self.missing.resize(self.subscribers * self.load.heard)
        self.connections.resize(count)
        memset(self.connections.data(), 0, count * cython.sizeof(Connection))
        self.open_end = self.publishers if self.workload.part == "enqueue" else count
        self.open_start = self.opened = self.first_subscriber if self.draining else 0
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
                c.expected = cython.address(self.expected[c.subscriber * self.load.heard])
                c.missing = cython.address(self.missing[c.subscriber * self.load.heard])

    def _lay_out_requests(self) -> None:
        """CONNECT waits in each connection's output, its SUBSCRIBEs in `requests` until CONNACK has come."""
        number: cython.size_t
        packet: bytes
        packets: list[bytes]
        c: cython.pointer[Connection]
        for number in range(self.connections.size()):
            c = cython.address(self.connections[number])
            packet = encode_connect(self.workload, number)
            append_bytes(
                c, cython.cast(cython.p_const_uchar, cython.cast(cython.p_const_char, packet)), len(packet)
            )
            c.answers_due = 1
            if c.subscribes and self.workload.part == "whole":
                packets = encode_subscribes(self.workload, c.subscriber)
                packet = b"".join(packets)
                c.answers_due += len(packets)
                c.requests_size = len(packet)
                c.requests = cython.cast(cython.pointer[uint8_t], malloc(c.requests_size))
                memcpy(c.requests, cython.cast(cython.p_const_char, packet), c.requests_size)

    def _open_timer(self) -> None:
        event = cython.declare(linux.epoll_event)
        self.epoll = linux.epoll_create1(0)
        self.timer = linux.timerfd_create(linux.CLOCK_MONOTONIC, linux.TFD_NONBLOCK)
        event.events = linux.EPOLLIN | linux.EPOLLET
        event.data.u32 = TIMER_INDEX
        linux.epoll_ctl(self.epoll, linux.EPOLL_CTL_ADD, self.timer, cython.address(event))

    def __dealloc__(self):
        c: cython.pointer[Connection]
        number: cython.size_t
        for number in range(self.connections.size()):
            c = cython.address(self.connections[number])
            if c.fd >= 0:
                linux.close(c.fd)
            free(c.output)
            free(c.partial)
            free(c.requests)
        for number in range(self.missing.size()):
            free(self.missing[number])
        linux.close(self.epoll)
        linux.close(self.timer)

    # ---------------------------------------------------------------- from Python

    def connect(self, timeout_s: float = 30.0) -> None:
        """Connect and subscribe everything; ConnectionError when refused, closed, or not done in time."""
        deadline = time.monotonic() + timeout_s
        self.started_ns = clock_ns(linux.CLOCK_MONOTONIC)
        while self.ready_count < self.open_end - self.open_start:
            with cython.nogil:
                self.connect_for(SLICE_NS)
            if self.tally.refusal:
                raise ConnectionError(
                    f"the broker refused CONNECT or SUBSCRIBE with code {self.tally.refusal}"
                )
            if self.closed_count:
                raise ConnectionError("the broker closed a connection while the load was being set up")
            if time.monotonic() > deadline:
                raise ConnectionError(
                    f"{self.ready_count} of {self.open_end - self.open_start} connections are ready"
                )

    def run(self, idle_limit_s: float = 5.0) -> Outcome:
        """Send and receive everything, until all has come, nothing comes any more, or a connection closes.

        `idle_limit_s` is how long nothing may arrive before what is still out counts as lost.
        """
        limit_ns: int64_t = int(idle_limit_s * 1e9)
        cpu_start_ns: int64_t = clock_ns(linux.CLOCK_THREAD_CPUTIME_ID)
        end: End = "complete"
        if self.draining:  # what waits comes from CONNACK on
            self.tally.now_ns = clock_ns(linux.CLOCK_MONOTONIC)
        else:
            self.started_ns = self.progress_ns = clock_ns(linux.CLOCK_MONOTONIC)
        self.publishing = not self.draining
        self._start_publishers()
        while not self.finished():
            with cython.nogil:
                self.publish_for(SLICE_NS)
            if self.closed_count:
                end = "disconnected"
                break
            if not self.finished() and self.tally.now_ns - self.progress_ns > limit_ns:
                end = "stalled"
                break
        self._arm(0)
        self.cpu_ns = clock_ns(linux.CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns
        seconds: float = (self.progress_ns - self.started_ns) / 1e9
        with cython.nogil:
            self.linger_for(LINGER_NS)
        return self._outcome(end, seconds)

    def _start_publishers(self) -> None:
        number: cython.uint
        if self.interval_ns:
            linux.prctl(linux.PR_SET_TIMERSLACK, 1)
            self._arm(self.interval_ns)
            return
        for number in range(self.publishers):
            self.enqueue(number)

    def _arm(self, interval_ns: int) -> None:
        """Let the timer tick every `interval_ns`; 0 stops it."""
        at = cython.declare(linux.itimerspec)
        at.it_interval.tv_sec = at.it_value.tv_sec = interval_ns // 1_000_000_000
        at.it_interval.tv_nsec = at.it_value.tv_nsec = interval_ns % 1_000_000_000
        linux.timerfd_settime(self.timer, 0, cython.address(at), cython.NULL)

    def _outcome(self, end: End, seconds: float) -> Outcome:
        sent: uint64_t = 0
        number: cython.uint
        for number in range(self.publishers):
            sent += self.connections[number].sent
        expected = self.deliveries
        if self.workload.part == "whole":
            expected = sent * (1 if self.load.pairs else self.subscribers)
        received = self.tally.arrived - self.tally.duplicates
        return Outcome(
            end=end,
            sent=sent,
            expected=expected,
            received=received,
            lost=expected - received,
            duplicates=self.tally.duplicates,
            disordered=self.tally.disordered,
            foreign=self.tally.foreign,
            ack_errors=self.tally.ack_errors,
            seconds=seconds,
            generator_cpu_s=self.cpu_ns / 1e9,
            latency=quantiles(cython.address(self.tally.latency)) if self.load.paced else None,
            ack_latency=quantiles(cython.address(self.tally.ack_latency)) if self.load.acks_timed else None,
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
        taking_part: uint32_t = self.open_end - self.open_start
        while self.ready_count < taking_part and not self.closed_count and not self.tally.refusal:
            while (
                self.opened < self.open_end
                and self.opened - self.open_start - self.ready_count < CONNECTING_MAX
            ):
                if not open_socket(
                    cython.address(self.connections[self.opened]), self.epoll, self.opened, self.port
                ):
                    self.closed_count += 1
                self.opened += 1
            self.turn(10)
            if self.tally.now_ns > until_ns:
                return

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def publish_for(self, slice_ns: int64_t) -> cython.void:
        until_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC) + slice_ns
        while not self.closed_count:
            self.turn(0 if self.ready.size() or self.polls else 50)
            if self.tally.now_ns > until_ns or (not self.ready.size() and self.finished()):
                return

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def linger_for(self, limit_ns: int64_t) -> cython.void:
        until_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC) + limit_ns
        self.turn(0)
        while self.tally.now_ns < until_ns:
            self.turn(5)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def finished(self) -> cython.bint:
        number: cython.size_t
        c: cython.pointer[Connection]
        if self.tally.arrived - self.tally.duplicates < self.deliveries:
            return False
        for number in range(self.open_start, self.open_end):
            c = cython.address(self.connections[number])
            if c.publishes and c.sent < self.load.messages:
                return False
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
        self.tally.now_ns = clock_ns(linux.CLOCK_MONOTONIC)
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
        ticks: uint64_t = 0
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
        """Read once, publish what the window allows, write once; queue again what could go on at once."""
        c: cython.pointer[Connection] = cython.address(self.connections[index])
        if c.stage == CLOSED:
            return
        if c.readable:
            self.receive(c)
        if c.stage < READY:
            self.go_on(c)
        if self.may_publish(c):
            self.publish(c)
        if not send_output(c):
            self.shut(c)
        if c.readable:
            self.enqueue(index)
        elif self.may_publish(c):
            if self.allowance(c) > 0:
                self.enqueue(index)
            elif not c.held:
                c.held = True
                self.held.push_back(index)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def may_publish(self, c: cython.pointer[Connection]) -> cython.bint:
        """Has more to publish now, by its own socket and window; what is paced goes by the clock."""
        return (
            self.publishing
            and c.publishes
            and c.writable
            and c.sent < self.load.messages
            and self.interval_ns == 0
            and (self.load.qos == 0 or c.in_flight < self.window)
        )

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def release_held(self) -> cython.void:
        """Let publishers go on once half of what they had outstanding has come, so that blocks stay large."""
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
    def go_on(self, c: cython.pointer[Connection]) -> cython.void:
        """The next step towards READY: TCP is up, or all that was asked is answered."""
        if c.stage == CONNECTING and c.writable:
            c.stage = GREETING
            if not is_connected(c):
                self.shut(c)
        elif c.stage == ACCEPTED:
            append_bytes(c, c.requests, c.requests_size)
            c.stage = SUBSCRIBING
        if c.stage == SUBSCRIBING and c.answers_due == 0:
            c.stage = READY
            self.ready_count += 1

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
        self.tally.now_ns = clock_ns(linux.CLOCK_MONOTONIC)
        size = c.partial_size + got
        used = parse(cython.address(self.load), cython.address(self.tally), c, data, size)
        c.partial_size = size - used
        if c.partial_size > PARTIAL_BYTES_MAX:
            self.shut(c)
        elif c.partial_size:
            if c.partial == cython.NULL:
                c.partial = cython.cast(cython.pointer[uint8_t], malloc(PARTIAL_BYTES_MAX))
            memcpy(c.partial, data + used, c.partial_size)
        self.progress_ns = self.tally.now_ns

    # ---------------------------------------------------------------- publishing

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def allowance(self, c: cython.pointer[Connection]) -> uint64_t:
        """How many messages this publisher may send before its slowest subscriber has too many to come."""
        slowest: uint64_t = c.sent
        number: uint32_t
        if self.outstanding_max == 0:
            return self.load.messages
        if self.load.pairs:
            slowest = self.expected[c.publisher]
        else:
            for number in range(self.subscribers):
                slowest = min(slowest, self.expected[number * self.load.heard + c.publisher])
        return self.outstanding_max - min(c.sent - slowest, self.outstanding_max)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def publish(self, c: cython.pointer[Connection]) -> cython.void:
        """Fill the output with as many messages as block, window and allowance leave room for."""
        count: uint64_t
        if c.output_end >= self.block_size:
            return
        count = min((self.block_size - c.output_end) // self.frame_size, self.load.messages - c.sent)
        if self.load.qos:
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
        c.asked_ns = self.tally.now_ns
        if self.load.qos:
            c.in_flight += count
        while at < end:
            memcpy(at, c.frame, size)
            cython.cast(cython.pointer[uint32_t], at + self.payload_at)[0] = c.sent
            cython.cast(cython.pointer[int64_t], at + self.payload_at + 8)[0] = self.tally.now_ns
            if self.random:
                fill_random(
                    cython.address(self.noise), at + self.payload_at + 16, self.load.payload_size - 16
                )
            if self.load.qos:
                at[self.packet_id_at] = c.packet_id >> 8
                at[self.packet_id_at + 1] = c.packet_id & 0xFF
                c.packet_id = following_id(c.packet_id)
            if self.topics > 1:
                write_hex(at + self.topic_digits_at, c.sent * TOPIC_STRIDE % self.topics_used)
            c.sent += 1
            at += size

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def publish_due(self) -> cython.void:
        """Paced: encode every message whose time has come, stamped with that time.

        It need not go out at once: a broker that stalls is charged for the wait.
        """
        index: uint32_t
        now_ns: int64_t = self.tally.now_ns
        while self.due < self.load.messages * self.publishers:
            self.tally.now_ns = self.started_ns + cython.cast(int64_t, (self.due + 1) * self.interval_ns)
            if self.tally.now_ns > now_ns:
                break
            index = self.due % self.publishers
            self.append_messages(cython.address(self.connections[index]), 1)
            self.enqueue(index)
            self.due += 1
        self.tally.now_ns = now_ns
