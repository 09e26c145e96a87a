"""The load generator: one thread, a workload's connections or a share of them, no GIL on a message's way.

It must cost far less than any broker that it measures. So publishers send blocks of frames that are
encoded once, copied and patched (sequence number, time, packet identifier), and received bytes are parsed
where they lie.

Written apart from `tidemq.wire` on purpose: a fault there must not be shared by what measures it.
"""

import sys
import time
from collections.abc import Sequence

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import malloc
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.tidemq.bench import linux
from cython.cimports.tidemq.bench.load.board import Board, sent_by_all
from cython.cimports.tidemq.bench.load.client_socket import (
    CLOSED,
    READY,
    Connection,
    append_bytes,
    say_goodbye,
    unsent,
)
from cython.cimports.tidemq.bench.load.histogram import Quantiles, buckets_of, quantiles_since
from cython.cimports.tidemq.bench.load.loop import INPUT_BYTES, WORD_MS, Loop, clock_ns
from cython.cimports.tidemq.net.transport import RECORD_BYTES_MAX, Scheme, transport_text

from tidemq.bench.load.frames import encode_connect, encode_publish, encode_subscribes, topic_of
from tidemq.bench.load.share import Share, whole
from tidemq.bench.peer.refusal import check_descriptors, connect_fault, farewell_text, refusal_text
from tidemq.bench.peer.target import Target
from tidemq.bench.process import ready_s_of_thread
from tidemq.bench.result import Interval, latency_of
from tidemq.bench.workload import Connecting, Outcome, Workload

if not cython.compiled:
    raise ImportError("tidemq.bench.load.generator is compiled code: run `make build`")

PARTIAL_BYTES = cython.declare(cython.size_t, 1 << 16)  # of a packet that is not a message
SLICE_NS = cython.declare(int64_t, 200_000_000)  # the loop comes back to Python so often: an interval
CONNECTING_MAX = cython.declare(uint32_t, 64)  # connections between SYN and CONNACK, below any backlog
TIMER_NS_MIN = cython.declare(int64_t, 20_000)  # paced: messages that come due within it leave together
LINGER_NS = cython.declare(int64_t, 20_000_000)  # after the last message, for what comes twice


def latency_in(histogram):
    return latency_of(buckets_of(histogram), histogram.max)


def set_address(address, packed):
    """Of a struct sockaddr; it begins with its family."""
    memcpy(cython.address(address.storage), cython.cast(cython.p_const_char, packed), len(packed))
    address.family, address.size = int.from_bytes(packed[:2], sys.byteorder), len(packed)


