"""The load generator counts what arrived: loss, repetition, disorder and strangers, and ends by itself."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tidemq.bench.frames import encode_packet, encode_publish
from tidemq.bench.generator import Generator
from tidemq.bench.process import cpu_s, resident_bytes
from tidemq.bench.workload import Outcome, Workload

ONE = Workload(name="one", messages=1000)
PATIENCE_S = 20.0  # where everything is to arrive, however busy the machine
LOSS_LIMIT_S = 1.0  # where something is not
Deliver = Callable[[int, bytes], list[bytes]]  # number of the message and its frame -> what is sent for it


def faithful(number: int, frame: bytes) -> list[bytes]:
    return [frame]


class FakeBroker:
    """An MQTT 3.1.1 broker that sends every message to every subscriber, as `deliver` changes it."""

    def __init__(self, deliver: Deliver = faithful, *, chunk: int = 0, delay_s: float = 0.0) -> None:
        self.deliver = deliver
        self.chunk = chunk  # bytes a write; 0: whole packets
        self.delay_s = delay_s  # before a message is passed on
        self.connack = b"\x20\x02\x00\x00"
        self.suback_reason: int | None = None  # None: the QoS asked for
        self.die_at = 0  # messages; 0: never
        self.ack_order: Callable[[list[bytes]], list[bytes]] = list
        self.ack_batch = 1
        self.messages = 0
        self.unacknowledged_max = 0
        self.subscribers: list[asyncio.StreamWriter] = []
        self.acks: list[bytes] = []
        self.completion_batch = 1  # PUBCOMPs sent at a time, last first
        self.completions: list[bytes] = []
        self.outgoing_id = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, body = await read_packet(reader)
                await self.take(first, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def take(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        kind = first >> 4
        if kind == 1:
            writer.write(self.connack)
        elif kind == 8:
            self.subscribers.append(writer)
            asked = body[-1]
            reason = asked if self.suback_reason is None else self.suback_reason
            writer.write(b"\x90\x03" + body[:2] + bytes([reason]))
        elif kind == 3:
            await self.take_publish(first, body, writer)
        elif kind == 5:  # PUBREC of a subscriber
            writer.write(b"\x62\x02" + body)
        elif kind == 6:  # PUBREL of a publisher
            self.completions.append(b"\x70\x02" + body)
            if len(self.completions) == self.completion_batch:
                writer.write(b"".join(self.completions[::-1]))
                self.completions.clear()

    async def take_publish(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        number = self.messages
        self.messages += 1
        if self.die_at and self.messages >= self.die_at:
            for each in self.subscribers:
                each.transport.abort()
            return
        qos = first >> 1 & 3
        topic_end = 2 + int.from_bytes(body[:2])
        if qos:
            self.acknowledge(qos, body[topic_end : topic_end + 2], writer)
            self.outgoing_id = self.outgoing_id % 65_535 + 1
            body = body[:topic_end] + self.outgoing_id.to_bytes(2) + body[topic_end + 2 :]
        frame = encode_packet(first, body)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        for sent in self.deliver(number, frame):
            for each in self.subscribers:
                await self.write(each, sent)

    def acknowledge(self, qos: int, packet_id: bytes, writer: asyncio.StreamWriter) -> None:
        """PUBACK or PUBREC, some at a time, in an order that a test may choose."""
        self.acks.append((b"\x40\x02" if qos == 1 else b"\x50\x02") + packet_id)
        self.unacknowledged_max = max(self.unacknowledged_max, len(self.acks))
        if len(self.acks) == self.ack_batch:
            writer.write(b"".join(self.ack_order(self.acks)))
            self.acks.clear()

    async def write(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        step = self.chunk or len(frame)
        for at in range(0, len(frame), step):
            writer.write(frame[at : at + step])
            if self.chunk:
                await writer.drain()
                await asyncio.sleep(0)


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first, size = await reader.readexactly(2)
    shift = 7
    if size > 127:
        size &= 127
        while True:
            (more,) = await reader.readexactly(1)
            size |= (more & 127) << shift
            shift += 7
            if more < 128:
                break
    return first, await reader.readexactly(size)


@contextmanager
def listening(broker: FakeBroker) -> Iterator[int]:
    """The broker's port, on a thread with a loop of its own."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(broker.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def load(workload: Workload, port: int, idle_limit_s: float = PATIENCE_S) -> Outcome:
    generator = Generator(workload, port)
    generator.connect(timeout_s=PATIENCE_S)
    try:
        return generator.run(idle_limit_s)
    finally:
        generator.close()


