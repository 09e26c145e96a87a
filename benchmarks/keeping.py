"""What it takes to keep messages: for clients that are away, and retained; to restart, and to find them."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from disk import compact, size_bytes
from flood import Flood, measure_flood
from measurement import run_load
from peers.durable import CONNECT, SYNC, Broker, prepared

from tidemq.bench.load.frames import encode_packet, encode_publish, encode_string
from tidemq.bench.process import resident_bytes, resident_bytes_peak
from tidemq.bench.workload import Outcome, Workload

IDLE_LIMIT_S = 60.0  # a queue that is read back from disk may pause
SETTLE_S = 1.0  # after the last client has gone, before memory is read
PAYLOAD_BYTES = 100
RETAINING_PUBLISHERS = 10  # one topic of each is what the wildcard finds
LIVE_RUNS = 3  # the middle one counts
SEARCHES = 20
SURPLUS_S = 0.05  # after what is to be found, for what is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Messages to be kept."""

    clients: int
    messages: int  # each client
    window: int = 100  # of each publisher

    @property
    def total(self) -> int:
        return self.clients * self.messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Seconds from the start of the process to the first accepted connection."""

    empty_s: float  # with nothing kept
    killed_s: float  # after SIGKILL, right after the last message
    stop_s: float  # how long an orderly stop took
    stopped_s: float  # after that


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What keeping a number of messages showed."""

    load: Load
    stored: Outcome  # of publishing them
    rise_bytes: int  # of the broker's resident memory, once the publishers were gone
    rise_bytes_peak: int
    restart: Restart
    disk_bytes: int  # after the orderly stop
    disk_bytes_compacted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Messages for absent clients: how they were kept, and how they were delivered."""

    kept: Kept
    live: Outcome  # the same clients connected, before
    drained: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """Retained messages: how they were kept, and how they were found by a wildcard."""

    kept: Kept
    found: int  # messages that one search found
    found_ms: float  # from SUBSCRIBE to the last of them, median
    found_restarted_ms: float  # the first search after a restart
    flood: Flood  # all of them for one subscriber


def queue_workload(load: Load) -> Workload:
    """Pairs: each publisher has one subscriber, whose session stays."""
    return Workload(
        name="queue",
        publishers=load.clients,
        subscribers=load.clients,
        pairs=True,
        qos=1,
        messages=load.messages,
        payload_bytes=PAYLOAD_BYTES,
        random=True,
        persistent=True,
    )


def measure_queue(load: Load, seconds: float, parent: Path, reactors: int) -> Queued:
    """Subscribe, leave, have messages published; kill and stop the broker, start it each time; come back."""
    workload = queue_workload(load)
    with prepared(SYNC, parent, reactors=reactors) as broker:
        empty_s = broker.start()
        before_bytes = resident_bytes(broker.running.pid)
        first = run_load(replace(workload, messages=max(load.messages // 10, 1)), broker.running)
        rate_per_s = first.messages_per_s / load.clients
        sized = replace(workload, messages=max(int(rate_per_s * seconds), 1))
        runs = [run_load(sized, broker.running) for _run in range(LIVE_RUNS)]
        live = sorted(runs, key=lambda run: run.messages_per_s)[LIVE_RUNS // 2]
        kept = keep(
            load, replace(workload, part="enqueue", window=load.window), broker, empty_s, before_bytes
        )
        drained = run_load(replace(workload, part="drain"), broker.running, IDLE_LIMIT_S)
        return Queued(kept=kept, live=live, drained=drained)


def measure_retained(load: Load, parent: Path, reactors: int) -> Retained:
    """Publish retained messages to as many topics, restart the broker, find ten of them, then all."""
    workload = Workload(
        name="retained",
        publishers=load.clients,
        subscribers=load.clients,
        pairs=True,
        qos=1,
        messages=load.messages,
        topics=load.messages,
        payload_bytes=PAYLOAD_BYTES,
        random=True,
        retain=True,
        persistent=True,
        part="enqueue",
        window=load.window,
    )
    with prepared(SYNC, parent, reactors=reactors) as broker:
        empty_s = broker.start()
        before_bytes = resident_bytes(broker.running.pid)
        kept = keep(load, workload, broker, empty_s, before_bytes)
        found_restarted_ms, found = search(broker.running.port, 0)
        waits_ms = [search(broker.running.port, number)[0] for number in range(1, SEARCHES)]
        frame_bytes = len(encode_publish(replace(workload, qos=0), 0))
        flood = measure_flood(broker.running.port, b"bench/#", load.total, frame_bytes)
        return Retained(
            kept=kept,
            found=found,
            found_ms=sorted(waits_ms)[len(waits_ms) // 2],
            found_restarted_ms=found_restarted_ms,
            flood=flood,
        )


def keep(load: Load, workload: Workload, broker: Broker, empty_s: float, before_bytes: int) -> Kept:
    """Publish `workload`, read memory, kill and restart, stop, read and compact the disk, and restart."""
    stored = run_load(workload, broker.running, IDLE_LIMIT_S)
    time.sleep(SETTLE_S)
    rise_bytes = resident_bytes(broker.running.pid) - before_bytes
    rise_bytes_peak = resident_bytes_peak(broker.running.pid) - before_bytes
    broker.kill()
    killed_s = broker.start()
    stop_s = broker.stop()
    disk_bytes = size_bytes(broker.data)
    compact(broker.data, SYNC.store)
    disk_bytes_compacted = size_bytes(broker.data)
    restart = Restart(empty_s=empty_s, killed_s=killed_s, stop_s=stop_s, stopped_s=broker.start())
    return Kept(
        load=load,
        stored=stored,
        rise_bytes=rise_bytes,
        rise_bytes_peak=rise_bytes_peak,
        restart=restart,
        disk_bytes=disk_bytes,
        disk_bytes_compacted=disk_bytes_compacted,
    )


def search(port: int, number: int) -> tuple[float, int]:
    """Subscribe to topic `number` of all publishers: milliseconds to the last message, and how many."""
    topic_filter = encode_string(b"bench/+/%08x" % number)
    found, found_ns = 0, 0
    with socket.create_connection(("127.0.0.1", port), IDLE_LIMIT_S) as client:
        packets = client.makefile("rb")
        client.sendall(CONNECT)
        read_packet(packets)
        started_ns = time.perf_counter_ns()
        client.sendall(encode_packet(0x82, b"\x00\x01" + topic_filter + b"\x00"))
        try:
            while True:
                is_message = read_packet(packets) >> 4 == 3
                found, found_ns = found + is_message, time.perf_counter_ns()
                if found == RETAINING_PUBLISHERS:
                    client.settimeout(SURPLUS_S)
        except TimeoutError:
            return (found_ns - started_ns) / 1e6, found


def read_packet(packets: BinaryIO) -> int:
    """The first byte of the next packet, of less than 16 KiB; TimeoutError when none comes in time."""
    first, size = packets.read(2)
    if size > 127:
        size += (packets.read(1)[0] - 1) << 7
    packets.read(size)
    return int(first)