@cython.cclass
class Generator(Loop):
    """Drives one workload against a broker: `connect()`, then `run()`, then `close()`.

    One thread at a time; the loop holds no GIL. Not for a second run: make another.
    """

    def __init__(
        self,
        workload: Workload,
        target: Target,
        board: Board | None = None,
        number: int = 0,
        sources: Sequence[bytes] = (),
    ) -> None:
        """Make the frames and tables of `workload`, or of share `number` of the workload of `board`.

        Connections come from `sources` in turn (each a struct sockaddr, see `local_addresses`).
        UsageError for a workload that it cannot send or check.
        """
        own: cython.size_t = number
        self.board = Board(workload, [whole(workload)]) if board is None else board
        self.common, self.table = (
            cython.address(self.board.common),
            cython.address(self.board.tables[own]),
        )
        share: Share = self.board.shares[number]
        self.workload, self.target, self.share, self.intervals = workload, target, share, []
        self.alone = len(self.board.shares) + len(self.board.far) == 1
        drains = workload.part == "drain"
        self.subscribers, self.single = len(share.subscribers), workload.single
        self.stride = 2 if workload.bounce else 1
        self.originators = 0 if drains else len(share.publishers) // self.stride
        self.place_start = share.publishers.start // self.stride
        self.messages, self.of_all = workload.messages, workload.messages * len(share.publishers)
        self.fixed = workload.part != "whole"
        self.deliveries_fixed = workload.deliveries
        self.connecting_max = max(
            CONNECTING_MAX // (len(self.board.shares) + len(self.board.far)), cython.cast(uint32_t, 1)
        )
        self.outstanding_max = -(-workload.outstanding_max // max(workload.publishers, 1))
        if workload.bounce:
            self.outstanding_max = min(self.outstanding_max, cython.cast(uint64_t, 1))
        if workload.part == "enqueue" or workload.rate_per_s:
            self.outstanding_max = 0
        self.one_by_one = workload.one_by_one
        self.polls = workload.poll
        self.connects_per_ns = (
            workload.connect_rate_per_s * share.connections(workload) / workload.connections / 1e9
        )
        self.load.version, self.load.qos = workload.version, workload.qos
        self.load.acks_timed = workload.window == 1 and workload.qos > 0 and not workload.rate_per_s
        self.load.heard = 1 if workload.single else workload.publishers
        self.load.payload_size = workload.payload_bytes
        self._lay_out_numbers()
        self.tally.farewell = -1
        self._lay_out_frames()
        self._lay_out_connections()
        self._lay_out_requests()
        set_address(cython.address(self.address), target.address)
        self.sources.resize(len(sources))
        for own in range(self.sources.size()):
            set_address(cython.address(self.sources[own]), sources[own])
        self.partial_max = PARTIAL_BYTES + workload.payload_bytes
        self.input.resize(self.partial_max + INPUT_BYTES)
        self._lay_out_transports()

    def _lay_out_numbers(self) -> None:
        """What bounds the sequence numbers that can come."""
        known = self.share.publishers if self.board.far else range(self.workload.publishers)
        self.load.messages = self.workload.messages
        self.load.sent_by = self.publishing.sent_by = self.common.sent
        self.load.near_start, self.load.near_end = known.start, known.stop

    def _lay_out_frames(self) -> None:
        workload: Workload = self.workload
        publishers = self.share.publishers
        number: int
        frame: bytes = encode_publish(workload, 0)
        topic: bytes = topic_of(workload, 0)
        size: cython.size_t = len(frame)
        self.publishing.form.qos, self.publishing.form.random = workload.qos, workload.random
        self.publishing.form.size = size
        self.publishing.form.payload_size = workload.payload_bytes
        self.publishing.form.payload_at = size - workload.payload_bytes
        self.publishing.form.packet_id_at = (
            size - workload.payload_bytes - (2 if workload.version == 4 else 3)
        )
        self.publishing.form.topic_digits_at = frame.index(topic) + len(topic) - 8
        self.publishing.form.topics = workload.topics
        self.publishing.form.topics_used = workload.topics_used or workload.topics
        self.publishing.pace.publishers = workload.publishers // self.stride
        self.publishing.noise = 0x9E3779B97F4A7C15  # any seed but 0
        if workload.rate_per_s:
            self._set_pace(max(round(1e9 / workload.rate_per_s), 1))
        self.block_size = size if workload.one_by_one else max(workload.block_bytes, size)
        self.frames.resize(size * len(publishers))
        for number in range(len(publishers)):
            frame = encode_publish(workload, publishers.start + number)
            memcpy(cython.address(self.frames[number * size]), cython.cast(cython.p_const_char, frame), size)

    def _set_pace(self, interval_ns: int) -> None:
        """Paced, all messages that come due are sent, also where the broker holds them up past the end."""
        of_all: int = self.publishing.pace.publishers
        count: int = self.messages * of_all
        if self.workload.seconds:
            count = min(count, int(self.workload.seconds * 1e9) // interval_ns)
        self.publishing.pace.interval_ns, self.publishing.pace.messages = interval_ns, count
        self.of_all = 0
        if of_all:
            further: int = min(max(count % of_all - self.place_start, 0), self.originators)
            self.of_all = (count // of_all * self.originators + further) * self.stride

    def _lay_out_connections(self) -> None:
        workload: Workload = self.workload
        share: Share = self.share
        count: cython.size_t = share.connections(workload)
        number: cython.size_t
        publishers: cython.size_t = len(share.publishers)
        first_subscriber: cython.size_t = 0 if workload.mesh or workload.bounce else publishers
        c: cython.pointer[Connection]
        self.gaps.resize(self.subscribers * self.load.heard)
        self.connections.resize(count)
        memset(self.connections.data(), 0, count * cython.sizeof(Connection))
        self.open_end = publishers if workload.part == "enqueue" else count
        self.open_start = self.opened = first_subscriber if workload.part == "drain" else 0
        for number in range(count):
            c = cython.address(self.connections[number])
            c.fd = -1
            c.packet_id = c.acked_id = c.completed_id = 1
            c.window = workload.window
            if number < publishers:
                self._lay_out_publisher(number)
            if first_subscriber <= number < first_subscriber + self.subscribers:
                self._lay_out_subscriber(number, number - first_subscriber)

    def _lay_out_publisher(self, number: int) -> None:
        c: cython.pointer[Connection] = cython.address(self.connections[number])
        at: cython.size_t = number
        c.publishes = True
        c.publisher = self.share.publishers.start + number
        c.place = c.publisher // self.stride
        c.echoes = self.stride == 2 and number % 2 == 1
        c.frame = cython.address(self.frames[at * self.publishing.form.size])
        if self.workload.part == "drain":
            c.sent = self.common.sent[c.publisher] = self.messages  # by the run that filled the queues
        if self.single:  # of pairs that bounce a message is through when it has come back
            c.confirmed = self.table.expected + at

    def _lay_out_subscriber(self, number: int, subscriber: int) -> None:
        c: cython.pointer[Connection] = cython.address(self.connections[number])
        first: cython.size_t = subscriber * self.load.heard
        c.subscribes, c.timed = True, not c.echoes
        c.expected = self.table.expected + first
        c.gaps = cython.address(self.gaps[first])
        c.heard_first = 0
        if self.single:
            c.heard_first = self.share.subscribers.start + (
                subscriber ^ 1 if self.workload.bounce else subscriber
            )

    def _lay_out_requests(self) -> None:
        """CONNECT waits in each connection's output, its SUBSCRIBEs in `requests` until CONNACK has come."""
        number: cython.size_t
        indices: list[int] = self._indices()
        packet: bytes
        packets: list[bytes]
        c: cython.pointer[Connection]
        target: Target = self.target
        for number in range(self.connections.size()):
            c = cython.address(self.connections[number])
            packet = encode_connect(self.workload, indices[number], target.username, target.password)
            append_bytes(
                c, cython.cast(cython.p_const_uchar, cython.cast(cython.p_const_char, packet)), len(packet)
            )
            c.answers_due = 1
            if c.subscribes and self.workload.part == "whole":
                packets = encode_subscribes(self.workload, c.heard_first)
                packet = b"".join(packets)
                c.answers_due += len(packets)
                c.requests_size = len(packet)
                c.requests = cython.cast(cython.pointer[uint8_t], malloc(c.requests_size))
                memcpy(c.requests, cython.cast(cython.p_const_char, packet), c.requests_size)

    def _lay_out_transports(self) -> None:
        number: cython.size_t
        scheme: Scheme | None = self.target.scheme()
        if scheme is None:
            return
        self.wire.resize(INPUT_BYTES - RECORD_BYTES_MAX)
        for number in range(self.open_start, self.open_end):
            self.connections[number].transport = scheme.make()

    def _indices(self) -> list[int]:
        """Of the connections here, among all of the workload: client identifiers are made of them."""
        share: Share = self.share
        both = self.workload.mesh or self.workload.bounce
        first_idle: int = self.workload.connections - self.workload.idle_connections
        subscribers = [] if both else [self.workload.publishers + number for number in share.subscribers]
        return [*share.publishers, *subscribers, *[first_idle + number for number in share.idle]]

    # ---------------------------------------------------------------- connecting

    def connect(self, timeout_s: float = 30.0, report=None) -> Connecting:
        """Connect and subscribe everything; ConnectionError, in one sentence, when that cannot be done in
        time. `report` is told from time to time how many connections are ready.
        """
        count: cython.uint = self.open_end - self.open_start
        check_descriptors(count)
        if self.connects_per_ns > 0:
            timeout_s += count / (self.connects_per_ns * 1e9)
        deadline = time.monotonic() + timeout_s
        self.connect_started_ns = self.started_ns = self.pinged_ns = clock_ns(linux.CLOCK_MONOTONIC)
        while self.ready_count < count:
            with cython.nogil:
                self.connect_for(SLICE_NS)
            self._check_connecting(timeout_s, time.monotonic() > deadline)
            if report is not None:
                report(self.ready_count)
        took_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC) - self.connect_started_ns
        return Connecting(
            connections=count,
            seconds=took_ns / 1e9,
            latency=latency_in(cython.address(self.tally.connect_latency)),
            latencies=buckets_of(cython.address(self.tally.connect_latency)),
        )

    def tend(self, seconds: float) -> None:
        """Wait between `connect` and `run`, and keep connections whose broker demands a keep alive."""
        slice_ns: int64_t = int(seconds * 1e9)
        if self.tally.keep_alive_s == 0:
            time.sleep(seconds)
            return
        with cython.nogil:
            self.tend_for(slice_ns)

    def _check_connecting(self, timeout_s: float, late: bool) -> None:
        url, version = self.target.url, self.workload.version
        if self.tally.refusal:
            raise ConnectionError(
                f"{url}: {refusal_text(version, self.tally.refusal, self.tally.code, self.workload.qos)}"
            )
        if self.fault:
            raise ConnectionError(f"{url}: {connect_fault(self.fault, self.opened)}")
        if self.closed_count:
            if text := self._transport_text():
                raise ConnectionError(f"{url}: {text}")
            reason = farewell_text(self.tally.farewell) or "closed a connection without a word"
            raise ConnectionError(f"{url}: the broker {reason} when {self.ready_count} were ready")
        if self.board.ended:
            raise ConnectionError(f"{url}: another generator could not connect")
        if late:
            count = self.open_end - self.open_start
            raise ConnectionError(
                f"{url}: after {timeout_s:g} s only {self.ready_count} of {count} connections are ready"
            )

    def _transport_text(self) -> str:
        """Why a connection's TLS or WebSocket ended; empty where none did."""
        number: cython.size_t
        c: cython.pointer[Connection]
        text: str = ""
        for number in range(self.connections.size()):
            c = cython.address(self.connections[number])
            if not text and c.transport != cython.NULL and c.stage == CLOSED:
                text = transport_text(c.transport)
        return text

    # ---------------------------------------------------------------- the run

    def run(self, idle_limit_s: float = 5.0, report=None, start_ns: int = 0, offset_ns: int = 0) -> Outcome:
        """Send and receive everything, until all has come, nothing comes any more, or a connection closes.

        `idle_limit_s` is how long nothing may arrive before what is still out counts as lost. `report` is
        given every interval as it ends. After KeyboardInterrupt there is an outcome too. What ends early
        ends for all generators of the workload.

        Begins at `start_ns` of CLOCK_MONOTONIC, 0: at once. Messages are stamped with that clock and
        `offset_ns`, which makes one clock of those of several machines.
        """
        self.publishing.offset_ns = offset_ns
        if start_ns:
            time.sleep(max(start_ns - time.monotonic_ns(), 0) / 1e9)
        ready_s: float = ready_s_of_thread()
        began_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC)
        cpu_start_ns: int64_t = clock_ns(linux.CLOCK_THREAD_CPUTIME_ID)
        self._begin(start_ns or began_ns)
        try:
            end = self._until_the_end(int(idle_limit_s * 1e9), report)
        except KeyboardInterrupt:
            end = "interrupted"
        if end != "complete":
            self.board.end(end)
        self._arm(0)
        self.publishes = False
        self.cpu_ns = clock_ns(linux.CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns
        ready_s = ready_s_of_thread() - ready_s
        self.ready_share = min(ready_s * 1e9 / (clock_ns(linux.CLOCK_MONOTONIC) - began_ns), 1.0)
        if not self.fixed and (
            sent_by_all(self.common) == 0 or self.workload.subscribers + self.load.qos == 0
        ):
            self.progress_ns = clock_ns(linux.CLOCK_MONOTONIC)  # nothing was to come back
        elif self.subscribers + self.load.qos == 0:  # nothing here
            self.progress_ns = max(self.progress_ns, self.publishing.asked_ns)
        seconds: float = (self.progress_ns - self.started_ns) / 1e9
        with cython.nogil:
            self.linger_for(LINGER_NS)
        return self._outcome(end, seconds)

    def _begin(self, started_ns: int) -> None:
        number: cython.uint
        if self.workload.part == "drain":  # what waits comes from CONNACK on
            self.interval_began_ns = self.connect_started_ns
            return
        self.started_ns = self.progress_ns = self.interval_began_ns = started_ns
        self.publishing.pace.started_ns = self.publishing.asked_ns = self.started_ns
        self.publishes = self.originators > 0 or (
            self.publishing.pace.publishers == 0 and self.workload.seconds > 0
        )
        if self.workload.seconds and not self.publishing.pace.interval_ns:
            self.stop_ns = self.started_ns + int(self.workload.seconds * 1e9)
        if self.publishing.pace.interval_ns:
            linux.prctl(linux.PR_SET_TIMERSLACK, 1)
            if self.one_by_one and self.publishing.pace.interval_ns < TIMER_NS_MIN:
                self.polls = True  # a sleep would bring several together
            self._arm(max(self.publishing.pace.interval_ns, TIMER_NS_MIN))
            return
        for number in range(self.originators):
            self.enqueue(number * self.stride)

    def _until_the_end(self, limit_ns: int, report) -> str:
        """Slice after slice; returns how it ended."""
        silent_ns: int64_t
        while not self.over():
            with cython.nogil:
                self.publish_for(SLICE_NS)
            self._end_interval(report)
            if self.closed_count:
                return "disconnected"
            if self.board.ended:
                return self.board.ended
            self.common.progress_ns = max(
                self.common.progress_ns, max(self.progress_ns, self.publishing.asked_ns)
            )
            silent_ns = clock_ns(linux.CLOCK_MONOTONIC) - self.common.progress_ns
            if silent_ns > limit_ns and not self.settled():
                return "stalled"
        return "complete"

    def _end_interval(self, report) -> None:
        """Note what happened since the last one, quickly: nothing is received meanwhile."""
        now_ns: int64_t = clock_ns(linux.CLOCK_MONOTONIC)
        found: Quantiles = quantiles_since(cython.address(self.tally.latency), cython.address(self.before))
        timed: cython.bint = found.most > 0
        interval = Interval(
            start_s=(self.interval_began_ns - self.started_ns) / 1e9,
            seconds=(now_ns - self.interval_began_ns) / 1e9,
            sent=self.publishing.sent - self.sent_before,
            received=self.tally.arrived - self.arrived_before,
            p50_us=min(found.p50, self.tally.latency.max) / 1e3 if timed else None,
            p99_us=min(found.p99, self.tally.latency.max) / 1e3 if timed else None,
            max_us=min(found.most, self.tally.latency.max) / 1e3 if timed else None,
        )
        self.sent_before, self.arrived_before = self.publishing.sent, self.tally.arrived
        self.before, self.interval_began_ns = self.tally.latency, now_ns
        self.intervals.append(interval)
        if report is not None:
            report(interval)

    def _arm(self, interval_ns: int) -> None:
        """Let the timer tick every `interval_ns`; 0 stops it."""
        at = cython.declare(linux.itimerspec)
        at.it_interval.tv_sec = at.it_value.tv_sec = interval_ns // 1_000_000_000
        at.it_interval.tv_nsec = at.it_value.tv_nsec = interval_ns % 1_000_000_000
        linux.timerfd_settime(self.timer, 0, cython.address(at), cython.NULL)

    def _outcome(self, end: str, seconds: float) -> Outcome:
        expected = self.deliveries()
        received = self.tally.arrived - self.tally.duplicates
        acks_timed: cython.bint = self.load.acks_timed
        return Outcome(
            end=end,
            reason=(farewell_text(self.tally.farewell) or self._transport_text())
            if end == "disconnected"
            else "",
            sent=self.publishing.sent,
            expected=expected,
            received=received,
            lost=expected - received,
            duplicates=self.tally.duplicates,
            disordered=self.tally.disordered,
            foreign=self.tally.foreign,
            ack_errors=self.tally.ack_errors,
            seconds=seconds,
            generator_cpu_s=self.cpu_ns / 1e9,
            generator_ready_share=self.ready_share,
            latency=latency_in(cython.address(self.tally.latency)),
            latencies=buckets_of(cython.address(self.tally.latency)),
            ack_latency=latency_in(cython.address(self.tally.ack_latency)) if acks_timed else None,
            intervals=tuple(self.intervals),
            word_s=0.0 if self.alone else WORD_MS / 1e3,
        )

    def close(self) -> None:
        """Send DISCONNECT and close every connection."""
        number: cython.size_t
        c: cython.pointer[Connection]
        for number in range(self.connections.size()):
            c = cython.address(self.connections[number])
            if c.stage == READY and not unsent(c):
                say_goodbye(c)
            self.shut(c)
