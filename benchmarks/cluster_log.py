"""A node's log copied to another node's `nats-server`: operations a second, and how long one copy takes.

    python benchmarks/cluster_log.py [--records 8000] [--paced 1000] [--rounds 3] [--keep]

Two nodes on this machine, each with a `nats-server`. An operation has 100 bytes; they are ready, so nothing
is encoded here. One node gives records to its transport as fast as it takes them, at most 32 MiB ahead of
what is acknowledged, until all are. Both ways: each node has the other's copies, at the same time. Paced:
one record of one operation at a time, and the next 5 ms after it was acknowledged, as where one publisher
waits for PUBACK; the time is that from `copy` to `on_copied`, without what the store takes meanwhile.

Lazy: the servers sync once a second. Synced: they sync each message before they acknowledge it. CPU: of all
processes, both servers and this one. Load: the load average of a minute before each round; what these runs
cause themselves is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import machine

from tidemq.bench.process import cpu_s
from tidemq.cluster.transport.server import NatsServer, ServerSettings
from tidemq.cluster.transport.settings import Security
from tidemq.cluster.transport.transport import Transport

RESULTS = Path(__file__).parent / "results"
OPERATION_BYTES = 100
AHEAD_BYTES = 32 << 20
PAUSE_S = 0.005
WAIT_S = 120.0
GOAL_PER_S = 200_000
GOAL_P50_MS = 3.0
CASES = (("one way", 1), ("one way", 256), ("both ways", 256), ("one way", 2048))
SYNC_S = {"lazy": 1.0, "synced": 0.0}


class Node:
    """A server and a transport, and what the peer's server has of its log."""

    def __init__(self, folder: Path, incarnation: int, security: Security, sync_s: float) -> None:
        self.incarnation, self.copied = incarnation, 0
        self._changed = threading.Condition()
        settings = ServerSettings(
            folder=folder / f"{incarnation}", listen="127.0.0.1:0", security=security, sync_s=sync_s
        )
        self.server = NatsServer(settings)
        self.server.start()
        self.transport = Transport(
            cluster="bench",
            incarnation=incarnation,
            address=self.server.address,
            security=security,
            events=self,
        )
        self.transport.start()

    def stop(self) -> None:
        self.transport.close()
        self.server.stop()

    def on_copied(self, to: int, number: int) -> None:
        with self._changed:
            self.copied = number
            self._changed.notify_all()

    def on_copies_lost(self, to: int, first_needed: int) -> None:
        if first_needed != self.copied + 1:
            raise AssertionError(f"copies from {first_needed} on are lost")

    def on_problem(self, address: str, text: str) -> None:
        pass

    def on_met(self, peer: int, address: str) -> None:
        pass

    def on_connected(self, peer: int, address: str) -> None:
        pass

    def on_disconnected(self, peer: int) -> None:
        pass

    def on_message(self, kind: str, sender: int, body: bytes) -> None:
        pass

    def on_records(self, holder: int, incarnation: int, records: Sequence[bytes], problem: str) -> None:
        pass

    def await_copied(self, number: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.copied >= number, WAIT_S):
                raise TimeoutError(f"record {number} is not acknowledged")

    def copy_all(self, to: int, first: int, count: int, record: bytes) -> None:
        """Until all are acknowledged."""
        ahead = max(1, AHEAD_BYTES // len(record))
        step = max(1, min(ahead, 64))  # what a keeper has at a time
        for number in range(first, first + count, step):
            end = min(number + step, first + count)
            self.transport.copy(to, [(each, record) for each in range(number, end)])
            self.await_copied(end - 1 - ahead)
        self.await_copied(first + count - 1)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Operations copied as fast as they are taken."""

    sync: str
    way: str
    operations_per_record: int
    operations: int
    seconds: float
    own_cpu_s: float  # of this process, both nodes' transports
    servers_cpu_s: float
    load: float

    @property
    def per_s(self) -> float:
        return self.operations / self.seconds

    @property
    def cpu_us(self) -> float:
        """Of all processes, for an operation."""
        return (self.own_cpu_s + self.servers_cpu_s) / self.operations * 1e6


@dataclass(frozen=True, slots=True)
class Paced:
    """One record at a time, milliseconds."""

    sync: str
    records: int
    p50_ms: float
    p99_ms: float
    load: float


def connected(stack: ExitStack, sync: str) -> tuple[Node, Node]:
    folder = Path(stack.enter_context(TemporaryDirectory()))
    password = folder / "password"
    password.touch(mode=0o600)
    password.write_text(os.urandom(16).hex())
    nodes = []
    for incarnation in (1, 2):
        nodes.append(Node(folder, incarnation, Security(password_file=password), SYNC_S[sync]))
        stack.callback(nodes[-1].stop)
    one, two = nodes
    for node, peer in ((one, two), (two, one)):
        node.transport.set_peers({peer.incarnation: peer.server.address})
        node.transport.copy(peer.incarnation, [(1, b"first")])
        node.await_copied(1)
    return one, two


def measure(sync: str, way: str, operations: int, records: int) -> Throughput:
    load = os.getloadavg()[0]
    record = os.urandom(OPERATION_BYTES * operations)
    with ExitStack() as stack:
        one, two = connected(stack, sync)
        pairs = [(one, two), (two, one)][: 1 if way == "one way" else 2]
        pids = [pid for node in (one, two) if (pid := node.server.pid) is not None]
        own, servers, began = time.process_time(), sum(map(cpu_s, pids)), time.perf_counter()
        threads = [
            threading.Thread(target=node.copy_all, args=(peer.incarnation, 2, records, record))
            for node, peer in pairs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        if not all(node.copied == records + 1 for node, _ in pairs):
            raise SystemExit("not all records were acknowledged")
        return Throughput(
            sync,
            way,
            operations,
            operations * records * len(pairs),
            seconds,
            time.process_time() - own,
            sum(map(cpu_s, pids)) - servers,
            load,
        )


def measure_paced(sync: str, records: int) -> Paced:
    load = os.getloadavg()[0]
    record = os.urandom(OPERATION_BYTES)
    took_ms = []
    with ExitStack() as stack:
        one, two = connected(stack, sync)
        for number in range(2, records + 2):
            began = time.perf_counter()
            one.transport.copy(two.incarnation, [(number, record)])
            one.await_copied(number)
            took_ms.append((time.perf_counter() - began) * 1e3)
            time.sleep(PAUSE_S)
    hundredths = quantiles(took_ms, n=100)
    return Paced(sync, records, hundredths[49], hundredths[98], load)


def report(found: list[Throughput]) -> str:
    lines = [
        "| sync | | operations a record | operations a second | CPU for one | of it this process | load |",
        "|---|---|---|---|---|---|---|",
    ]
    for sync, way, operations in dict.fromkeys((e.sync, e.way, e.operations_per_record) for e in found):
        same = [e for e in found if (e.sync, e.way, e.operations_per_record) == (sync, way, operations)]
        rate, cpu = median(each.per_s for each in same), median(each.cpu_us for each in same)
        own = median(each.own_cpu_s / each.operations * 1e6 for each in same)
        load = max(each.load for each in same)
        lines.append(
            f"| {sync} | {way} | {operations:,} | {rate:,.0f} | {cpu:.2f} µs | {own:.2f} µs | {load:.1f} |"
        )
    return "\n".join(lines)


def report_paced(found: list[Paced]) -> str:
    lines = ["| sync | p50 | p99 | load |", "|---|---|---|---|"]
    for sync in dict.fromkeys(each.sync for each in found):
        same = [each for each in found if each.sync == sync]
        p50, p99 = median(each.p50_ms for each in same), median(each.p99_ms for each in same)
        lines.append(f"| {sync} | {p50:.2f} ms | {p99:.2f} ms | {max(each.load for each in same):.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--records", type=int, default=8000, help="of 256 operations; of others as many bytes"
    )
    parser.add_argument("--paced", type=int, default=1000, help="records one at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="write the result into benchmarks/results")
    given = parser.parse_args()
    found: list[Throughput] = []
    paced: list[Paced] = []
    for _ in range(given.rounds):
        for sync in SYNC_S:
            for way, operations in CASES:
                # records of one operation cost more each, so fewer of them
                records = max(1, given.records * 256 // operations // (16 if operations == 1 else 1))
                found.append(measure(sync, way, operations, records))
                print(found[-1], f"{found[-1].per_s:,.0f}/s", flush=True)
            paced.append(measure_paced(sync, given.paced))
            print(paced[-1], flush=True)
    print(report(found))
    print(report_paced(paced))
    lazy = [e.per_s for e in found if (e.sync, e.way, e.operations_per_record) == ("lazy", "one way", 256)]
    p50 = median(each.p50_ms for each in paced if each.sync == "lazy")
    print(f"goal: {GOAL_PER_S:,} operations a second, reached {median(lazy):,.0f}; ", end="")
    print(f"a copy within {GOAL_P50_MS:g} ms (p50), reached {p50:.2f} ms")
    if given.keep:
        keep(found, paced)


def keep(found: list[Throughput], paced: list[Paced]) -> None:
    where = machine.describe()
    name = f"{date.today()}-cluster-log-{where.commit[:7]}"
    values = {
        "machine": asdict(where),
        "throughput": [asdict(each) for each in found],
        "paced": [asdict(each) for each in paced],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
    parts = [
        f"# A node's log, copied, {date.today()}",
        report(found),
        "One record at a time:",
        report_paced(paced),
    ]
    (RESULTS / f"{name}.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
