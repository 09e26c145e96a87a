"""What a bridge takes: messages of QoS 1 a second over TideMQ's bridge and over Mosquitto's, in turns.

    python benchmarks/bridge.py [--messages 200000] [--rounds 3] [--payload 64]

The broker with the bridge has one core for all that it does: it receives from publishers at QoS 1, keeps, and
passes on. The other side, a TideMQ in memory, and the publishers share the other core. Live: from the first
PUBLISH until the other side has received the last. Drained: the same messages waited, and then the other side
was there. Also per CPU-second of the bridging process, all its threads. "Had no core": the share of the time
for which they could have run while others had their core. Where it is large, messages a second say nothing,
and only those per CPU-second count.

Mosquitto has no limits on what is in flight or queued, and TCP_NODELAY on its listeners. On the socket of its
bridge it does not set that (2.0.11), and has no option for it.

How long a message takes over the bridge: from when it was due to be published on the near side until a
subscriber of the far side has it, at a steady rate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from getpass import getuser
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import machine
from run import cores_of

from tidemq.bench.load.board import Board
from tidemq.bench.load.generator import Generator
from tidemq.bench.load.share import Share as Clients
from tidemq.bench.peer.target import local_target
from tidemq.bench.shares.sharing import merge_outcomes
from tidemq.bench.workload import Workload
from tidemq.client.sync import Client
from tidemq.testing.ports import free_port

RESULTS = Path(__file__).parent / "results"
# of messages whose time over the bridge is measured: nearly idle, and with something to do
RATES_PER_S = (50, 5_000)
PACED_S = 5.0
GOAL_PER_S = 50_000
WAIT_S = 300.0
PUBLISHERS = 4
TICK_S = 0.02
TIDEMQ = """\
[limits]
queued_messages_max = 10_000_000
queued_bytes_max = 10_000_000_000
[[bridges]]
name = "far"
addresses = ["mqtt://127.0.0.1:{far}"]
reconnect_s = 0.1
reconnect_max_s = 0.2
[[bridges.topics]]
filter = "#"
qos = 1
"""
MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
log_type error
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay true
persistence {persistence}
persistence_location {folder}/
user {user}
connection far
address 127.0.0.1:{far}
restart_timeout 1
cleansession false
bridge_protocol_version mqttv311
try_private false
notifications false
topic # out 1
"""
NEAR = ("tidemq memory", "tidemq rocksdb sync", "tidemq rocksdb interval", "mosquitto")


@dataclass(frozen=True, slots=True)
class Round:
    """One broker's messages over its bridge."""

    broker: str
    kind: str  # live, or drained
    messages: int
    seconds: float
    cpu_s: float
    kept_s: float  # for which its threads could have run, and others had the core

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def per_cpu_s(self) -> float:
        return self.messages / max(self.cpu_s, 0.01)


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long messages took over one broker's bridge."""

    broker: str
    rate_per_s: int
    p50_us: float
    p99_us: float


@contextmanager
def started(command: list[str], port: int, cores: set[int]) -> Iterator[int]:
    """A broker that listens; its process."""
    process = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    try:
        wait_for(lambda: is_open(port), f"{command[0]} listens")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def is_open(port: int) -> bool:
    try:
        with Client(f"mqtt://127.0.0.1:{port}", reconnect=False):
            return True
    except Exception:  # noqa: BLE001 - it does not listen yet, or does not answer yet
        return False