def load_fake(broker: FakeBroker, workload: Workload = ONE, idle_limit_s: float = PATIENCE_S) -> Outcome:
    with listening(broker) as port:
        return load(workload, port, idle_limit_s)


def load_lossy(broker: FakeBroker, workload: Workload = ONE) -> Outcome:
    return load_fake(broker, workload, LOSS_LIMIT_S)


# ------------------------------------------------------------------ what is intact is found intact


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_everything_arrives(qos: int) -> None:
    broker = FakeBroker()
    outcome = load_fake(broker, replace(ONE, qos=qos))
    assert outcome.end == "complete"
    assert outcome.intact
    assert (outcome.sent, outcome.expected, outcome.received) == (1000, 1000, 1000)
    assert broker.messages == 1000
    assert outcome.seconds > 0
    assert outcome.generator_cpu_s > 0


@pytest.mark.parametrize("payload_bytes", [16, 64, 200, 20_000])  # remaining lengths of one to three bytes
@pytest.mark.parametrize("chunk", [1, 7, 79])
def test_packets_cut_anywhere_are_put_together(chunk: int, payload_bytes: int) -> None:
    workload = replace(ONE, messages=100 if payload_bytes < 1000 else 2, payload_bytes=payload_bytes)
    outcome = load_fake(FakeBroker(chunk=chunk), workload)
    assert outcome.intact
    assert outcome.received == workload.deliveries


def test_fan_out_counts_each_delivery() -> None:
    outcome = load_fake(FakeBroker(), replace(ONE, subscribers=3, publishers=2, messages=200))
    assert outcome.intact
    assert (outcome.sent, outcome.received) == (400, 1200)


# ------------------------------------------------------------------ what is not, is not


def test_loss_is_counted_and_ends_the_run() -> None:
    outcome = load_lossy(FakeBroker(lambda number, frame: [] if number % 10 == 3 else [frame]))
    assert outcome.end == "stalled"
    assert (outcome.lost, outcome.received, outcome.expected) == (100, 900, 1000)
    assert outcome.duplicates == outcome.disordered == 0
    assert not outcome.intact


def test_loss_of_the_last_messages_is_counted() -> None:
    outcome = load_lossy(FakeBroker(lambda number, frame: [frame] if number < 990 else []))
    assert (outcome.end, outcome.lost) == ("stalled", 10)


def test_repetition_is_counted() -> None:
    outcome = load_fake(FakeBroker(lambda number, frame: [frame] * (1 + (number % 100 == 50))))
    assert (outcome.duplicates, outcome.lost, outcome.disordered) == (10, 0, 0)
    assert outcome.received == 1000


def test_the_last_message_twice_is_counted() -> None:
    outcome = load_fake(FakeBroker(lambda number, frame: [frame] * (1 + (number == 999))))
    assert (outcome.end, outcome.duplicates) == ("complete", 1)


def test_a_late_repetition_is_not_taken_for_disorder() -> None:
    kept: list[bytes] = []

    def deliver(number: int, frame: bytes) -> list[bytes]:
        kept.append(frame)
        return [frame, kept[0]] if number == 500 else [frame]

    outcome = load_fake(FakeBroker(deliver))
    assert (outcome.duplicates, outcome.disordered, outcome.lost) == (1, 0, 0)


