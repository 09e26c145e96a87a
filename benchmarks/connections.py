"""What connections cost: the broker's CPU for each that comes and that goes, how many a second, memory.

Clients of 3.1.1 with clean sessions come by hundreds, send CONNECT and wait for CONNACK, until `--count` are
there; then they stay idle, then all go. Brokers take turns, one core each, the generator on another; what
counts is the median of the rounds.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from measurement import SETTLE_IDLE_S
from peers import PEERS
from peers.peer import Conditions, Running
from run import cores_of, pinned

from tidemq.bench.load.frames import encode_packet, encode_string
from tidemq.bench.process import cpu_s, resident_bytes

BATCH = 100  # fewer than a listening socket's queue holds
WAIT_S = 60.0
HEAD = "broker        connects/s   CPU µs to come   CPU µs to go   bytes idle"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one connection, in one round."""

    come_s: float
    come_cpu_s: float
    go_cpu_s: float
    idle_bytes: float


def connected(port: int, first: int) -> list[socket.socket]:
    """A hundred that come at once, each with its CONNACK."""
    clients = [socket.socket() for _ in range(BATCH)]
    for client in clients:
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect(("127.0.0.1", port))
    for number, client in enumerate(clients, first):
        client.settimeout(WAIT_S)
        name = encode_string(b"client%d" % number)
        client.sendall(encode_packet(0x10, encode_string(b"MQTT") + b"\x04\x02\0\0" + name))
    for client in clients:
        if client.recv(4) != b"\x20\x02\0\0":
            raise ConnectionError("a client was not let in")
    return clients


def measured(running: Running, count: int) -> Cost:
    """One round: all come, stay idle for a moment, go."""
    time.sleep(SETTLE_IDLE_S)
    memory_bytes, cpu, began = resident_bytes(running.pid), cpu_s(running.pid), time.monotonic()
    clients: list[socket.socket] = []
    while len(clients) < count:
        clients += connected(running.port, len(clients))
    come_s, come_cpu_s = time.monotonic() - began, cpu_s(running.pid) - cpu
    time.sleep(SETTLE_IDLE_S)
    idle_bytes, cpu = resident_bytes(running.pid) - memory_bytes, cpu_s(running.pid)
    for client in clients:
        client.close()
    time.sleep(SETTLE_IDLE_S)
    each = 1 / len(clients)
    return Cost(come_s * each, come_cpu_s * each, (cpu_s(running.pid) - cpu) * each, idle_bytes * each)


def row(name: str, costs: Sequence[Cost]) -> str:
    """Medians; of the memory that of the first round, in which none can be used again."""
    rate = 1 / statistics.median(cost.come_s for cost in costs)
    come, go = (
        statistics.median(each) for each in zip(*((c.come_cpu_s, c.go_cpu_s) for c in costs), strict=True)
    )
    return f"{name:12} {rate:11,.0f} {come * 1e6:16.1f} {go * 1e6:14.1f} {costs[0].idle_bytes:12,.0f}"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--brokers", default="tidemq,mosquitto", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--count", type=int, default=10_000, help="connections, in hundreds")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    broker_cores, generator_cores = cores_of(1)
    conditions = Conditions(cores=frozenset(broker_cores), reactors=1, nodelay=True, frame_bytes=64)
    costs: dict[str, list[Cost]] = {name: [] for name in options.brokers.split(",")}
    with ExitStack() as stack:
        for name in costs:
            PEERS[name].install()
        running = {name: stack.enter_context(PEERS[name].started(conditions)) for name in costs}
        stack.enter_context(pinned(generator_cores))
        for _ in range(options.rounds):
            for name, broker in running.items():
                costs[name].append(measured(broker, options.count))
    print(HEAD, f"  ({options.count:,} connections, {os.cpu_count()} cores, medians of {options.rounds})")
    for name, found in costs.items():
        print(row(name, found))


if __name__ == "__main__":
    main()
