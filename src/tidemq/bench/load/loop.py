"""The load generator's event loop: one thread, one epoll, all connections of its share, no GIL.

Sockets are registered once, edge-triggered; a turn takes events and then serves every connection that can
go on, each once: read, publish, write. All acknowledgements of one read leave in one send.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcpy
from cython.cimports.tidemq.bench import linux
from cython.cimports.tidemq.bench.load.board import (
    all_published,
    confirmed_by_all,
    load_int,
    sent_by_all,
    store_int,
    store_u64,
)
from cython.cimports.tidemq.bench.load.client_socket import (
    ACCEPTED,
    CLOSED,
    CONNECTING,
    GREETING,
    READY,
    SUBSCRIBING,
    Address,
    Connection,
    append_bytes,
    open_socket,
    receive_wrapped,
    send_output,
    socket_fault,
    unsent,
)
from cython.cimports.tidemq.bench.load.loop import INPUT_BYTES, SENDS_MAX, WORD_MS
from cython.cimports.tidemq.bench.load.publisher import append_messages, due_messages
from cython.cimports.tidemq.bench.load.receiver import parse
from cython.cimports.tidemq.net.transport import begin, free_transport

if not cython.compiled:
    raise ImportError("tidemq.bench.load.loop is compiled code: run `make build`")

TIMER_INDEX = cython.declare(uint32_t, 0xFFFFFFFF)  # the timer's entry in epoll events
BOUNDLESS = cython.declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


def clock_ns(clock):
    at = cython.declare(linux.timespec)
    linux.clock_gettime(clock, cython.address(at))
    return at.tv_sec * 1_000_000_000 + at.tv_nsec


@cython.cclass
class Loop:
    """Holds connections as `Generator` laid them out, and moves them. One thread at a time."""

    def __cinit__(self):
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
            free_transport(c.transport)
        for number in range(self.gaps.size()):
            free(self.gaps[number].bits)
        linux.close(self.epoll)
        linux.close(self.timer)

    # ---------------------------------------------------------------- phases

    def connect_for(self, slice_ns):
        until_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC) + slice_ns
        while self.ready_count < self.open_end - self.open_start:
            self.open_next()
            self.turn(10 if self.connects_per_ns == 0 else 1)
            self.keep_alive()
            if self.fault or self.closed_count or self.tally.refusal or self.tally.now_ns > until_ns:
                return

    def open_next(self):
        """Open as many connections as the rate and the broker's backlog allow."""
        c: cython.pointer[Connection]
        source: cython.pointer[Address]
        fault: cython.int
        end: uint32_t = min(self.open_end, self.open_start + self.ready_count + self.connecting_max)
        if self.connects_per_ns > 0:
            end = min(
                end,
                self.open_start
                + cython.cast(
                    uint32_t,
                    self.connects_per_ns * (clock_ns(linux.CLOCK_MONOTONIC) - self.connect_started_ns) + 1,
                ),
            )
        while self.opened < end and not self.fault:
            c = cython.address(self.connections[self.opened])
            c.asked_ns = clock_ns(linux.CLOCK_MONOTONIC)
            source = cython.NULL
            if self.sources.size():
                source = cython.address(self.sources[self.opened % self.sources.size()])
            fault = open_socket(c, self.epoll, self.opened, cython.address(self.address), source)
            if fault == linux.EAGAIN:  # a Unix socket's backlog is full: later
                return
            self.fault = fault
            self.opened += 1

    def publish_for(self, slice_ns):
        """Until the slice is over, a connection closed, or everything is sent and settled."""
        until_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC) + slice_ns
        if self.stop_ns and self.publishes:
            until_ns = min(until_ns, self.stop_ns)
        self.keep_alive()
        while not self.closed_count and load_int(cython.address(self.common.ended)) < 0:
            self.turn(self.pause_ms())
            if self.stop_ns and self.tally.now_ns >= self.stop_ns:
                self.publishes = False
            if self.tally.now_ns > until_ns or (not self.ready.size() and self.over()):
                return

    def tend_for(self, slice_ns):
        """Nothing but what keeps the connections, before the run."""
        until_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC) + slice_ns
        self.turn(0)
        while self.tally.now_ns < until_ns:
            self.keep_alive()
            self.turn(10)

    def pause_ms(self):
        """How long a turn may wait for an event. What arrives at other generators is none."""
        if self.ready.size() or self.polls:
            return 0
        return WORD_MS if self.held.size() and not self.alone else 10

    def linger_for(self, limit_ns):
        until_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC) + limit_ns
        self.turn(0)
        while self.tally.now_ns < until_ns:
            self.turn(5)

    def keep_alive(self):
        """A PINGREQ of everybody, twice in the keep alive that the broker demands; clients ask for none."""
        number: cython.size_t
        now_ns: int64_t
        if self.tally.keep_alive_s == 0:
            return
        now_ns = clock_ns(linux.CLOCK_MONOTONIC)  # the last turn may be long ago
        if now_ns - self.pinged_ns < self.tally.keep_alive_s * cython.cast(int64_t, 500_000_000):
            return
        self.pinged_ns = now_ns
        for number in range(self.connections.size()):
            if self.connections[number].stage == READY:
                append_bytes(
                    cython.address(self.connections[number]),
                    cython.cast(cython.p_const_uchar, cython.cast(cython.p_const_char, b"\xc0\x00")),
                    2,
                )
                self.enqueue(number)

    def deliveries(self):
        """What the subscribers here must receive, by what was sent so far."""
        if self.fixed:
            return self.deliveries_fixed
        if self.single:
            return self.publishing.sent
        return sent_by_all(self.common) * self.subscribers

    def all_sent(self):
        return not self.publishes or (self.originators > 0 and self.publishing.sent >= self.of_all)

    def over(self):
        """Nobody sends any more, and all is settled here."""
        if not self.all_sent():
            return False
        store_int(cython.address(self.table.published), 1)
        return all_published(self.common) and self.settled()

    def settled(self):
        """All that was sent has been received and acknowledged, here."""
        number: cython.size_t
        c: cython.pointer[Connection]
        if self.tally.arrived - self.tally.duplicates < self.deliveries():
            return False
        for number in range(self.open_start, self.open_end):
            c = cython.address(self.connections[number])
            if c.in_flight or c.releasing or unsent(c):
                return False
        return True

    # ---------------------------------------------------------------- a turn

    def turn(self, timeout_ms):
        """Take events, then serve every connection that can go on, each once."""
        events = cython.declare(linux.epoll_event[256])
        i: cython.size_t
        count: cython.int = linux.epoll_wait(self.epoll, events, 256, timeout_ms)
        event: cython.int
        self.tally.now_ns = clock_ns(linux.CLOCK_MONOTONIC)
        for event in range(count):
            self.take_event(events[event].data.u32, events[event].events)
        if self.publishing.pace.interval_ns and self.publishes:
            self.enqueue_due()
        self.serving.swap(self.ready)
        for i in range(self.serving.size()):
            self.connections[self.serving[i]].queued = False
            self.serve(self.serving[i])
        self.serving.clear()
        self.release_held()
        store_u64(cython.address(self.table.arrived), self.tally.arrived - self.tally.duplicates)

    def enqueue(self, index):
        if not self.connections[index].queued:
            self.connections[index].queued = True
            self.ready.push_back(index)

    def enqueue_due(self):
        """Paced: every publisher here of whom a message has come due."""
        place: uint32_t
        elapsed: int64_t = self.tally.now_ns - self.started_ns
        end: uint64_t = min(
            cython.cast(uint64_t, elapsed // self.publishing.pace.interval_ns), self.publishing.pace.messages
        )
        if end > self.due + self.publishing.pace.publishers:
            self.due = end - self.publishing.pace.publishers  # each of them once
        while self.due < end:
            place = self.due % self.publishing.pace.publishers
            if self.place_start <= place < self.place_start + self.originators:
                self.enqueue((place - self.place_start) * self.stride)
            self.due += 1

    def take_event(self, index, events):
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

    def serve(self, index):
        """Read once, publish what the window allows, write once; queue again what could go on at once."""
        c: cython.pointer[Connection] = cython.address(self.connections[index])
        if c.stage == CONNECTING:
            self.go_on(c)
        if c.stage == CLOSED:
            return
        if c.readable:
            self.receive(c)
        if c.stage < READY:
            self.go_on(c)
        if self.may_publish(c):
            self.publish(c)
        if not send_output(c) or (self.one_by_one and not self.send_one_by_one(c)):
            self.shut(c)
        if c.readable:
            self.enqueue(index)
        elif self.may_publish(c):
            if self.allowance(c) > 0:
                self.enqueue(index)
            elif not c.held:
                c.held = True
                self.held.push_back(index)

    def may_publish(self, c):
        """Has more to publish now, by its own socket, its window, and the clock where paced."""
        return (
            self.publishes
            and c.publishes
            and not c.echoes
            and c.writable
            and c.sent < self.messages
            and (self.load.qos == 0 or c.in_flight < c.window)
            and (
                self.publishing.pace.interval_ns == 0
                or c.sent < due_messages(cython.address(self.publishing.pace), c.place, self.tally.now_ns)
            )
        )

    def release_held(self):
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

    def shut(self, c):
        if c.fd >= 0:
            linux.close(c.fd)
            c.fd = -1
            c.stage = CLOSED
            self.closed_count += 1

    def go_on(self, c):
        """The next step towards READY: TCP is up, or all that was asked is answered."""
        fault: cython.int
        if c.stage == CONNECTING and (c.writable or c.hung_up):
            c.stage = GREETING
            fault = socket_fault(c)
            if fault:
                self.fault = fault
                self.shut(c)
            elif c.transport != cython.NULL:
                begin(c.transport)
        elif c.stage == ACCEPTED:
            append_bytes(c, c.requests, c.requests_size)
            c.stage = SUBSCRIBING
        if c.stage == SUBSCRIBING and c.answers_due == 0:
            c.stage = READY
            self.ready_count += 1

    # ---------------------------------------------------------------- receiving and publishing

    def receive(self, c):
        """One read and all whole packets in it; the beginning of a further one is kept for the next read."""
        data: cython.pointer[uint8_t] = self.input.data()
        used: cython.size_t
        size: cython.size_t
        got: cython.Py_ssize_t
        if c.partial_size:
            memcpy(data, c.partial, c.partial_size)
        if c.transport == cython.NULL:
            got = linux.recv(c.fd, data + c.partial_size, INPUT_BYTES, 0)
            if got <= 0:
                c.readable = False
                if got == 0 or linux.errno != linux.EAGAIN:
                    self.shut(c)
                return
            if cython.cast(cython.size_t, got) < INPUT_BYTES and not c.hung_up:
                c.readable = False
        else:
            got = receive_wrapped(c, self.wire.data(), self.wire.size(), data + c.partial_size)
            if got <= 0:
                if got < 0:
                    self.shut(c)
                return
        self.tally.now_ns = clock_ns(linux.CLOCK_MONOTONIC)
        size = c.partial_size + got
        used = parse(
            cython.address(self.load),
            cython.address(self.tally),
            cython.address(self.publishing),
            c,
            data,
            size,
        )
        c.partial_size = size - used
        if c.partial_size > self.partial_max:
            self.shut(c)
        elif c.partial_size:
            if c.partial == cython.NULL:
                c.partial = cython.cast(cython.pointer[uint8_t], malloc(self.partial_max))
            memcpy(c.partial, data + used, c.partial_size)
        self.progress_ns = self.tally.now_ns

    def allowance(self, c):
        """How many messages this publisher may send before its slowest subscriber has too many to come."""
        slowest: uint64_t
        if self.outstanding_max == 0:
            return BOUNDLESS
        slowest = confirmed_by_all(self.common, c.publisher) if c.confirmed == cython.NULL else c.confirmed[0]
        return self.outstanding_max - min(c.sent - min(slowest, c.sent), self.outstanding_max)

    def publish(self, c):
        """Fill the output with as many messages as block, window, allowance and clock leave room for."""
        count: uint64_t
        if c.output_end >= self.block_size:
            return
        count = min((self.block_size - c.output_end) // self.publishing.form.size, self.messages - c.sent)
        if self.load.qos:
            count = min(count, cython.cast(uint64_t, c.window - c.in_flight))
        if self.publishing.pace.interval_ns:
            count = min(
                count,
                due_messages(cython.address(self.publishing.pace), c.place, self.tally.now_ns) - c.sent,
            )
        if count:
            count = min(count, self.allowance(c))
        append_messages(cython.address(self.publishing), c, count, self.tally.now_ns)

    def send_one_by_one(self, c):
        """What else has come due by now, each message by itself, while the socket takes it. False when the
        peer is gone.
        """
        _sends: cython.int
        for _sends in range(SENDS_MAX):
            if unsent(c) or not self.may_publish(c) or self.allowance(c) == 0:
                return True
            self.publish(c)
            if not send_output(c):
                return False
        return True