def test_disorder_is_counted() -> None:
    kept: list[bytes] = []

    def swap_each_tenth(number: int, frame: bytes) -> list[bytes]:
        if number % 10 == 5:
            kept.append(frame)
            return []
        return [frame, kept.pop()] if kept else [frame]

    outcome = load_fake(FakeBroker(swap_each_tenth))
    assert outcome.end == "complete"
    assert (outcome.disordered, outcome.lost, outcome.duplicates) == (100, 0, 0)
    assert not outcome.intact


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("another publisher", lambda frame: frame[:-60] + struct.pack("<I", 7) + frame[-56:]),
        ("a number never sent", lambda frame: frame[:-64] + struct.pack("<I", 10**9) + frame[-60:]),
        ("a shorter payload", lambda frame: frame[:1] + bytes([frame[1] - 1]) + frame[2:-1]),
        ("another QoS", lambda frame: bytes([0x32, frame[1] + 2]) + frame[2:-64] + b"\0\1" + frame[-64:]),
    ],
)
def test_a_strange_message_is_not_counted_as_received(what: str, change: Callable[[bytes], bytes]) -> None:
    outcome = load_lossy(FakeBroker(lambda number, frame: [frame if number != 10 else change(frame)]))
    assert (outcome.foreign, outcome.lost, outcome.received) == (1, 1, 999), what


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_out_of_order_are_counted(qos: int) -> None:
    broker = FakeBroker()
    broker.ack_batch, broker.ack_order = 2, lambda acks: acks[::-1]
    outcome = load_fake(broker, replace(ONE, qos=qos, messages=100))
    assert outcome.ack_errors >= 100
    assert outcome.received == 100
    assert not outcome.intact


def test_completions_out_of_order_are_counted() -> None:
    broker = FakeBroker()
    broker.completion_batch = 2
    outcome = load_fake(broker, replace(ONE, qos=2, messages=100))
    assert outcome.ack_errors >= 100
    assert outcome.received == 100


def test_missing_acknowledgements_end_the_run() -> None:
    broker = FakeBroker()
    broker.ack_batch = 1000
    outcome = load_lossy(broker, replace(ONE, qos=1, window=50))
    assert (outcome.end, outcome.sent) == ("stalled", 50)


# ------------------------------------------------------------------ what it sends


def test_window_bounds_messages_in_flight() -> None:
    broker = FakeBroker()
    broker.ack_batch = 20
    outcome = load_fake(broker, replace(ONE, qos=1, window=20))
    assert outcome.intact
    assert broker.unacknowledged_max == 20


def test_outstanding_messages_are_bounded() -> None:
    broker = FakeBroker(lambda number, frame: [])
    outcome = load_lossy(broker, replace(ONE, outstanding_max=37))
    assert (outcome.end, outcome.sent, broker.messages) == ("stalled", 37, 37)


@pytest.mark.parametrize("poll", [False, True])
def test_paced_run_keeps_its_rate_and_measures_delay(poll: bool) -> None:
    outcome = load_fake(FakeBroker(delay_s=0.005), replace(ONE, messages=100, rate_per_s=100, poll=poll))
    assert outcome.intact
    assert 0.98 < outcome.seconds < 3
    assert outcome.latency is not None
    assert 5_000 <= outcome.latency.p50_us < 500_000
    assert outcome.latency.p50_us <= outcome.latency.p99_us <= outcome.latency.p999_us


def test_a_stalled_broker_is_charged_for_the_wait() -> None:
    """Messages that come due during a stall count from then, not from when they could be sent."""

    def stall(number: int, frame: bytes) -> list[bytes]:
        if number == 0:
            time.sleep(0.2)
        return [frame]

    outcome = load_fake(FakeBroker(stall), replace(ONE, messages=100, rate_per_s=500))
    assert outcome.intact
    assert outcome.latency is not None
    assert outcome.latency.p50_us > 50_000


@pytest.mark.parametrize("payload_bytes", [16, 19, 100])
def test_random_payloads_differ_and_are_still_checked(payload_bytes: int) -> None:
    payloads = []

    def note(number: int, frame: bytes) -> list[bytes]:
        payloads.append(frame[-payload_bytes:])
        return [frame]

    assert load_fake(FakeBroker(note), replace(ONE, payload_bytes=payload_bytes, random=True)).intact
    rest = b"".join(payload[16:] for payload in payloads)
    assert len(zlib.compress(rest)) >= len(rest)
    payloads.clear()
    assert load_fake(FakeBroker(note), replace(ONE, payload_bytes=payload_bytes)).intact
    assert {payload[16:] for payload in payloads} == {b"x" * (payload_bytes - 16)}


