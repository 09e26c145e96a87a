"""Does a broker stall while one subscriber gets very many retained messages? Single messages tell."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from peers.durable import CONNECT

from tidemq.bench.load.frames import encode_packet, encode_string

PROBES = 8  # connections, so that every reactor has one
PROBE_PAUSE_S = 0.0005  # between two single messages
QUIET_S = 1.0
LIMIT_S = 60.0  # of silence
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long single QoS 0 messages took from a client to the broker and back, in milliseconds."""

    messages: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """Many retained messages for one subscriber, and single messages of others beside them."""

    expected: int
    found: int
    seconds: float  # from SUBSCRIBE to the last of them
    before: Waits
    meanwhile: Waits


def measure_flood(port: int, topic_filter: bytes, expected: int, frame_bytes: int) -> Flood:
    """Subscribe at QoS 0 to what `expected` retained messages of `frame_bytes` on the wire are under."""
    with ExitStack() as stack:
        probes = [stack.enter_context(probe(port, number)) for number in range(PROBES)]
        until = time.monotonic() + QUIET_S
        before = exchange(probes, lambda: time.monotonic() < until)
        with ThreadPoolExecutor(1) as reader:
            flood = reader.submit(receive_all, port, topic_filter, expected * frame_bytes)
            meanwhile = exchange(probes, lambda: not flood.done())
            received_bytes, seconds = flood.result()
    found = received_bytes // frame_bytes
    return Flood(expected=expected, found=found, seconds=seconds, before=before, meanwhile=meanwhile)


@contextmanager
def probe(port: int, number: int) -> Iterator[tuple[socket.socket, bytes]]:
    """A client that hears what it publishes, and the packet that it sends and gets."""
    topic = encode_string(b"probe/%d" % number)
    with connected(port, b"probe%d" % number) as (client, packets):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(encode_packet(0x82, b"\x00\x01" + topic + b"\x00"))
        packets.read(5)
        yield client, encode_packet(0x30, topic + bytes(16))


@contextmanager
def connected(port: int, client_id: bytes) -> Iterator[tuple[socket.socket, socket.SocketIO]]:
    """A client with a new session, and what comes to it."""
    head = CONNECT[2 : 2 + 10]
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
        packets = client.makefile("rb", buffering=0)
        client.sendall(encode_packet(0x10, head + encode_string(client_id)))
        if packets.read(4) != b"\x20\x02\x00\x00":
            raise ConnectionError("the broker refused a probe")
        yield client, packets


def exchange(probes: list[tuple[socket.socket, bytes]], goes_on: Callable[[], bool]) -> Waits:
    """Single messages from each probe to itself, in turn, as long as it goes on."""
    waits_ns: list[int] = []
    while goes_on() or not waits_ns:
        for client, packet in probes:
            began_ns = time.perf_counter_ns()
            client.sendall(packet)
            if client.recv(len(packet), socket.MSG_WAITALL) != packet:
                raise ConnectionError("a probe got something else than it sent")
            waits_ns.append(time.perf_counter_ns() - began_ns)
            time.sleep(PROBE_PAUSE_S)
    waits_ns.sort()
    p50, p99 = (waits_ns[int(len(waits_ns) * share)] / 1e6 for share in (0.5, 0.99))
    return Waits(messages=len(waits_ns), p50_ms=p50, p99_ms=p99, max_ms=waits_ns[-1] / 1e6)


def receive_all(port: int, topic_filter: bytes, size: int) -> tuple[int, float]:
    """Subscribe, and read bytes of messages: how many came, until those are there; the seconds."""
    with connected(port, b"flooded") as (client, packets):
        began = time.monotonic()
        client.sendall(encode_packet(0x82, b"\x00\x01" + encode_string(topic_filter) + b"\x00"))
        packets.read(5)
        received = 0
        while received < size and (count := len(client.recv(READ_BYTES))):
            received += count
        return received, time.monotonic() - began
