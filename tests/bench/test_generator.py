"""The load generator counts what arrived: loss, repetition, disorder and strangers, and ends by itself."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from bench.fake_broker import DemandingBroker, FakeBroker, PairBroker, StrictBroker, listening
from waiting import LATE_S, WAIT_S

from tidemq.bench.load.frames import encode_publish
from tidemq.bench.load.generator import Generator
from tidemq.bench.peer.target import local_target
from tidemq.bench.process import cpu_s, resident_bytes
from tidemq.bench.workload import Outcome, Workload
from tidemq.errors import UsageError
from tidemq.testing.ports import free_port

ONE = Workload(name="one", messages=1000)
LOSS_LIMIT_S = 2.0  # of silence, where something is not


def load(workload: Workload, port: int, idle_limit_s: float = WAIT_S) -> Outcome:
    generator = Generator(workload, local_target(port))
    generator.connect(timeout_s=WAIT_S)
    try:
        return generator.run(idle_limit_s)
    finally:
        generator.close()


def load_fake(broker: FakeBroker, workload: Workload = ONE, idle_limit_s: float = WAIT_S) -> Outcome:
    with listening(broker.serve) as port:
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


class CountingBroker(FakeBroker):
    """Looks how many segments its publisher's messages came in."""

    segments = 0

    async def take_publish(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        own: socket.socket = writer.get_extra_info("socket")
        info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
        self.segments = struct.unpack_from("=I", info, 152)[0]  # tcpi_data_segs_in
        await super().take_publish(first, body, writer)


@pytest.mark.parametrize("rate_per_s", [0, 20_000, 200_000])
def test_one_by_one(rate_per_s: float) -> None:
    """Each message is a send of its own, though the kernel may put some together that wait in it."""
    broker, usual = CountingBroker(), CountingBroker()
    load = replace(ONE, rate_per_s=rate_per_s, one_by_one=True)
    assert load_fake(broker, load).intact
    assert load_fake(usual, ONE).intact
    assert broker.segments > usual.segments


@pytest.mark.parametrize("poll", [False, True])
def test_paced_run_keeps_its_rate_and_measures_delay(poll: bool) -> None:
    outcome = load_fake(FakeBroker(delay_s=0.005), replace(ONE, messages=100, rate_per_s=100, poll=poll))
    assert outcome.intact
    assert 0.98 < outcome.seconds < LATE_S
    assert outcome.latency is not None
    assert 5_000 <= outcome.latency.p50_us < 5e6
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
    assert time.monotonic() - started < WAIT_S


def test_refused_connection_is_an_error() -> None:
    broker = FakeBroker()
    broker.connack = b"\x20\x02\x00\x05"
    with pytest.raises(ConnectionError, match="not authorized \\(return code 5\\)"):
        load_fake(broker)


def test_refused_subscription_is_an_error() -> None:
    broker = FakeBroker()
    broker.suback_reason = 0x80
    with pytest.raises(ConnectionError, match="refused a subscription: unspecified error"):
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
        {"payload_bytes": (1 << 20) + 1},
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
    with pytest.raises(UsageError, match=r"\w"):
        Generator(replace(ONE, **change), local_target(1883))  # type: ignore[arg-type]


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


@contextmanager
def process_on(port: int, command: list[str]) -> Iterator[int]:
    """A server process that listens on `port`; yields its pid."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + WAIT_S
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


def test_retained_messages_are_kept_by_the_broker(
    fresh_mosquitto: int, install: Callable[[str, str], None]
) -> None:
    install("mosquitto_sub", "mosquitto-clients")
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
    program = f"from tidemq.bench.peer.relay import Relay; Relay({port}, {frame_bytes}).serve()"
    with process_on(port, [sys.executable, "-c", program]):
        outcome = load(workload, port)
    assert outcome.intact
    assert outcome.received == workload.deliveries


def test_relay_takes_frames_of_any_size() -> None:
    workload = Workload(name="large", messages=20, payload_bytes=200_000)
    port = free_port()
    frame_bytes = len(encode_publish(workload, 0))
    program = f"from tidemq.bench.peer.relay import Relay; Relay({port}, {frame_bytes}).serve()"
    with process_on(port, [sys.executable, "-c", program]):
        outcome = load(workload, port, LOSS_LIMIT_S)
    assert outcome.intact


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


# ------------------------------------------------------------------ what a 5.0 broker demands


REASON_STRING = b"\x1f\x00\x03yes"
USER_PROPERTY = b"\x26\x00\x01a\x00\x02bc"
FIVE = replace(ONE, version=5, qos=1, messages=50)


@pytest.mark.parametrize("before", [b"", REASON_STRING + USER_PROPERTY + b"\x22\x00\x0a\x2a\x00"])
def test_receive_maximum_bounds_the_window(before: bytes) -> None:
    broker = DemandingBroker(before + b"\x21\x00\x07")
    broker.ack_batch = 7
    outcome = load_lossy(broker, replace(FIVE, messages=49))
    assert outcome.intact
    assert broker.unacknowledged_max == 7


def test_maximum_qos_is_not_exceeded() -> None:
    with pytest.raises(ConnectionError, match="takes QoS 0 at most, the load is of QoS 1"):
        load_fake(DemandingBroker(b"\x24\x00"), FIVE)


@pytest.mark.parametrize(("properties", "pings"), [(b"", 0), (b"\x13\x00\x01", 2)])
def test_server_keep_alive_is_kept(properties: bytes, pings: int) -> None:
    broker = DemandingBroker(properties)
    hold = Workload(name="hold", publishers=0, subscribers=0, idle_connections=1, version=5, seconds=1.5)
    outcome = load_fake(broker, hold)
    assert (outcome.end, outcome.foreign) == ("complete", 0)
    assert abs(broker.pings - pings) <= (1 if pings else 0)
    assert 1.4 < outcome.seconds < LATE_S


def test_server_keep_alive_is_kept_while_others_connect() -> None:
    broker = StrictBroker()
    idle = Workload(
        name="idle",
        publishers=0,
        subscribers=0,
        idle_connections=25,
        connect_rate_per_s=10,
        version=5,
        seconds=0.1,
    )
    assert (load_fake(broker, idle).end, broker.ended) == ("complete", 0)


# ------------------------------------------------------------------ what bounces


def test_a_bounced_message_is_timed_there_and_back() -> None:
    """Each way takes 10 ms through this broker of two topics."""
    broker = PairBroker(delay_s=0.01)
    load_of = Workload(name="ping", publishers=2, subscribers=2, bounce=True, messages=10)
    outcome = load_fake(broker, load_of)
    assert outcome.intact
    assert (outcome.sent, outcome.received) == (20, 20)
    assert outcome.latency is not None
    assert outcome.latency.count == 10
    assert 20_000 <= outcome.latency.p50_us < 5e6


def test_latencies_and_intervals_say_the_same_as_the_counts() -> None:
    outcome = load_fake(FakeBroker(), replace(ONE, messages=200, rate_per_s=400))
    assert sum(bucket.count for bucket in outcome.latencies) == 200
    assert all(bucket.low_ns <= bucket.high_ns <= bucket.low_ns * 1.016 + 1 for bucket in outcome.latencies)
    assert [b.low_ns for b in outcome.latencies] == sorted(b.low_ns for b in outcome.latencies)
    assert sum(interval.received for interval in outcome.intervals) == 200
    starts = [interval.start_s for interval in outcome.intervals]
    ends = [interval.start_s + interval.seconds for interval in outcome.intervals]
    assert starts[1:] == pytest.approx(ends[:-1])
    assert outcome.latency is not None
    assert outcome.latency.max_us == max(each.max_us for each in outcome.intervals if each.max_us is not None)