def test_frame_is_a_publish_with_room_for_its_numbers() -> None:
    frame = encode_publish(Workload(name="x", qos=1, pairs=True, publishers=300, subscribers=300), 258)
    assert frame[:2] == bytes([0x32, 2 + 10 + 2 + 64])
    assert frame[2:14] == b"\x00\x0abench/0258"
    assert frame[14:16] == b"\0\0"
    assert frame[16:] == bytes(4) + struct.pack("<I", 258) + bytes(8) + b"x" * 48


# ------------------------------------------------------------------ how it ends


def test_a_broker_that_dies_ends_the_run() -> None:
    broker = FakeBroker()
    broker.die_at = 500
    started = time.monotonic()
    outcome = load_fake(broker)
    assert outcome.end == "disconnected"
    assert outcome.lost == outcome.expected - outcome.received > 0
    assert time.monotonic() - started < PATIENCE_S


def test_refused_connection_is_an_error() -> None:
    broker = FakeBroker()
    broker.connack = b"\x20\x02\x00\x05"
    with pytest.raises(ConnectionError, match="code 5"):
        load_fake(broker)


def test_refused_subscription_is_an_error() -> None:
    broker = FakeBroker()
    broker.suback_reason = 0x80
    with pytest.raises(ConnectionError, match="code 128"):
        load_fake(broker)


def test_nobody_listening_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionError):
            load(ONE, taken.getsockname()[1])


@pytest.mark.parametrize(
    "change",
    [
        {"payload_bytes": 15},
        {"payload_bytes": 1 << 20},
        {"mesh": True, "subscribers": 2},
        {"pairs": True, "subscribers": 2},
        {"topics": 2},
        {"window": 0},
        {"version": 3},
        {"messages": 1 << 32},
        {"part": "drain"},
        {"part": "enqueue", "persistent": True, "rate_per_s": 100},
        {"part": "enqueue", "persistent": True, "mesh": True},
    ],
)
def test_what_it_cannot_check_it_refuses(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Generator(replace(ONE, **change), 1883)  # type: ignore[arg-type]


# ------------------------------------------------------------------ against real servers


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory, install: Callable[[str, str], None]) -> Iterator[int]:
    install("mosquitto", "mosquitto")
    with mosquitto_in(tmp_path_factory.mktemp("mosquitto")) as port:
        yield port


@pytest.fixture
def fresh_mosquitto(tmp_path: Path, mosquitto: int) -> Iterator[int]:
    """One that holds no sessions and no retained messages of other tests."""
    with mosquitto_in(tmp_path) as port:
        yield port


