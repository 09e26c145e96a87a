"""What a bridge takes: messages of QoS 1 a second over TideMQ's bridge and over Mosquitto's, in turns.

    python benchmarks/bridge.py [--messages 200000] [--rounds 3] [--payload 64]

The broker with the bridge has one core for all that it does: it receives from publishers at QoS 1, keeps, and
passes on. The other side, a TideMQ in memory, and the publishers share the other core. Live: from the first
PUBLISH until the other side has received the last. Drained: the same messages waited, and then the other side
was there. Also per CPU-second of the bridging process, all its threads.
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
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from getpass import getuser
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import machine
from run import cores_of

from tidemq.client.sync import Client
from tidemq.testing.ports import free_port

RESULTS = Path(__file__).parent / "results"
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
max_inflight_messages 1000
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

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def per_cpu_s(self) -> float:
        return self.messages / max(self.cpu_s, 0.01)


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


def cpu_s(process: int) -> float:
    """Of all threads, to the nanosecond: ticks say nothing of so short a time."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


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
                    before_cpu, before, count = cpu_s(pid), time.monotonic(), received(admin)
                    publish()
                    wait_for(lambda: received(admin) >= count + messages, "all have crossed")
                return Round(broker, kind, messages, time.monotonic() - before, cpu_s(pid) - before_cpu)
        with started(command, near, near_cores) as pid:
            with publishers(near, messages, payload) as publish:
                publish()
            with started(far_command(far, admin), far, far_cores):
                wait_for(lambda: received(admin) > 0, "the bridge has connected")
                before_cpu, before, count = cpu_s(pid), time.monotonic(), received(admin)
                wait_for(lambda: received(admin) >= messages, "all have crossed")
                took = time.monotonic() - before
                return Round(broker, kind, messages - count, took, cpu_s(pid) - before_cpu)


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
    lines = ["| broker | | messages a second | per CPU-second |", "|---|---|---|---|"]
    for broker in NEAR:
        for kind in ("live", "drained"):
            found = [each for each in rounds if (each.broker, each.kind) == (broker, kind)]
            if found:
                rate, cpu = median(each.per_s for each in found), median(each.per_cpu_s for each in found)
                lines.append(f"| {broker} | {kind} | {rate:,.0f} | {cpu:,.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--keep", action="store_true", help="write the result into benchmarks/results")
    given = parser.parse_args()
    payload = bytes(given.payload)
    rounds = []
    cores = cores_of(1)
    os.sched_setaffinity(0, cores[1])
    for _ in range(given.rounds):
        for broker in NEAR:
            for kind in ("live", "drained"):
                found = measure(broker, kind, given.messages // PUBLISHERS * PUBLISHERS, payload, cores)
                rounds.append(found)
                print(
                    f"{broker}, {kind}: {found.per_s:,.0f}/s, {found.per_cpu_s:,.0f} per CPU-second",
                    flush=True,
                )
    print(report(rounds))
    reached = median(each.per_cpu_s for each in rounds if (each.broker, each.kind) == (NEAR[0], "live"))
    print(f"goal: {GOAL_PER_S:,} a CPU-second; reached: {reached:,.0f}")
    if given.keep:
        where = machine.describe()
        name = f"{date.today()}-bridge-{where.commit[:7]}"
        values = {"machine": asdict(where), "rounds": [asdict(each) for each in rounds]}
        (RESULTS / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
        (RESULTS / f"{name}.md").write_text(f"# Bridges, {date.today()}\n\n{report(rounds)}\n")


if __name__ == "__main__":
    main()