def wait_for(holds: object, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():  # type: ignore[operator]
        if time.monotonic() > deadline:
            sys.exit(f"after {WAIT_S:.0f} s still not: {what}")
        time.sleep(TICK_S)


def far_command(port: int, admin: int) -> list[str]:
    command = [str(Path(sys.executable).parent / "tidemq"), "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--admin-port", str(admin), "--store", "memory", "--reactors", "1"]
    return [*command, "--log-level", "error"]


def near_command(broker: str, port: int, far: int, folder: Path) -> list[str]:
    settings = folder / "settings"
    if broker == "mosquitto":
        text = MOSQUITTO.format(port=port, far=far, folder=folder, user=getuser(), persistence="true")
        settings.write_text(text)
        return ["mosquitto", "-c", str(settings)]
    settings.write_text(TIDEMQ.format(far=far))
    _, store, *durability = broker.split()
    command = [str(Path(sys.executable).parent / "tidemq"), "serve", "--host", "127.0.0.1"]
    command += ["--config", str(settings), "--port", str(port), "--reactors", "1", "--log-level", "error"]
    command += ["--store", store, "--data", str(folder / "data")]
    return command + (["--durability", durability[0]] if durability else [])


def received(admin: int) -> int:
    """Messages that the other side has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/counters", timeout=60) as answer:
        count: int = json.load(answer)["messages_received"]
    return count


@dataclass(frozen=True, slots=True)
class Share:
    """What a process had of its core, all threads, to the nanosecond: ticks say nothing of short times."""

    used_s: float
    kept_s: float

    def since(self, before: Share) -> tuple[float, float]:
        return self.used_s - before.used_s, self.kept_s - before.kept_s


def share_of(process: int) -> Share:
    rows = [(task / "schedstat").read_text().split() for task in Path(f"/proc/{process}/task").iterdir()]
    return Share(sum(int(row[0]) for row in rows) / 1e9, sum(int(row[1]) for row in rows) / 1e9)


PUBLISHER = """\
import sys
from tidemq.client.sync import Client
port, count, size, name = sys.argv[1:]
with Client(f"mqtt://127.0.0.1:{port}", inflight_max=1000, buffer_messages_max=10000) as client:
    print("ready", flush=True)
    sys.stdin.readline()
    client.publish_many(((f"bench/{name}", bytes(int(size))) for _ in range(int(count))), qos=1)
"""


@contextmanager
def publishers(port: int, messages: int, payload: bytes) -> Iterator[Callable[[], None]]:
    """Several clients that are connected; calling what is given publishes all, and waits for PUBACK."""
    words = [sys.executable, "-c", PUBLISHER, str(port), str(messages // PUBLISHERS), str(len(payload))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([*words, str(number)], **pipes) for number in range(PUBLISHERS)]  # type: ignore[call-overload]
    for process in running:
        process.stdout.readline()

    def publish() -> None:
        for process in running:
            process.stdin.write("now\n")
            process.stdin.flush()
        for process in running:
            if process.wait():
                sys.exit("a publisher failed")

    yield publish


def measure(broker: str, kind: str, messages: int, payload: bytes, cores: tuple[set[int], set[int]]) -> Round:
    """One round, with brokers of its own; `cores`: of the broker with the bridge, and of all else."""
    near_cores, far_cores = cores
    far, admin, near = free_port(), free_port(), free_port()
    with TemporaryDirectory() as folder:
        command = near_command(broker, near, far, Path(folder))
        if kind == "live":
            with started(far_command(far, admin), far, far_cores), started(command, near, near_cores) as pid:
                probe(near, admin)
                with publishers(near, messages, payload) as publish:
                    share, before, count = share_of(pid), time.monotonic(), received(admin)
                    publish()
                    wait_for(lambda: received(admin) >= count + messages, "all have crossed")
                took = time.monotonic() - before
                return Round(broker, kind, messages, took, *share_of(pid).since(share))
        with started(command, near, near_cores) as pid:
            with publishers(near, messages, payload) as publish:
                publish()
            with started(far_command(far, admin), far, far_cores):
                wait_for(lambda: received(admin) > 0, "the bridge has connected")
                share, before, count = share_of(pid), time.monotonic(), received(admin)
                wait_for(lambda: received(admin) >= messages, "all have crossed")
                took = time.monotonic() - before
                return Round(broker, kind, messages - count, took, *share_of(pid).since(share))


def measure_waiting(broker: str, rate_per_s: int, cores: tuple[set[int], set[int]]) -> Waiting:
    """The same for messages at a steady rate. Publisher and subscriber are threads of this process."""
    near_cores, far_cores = cores
    far, admin, near = free_port(), free_port(), free_port()
    workload = Workload(
        name="bridge", prefix="bench", qos=1, messages=int(rate_per_s * PACED_S), rate_per_s=rate_per_s
    )
    with TemporaryDirectory() as folder:
        command = near_command(broker, near, far, Path(folder))
        with started(far_command(far, admin), far, far_cores), started(command, near, near_cores):
            probe(near, admin)
            nobody, one = range(0), range(1)
            board = Board(workload, [Clients(one, nobody, nobody), Clients(nobody, one, nobody)])
            generators = [
                Generator(workload, local_target(port), board, number)
                for number, port in enumerate((near, far))
            ]
            for each in generators:
                each.connect()
            start_ns = time.monotonic_ns() + 10_000_000
            with ThreadPoolExecutor(len(generators)) as pool:
                outcomes = list(pool.map(lambda each: each.run(start_ns=start_ns), generators))
            for each in generators:
                each.close()
    found = merge_outcomes(workload, outcomes)
    if found.latency is None or not found.intact:
        sys.exit(f"{broker}: not all messages have crossed once: {found}")
    return Waiting(broker, rate_per_s, found.latency.p50_us, found.latency.p99_us)


def probe(near: int, admin: int) -> None:
    """Waits until the bridge is there."""

    def crosses() -> bool:
        with Client(f"mqtt://127.0.0.1:{near}") as client:
            client.publish("probe", b"", qos=1)
        time.sleep(TICK_S)
        return received(admin) > 0

    wait_for(crosses, "the bridge has connected")
    time.sleep(1.0)


def report(rounds: list[Round]) -> str:
    lines = ["| broker | | messages a second | per CPU-second | had no core |", "|---|---|---|---|---|"]
    for broker in NEAR:
        for kind in ("live", "drained"):
            found = [each for each in rounds if (each.broker, each.kind) == (broker, kind)]
            if found:
                rate, cpu = median(each.per_s for each in found), median(each.per_cpu_s for each in found)
                kept = median(each.kept_s / each.seconds for each in found)
                lines.append(f"| {broker} | {kind} | {rate:,.0f} | {cpu:,.0f} | {kept:.0%} |")
    return "\n".join(lines)


def report_waiting(found: list[Waiting]) -> str:
    lines = ["| broker | messages a second | p50 | p99 |", "|---|---|---|---|"]
    for broker in NEAR:
        for rate in RATES_PER_S:
            same = [each for each in found if (each.broker, each.rate_per_s) == (broker, rate)]
            if same:
                p50, p99 = median(each.p50_us for each in same), median(each.p99_us for each in same)
                lines.append(f"| {broker} | {rate:,} | {p50:,.0f} µs | {p99:,.0f} µs |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--brokers", default=",".join(NEAR), help="of those with the bridge, by commas")
    parser.add_argument("--keep", action="store_true", help="write the result into benchmarks/results")
    given = parser.parse_args()
    payload = bytes(given.payload)
    rounds, waiting = [], []
    brokers = given.brokers.split(",")
    cores = cores_of(1)
    os.sched_setaffinity(0, cores[1])
    for _ in range(given.rounds):
        for broker in brokers:
            for rate in RATES_PER_S:
                waiting.append(measure_waiting(broker, rate, cores))
                print(waiting[-1], flush=True)
            for kind in ("live", "drained"):
                found = measure(broker, kind, given.messages // PUBLISHERS * PUBLISHERS, payload, cores)
                rounds.append(found)
                print(
                    f"{broker}, {kind}: {found.per_s:,.0f}/s, {found.per_cpu_s:,.0f} per CPU-second; of "
                    f"{found.seconds:.2f} s it ran {found.cpu_s:.2f} and had no core {found.kept_s:.2f}",
                    flush=True,
                )
    print(report(rounds))
    print(report_waiting(waiting))
    reached = [each.per_cpu_s for each in rounds if (each.broker, each.kind) == (NEAR[0], "live")]
    print(f"goal: {GOAL_PER_S:,} a CPU-second; reached: {median(reached or [0]):,.0f}")
    if given.keep:
        where = machine.describe()
        name = f"{date.today()}-bridge-{where.commit[:7]}"
        values = {"machine": asdict(where), "rounds": [asdict(each) for each in rounds]}
        values["waiting"] = [asdict(each) for each in waiting]
        (RESULTS / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
        text = f"# Bridges, {date.today()}\n\n{report(rounds)}\n\n{report_waiting(waiting)}\n"
        (RESULTS / f"{name}.md").write_text(text)


if __name__ == "__main__":
    main()