@contextmanager
def mosquitto_in(folder: Path) -> Iterator[int]:
    port = free_port()
    settings = folder / "mosquitto.conf"
    settings.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n"
    )
    with process_on(port, ["mosquitto", "-c", str(settings)]):
        yield port


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def process_on(port: int, command: list[str]) -> Iterator[int]:
    """A server process that listens on `port`; yields its pid."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"publishers": 5},
        {"subscribers": 5},
        {"publishers": 5, "subscribers": 5, "mesh": True},
        {"publishers": 5, "subscribers": 5, "pairs": True},
        {"publishers": 2, "subscribers": 2, "pairs": True, "topics": 700},
    ],
    ids=["one-to-one", "fan-in", "fan-out", "mesh", "pairs", "topics"],
)
def test_mosquitto_loses_nothing(mosquitto: int, shape: dict[str, int], qos: int, version: int) -> None:
    workload = Workload(name="real", messages=1500, qos=qos, version=version, idle_connections=3, **shape)  # type: ignore[arg-type]
    outcome = load(workload, mosquitto)
    assert outcome.intact
    assert outcome.received == outcome.expected == workload.deliveries


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    "shape",
    [{"subscribers": 3}, {"publishers": 3, "subscribers": 3, "pairs": True}],
    ids=["fan-out", "pairs"],
)
def test_absent_subscribers_get_what_was_queued(
    fresh_mosquitto: int, shape: dict[str, int], qos: int, version: int
) -> None:
    whole = Workload(name="real", messages=1500, qos=qos, version=version, persistent=True, **shape)  # type: ignore[arg-type]
    before = load(whole, fresh_mosquitto)
    queued = load(replace(whole, part="enqueue"), fresh_mosquitto)
    drained = load(replace(whole, part="drain"), fresh_mosquitto)
    assert before.intact
    assert queued.intact
    assert drained.intact
    assert before.received == drained.received == drained.expected == whole.deliveries
    assert (queued.sent, queued.received, queued.expected) == (before.sent, 0, 0)
    assert drained.sent == 0
    assert drained.seconds > 0 < queued.seconds


def test_a_lost_queue_is_counted_and_ends_the_run(fresh_mosquitto: int) -> None:
    whole = Workload(name="real", messages=100, qos=1, persistent=True)
    assert load(whole, fresh_mosquitto).intact
    assert load(replace(whole, persistent=False), fresh_mosquitto).intact  # ends the sessions
    assert load(replace(whole, part="enqueue"), fresh_mosquitto).intact
    outcome = load(replace(whole, part="drain"), fresh_mosquitto, LOSS_LIMIT_S)
    assert (outcome.end, outcome.lost, outcome.received) == ("stalled", 100, 0)


def test_retained_messages_are_kept_by_the_broker(fresh_mosquitto: int) -> None:
    keeping = Workload(
        name="retained", publishers=3, subscribers=3, pairs=True, topics=50, messages=50, qos=1, retain=True
    )
    assert load(replace(keeping, persistent=True, part="enqueue"), fresh_mosquitto).sent == 150
    found = subprocess.run(
        ["mosquitto_sub", "-p", str(fresh_mosquitto), "-t", "bench/+/+", "-F", "%t %r", "-W", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    topics = {f"bench/{publisher:04d}/{number:08x} 1" for publisher in range(3) for number in range(50)}
    assert set(found.stdout.split("\n")) - {""} == topics


@pytest.mark.parametrize("qos", [1, 2])
def test_with_one_message_in_flight_acknowledgements_are_timed(qos: int) -> None:
    outcome = load_fake(FakeBroker(delay_s=0.002), replace(ONE, messages=50, qos=qos, window=1))
    assert outcome.intact
    assert outcome.ack_latency is not None
    assert 2_000 <= outcome.ack_latency.p50_us <= outcome.ack_latency.p99_us < 1e6 * outcome.seconds
    assert load_fake(FakeBroker(), replace(ONE, messages=50, qos=qos, window=2)).ack_latency is None


@pytest.mark.parametrize(
    "shape",
    [{}, {"publishers": 5}, {"subscribers": 5}, {"publishers": 5, "subscribers": 5, "mesh": True}],
    ids=["one-to-one", "fan-in", "fan-out", "mesh"],
)
def test_relay_loses_nothing(shape: dict[str, int]) -> None:
    workload = Workload(name="relayed", messages=100_000, **shape)  # type: ignore[arg-type]
    port = free_port()
    frame_bytes = len(encode_publish(workload, 0))
    program = f"from tidemq.bench.relay import Relay; Relay({port}, {frame_bytes}).serve()"
    with process_on(port, [sys.executable, "-c", program]):
        outcome = load(workload, port)
    assert outcome.intact
    assert outcome.received == workload.deliveries


def test_cpu_and_memory_of_another_process() -> None:
    program = "import time\nwhile time.process_time() < 0.3: pass\n"
    program += "memory = bytearray(64 << 20)\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0.3 <= cpu_s(process.pid) < 2
        assert 64 << 20 < resident_bytes(process.pid) < 128 << 20
        process.communicate(b"\n")
    with pytest.raises(ProcessLookupError):
        cpu_s(process.pid)
