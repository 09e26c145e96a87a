"""What it costs to be looked at: `/metrics` once a second, an open dashboard, and a list of all clients
walked again and again.

    python benchmarks/operations.py [--clients 100000] [--connected 9000] [--rounds 5] [--seconds 3]

One broker, one reactor on a core of its own with the control plane, the generator on another. Rounds
alternate, with and without somebody who looks. Figures: deliveries of QoS 0, 1:1, per CPU-second of the
reactor's thread; p99 at 5,000 messages a second; CONNECT with a password, to CONNACK. And of `/metrics`
itself, with all the clients there: time and lines.
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import os
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import machine
import pages
from measurement import run_load
from peers.durable import Broker
from run import cores_of, pinned

from tidemq.bench.load.frames import encode_packet, encode_string
from tidemq.bench.report.numbers import spread
from tidemq.bench.workload import Workload
from tidemq.testing.ports import free_port

RESULTS = Path(__file__).parent / "results"
BATCH = 100  # connections at once: fewer than a listening socket's queue holds
WAIT_S = 60.0
PACED = 5000.0  # messages a second
LOGINS = 100  # in a round
SLICE_NS = 100_000  # of the generator, as of a reactor
GOALS = {"per CPU-second": (0.97, ">="), "p99": (1.2, "<="), "CONNECT": (1.5, "<=")}
SETTINGS = """\
admin_port = {admin}
[limits]
connections_max = 1_000_000
flapping_connects_max = 0
[[listeners]]
name = "users"
host = "127.0.0.1"
port = {users}
authenticator = "static"
[listeners.authenticator_options.users]
ann = "secret"
"""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round showed."""

    per_cpu_s: float
    p99_us: float
    login_us: float  # the median


@dataclass(slots=True)
class Looker:
    """Somebody who looks, on a thread of its own, while the block runs."""

    port: int
    scrapes: int = 0
    walks: float = 0.0
    events: int = 0
    listed: int = 0

    @contextmanager
    def looking(self) -> Iterator[None]:
        ended = threading.Event()
        tasks = (self._scrape, self._walk, self._follow)

        def look(task: Callable[[threading.Event], None]) -> None:
            ask_for_slices(0)
            task(ended)

        threads = [threading.Thread(target=look, args=(each,)) for each in tasks]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def _scrape(self, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            get(self.port, "/metrics")
            self.scrapes += 1

    def _follow(self, ended: threading.Event) -> None:
        """As the page does: an event a second, and the alarms now and then."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("GET", "/api/v1/events")
        answer = connection.getresponse()
        while not ended.is_set():
            if answer.readline().startswith(b"data: "):
                self.events += 1
                if self.events % 5 == 0:
                    get(self.port, "/alarms")
        connection.close()
        answer.close()

    def _walk(self, ended: threading.Event) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        cursor = ""
        while not ended.is_set():
            connection.request("GET", f"/api/v1/clients?limit=1000&cursor={cursor}")
            # as cheaply as can be: it shares the generator's core
            page = connection.getresponse().read()
            self.listed += page.count(b'"client_id"')
            cursor = json.loads(page[page.rfind(b":") + 1 : -1]) or ""
            self.walks += not cursor


def ask_for_slices(slice_ns: int) -> None:
    """Of this thread, and those that it starts; 0: as usual. The generator shares a core with those who look:
    what they cost the broker is to be seen, not what they cost the generator. Of Linux 6.12 and newer.
    """
    number = {"x86_64": 314, "aarch64": 274}[os.uname().machine]  # sched_setattr(2)
    attributes = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, os.nice(0), 0, slice_ns, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", path)
    return connection.getresponse().read()


def come(port: int, first: int, count: int, *, stay: bool) -> list[socket.socket]:
    """Clients with sessions that last, a hundred at a time; those that stay, or none."""
    there: list[socket.socket] = []
    for start in range(first, first + count, BATCH):
        clients = [socket.create_connection(("127.0.0.1", port), WAIT_S) for _ in range(BATCH)]
        for number, client in enumerate(clients, start):
            name = encode_string(b"device-%07d" % number)
            client.sendall(encode_packet(0x10, encode_string(b"MQTT") + b"\x04\x00\0\0" + name))
        for client in clients:
            if client.recv(4)[:2] != b"\x20\x02":
                raise ConnectionError("a client was not let in")
        if stay:
            there += clients
            continue
        for client in clients:
            client.sendall(b"\xe0\0")
            client.close()
    return there


def login_us(port: int) -> float:
    """CONNECT with user and password, to CONNACK: the median of some, one after the other."""
    waits = []
    for number in range(LOGINS):
        name, user = encode_string(b"login-%d" % number), encode_string(b"ann")
        packet = encode_packet(
            0x10, encode_string(b"MQTT") + b"\x04\xc2\0\0" + name + user + encode_string(b"secret")
        )
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.perf_counter()
            client.sendall(packet)
            if client.recv(4) != b"\x20\x02\0\0":
                raise ConnectionError("a user was not let in")
            waits.append(time.perf_counter() - began)
    return median(waits) * 1e6


def thread_cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds of each thread."""
    found = {}
    for account in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        found[account.parent.name] = int(account.read_text().split()[0]) / 1e9
    return found


def reactor_of(broker: Broker) -> str:
    """The thread that a load keeps busy."""
    before = thread_cpu_s(broker.running.pid)
    run_load(Workload(name="warm", messages=2_000_000), broker.running)
    after = thread_cpu_s(broker.running.pid)
    return max(before, key=lambda thread: after[thread] - before[thread])


def measured(broker: Broker, thread: str, users: int, seconds: float) -> Round:
    before = thread_cpu_s(broker.running.pid)[thread]
    outcome = run_load(Workload(name="one", messages=int(2_000_000 * seconds)), broker.running)
    cpu_s = thread_cpu_s(broker.running.pid)[thread] - before
    assert outcome.intact, outcome
    messages = int(PACED * seconds * 2)  # twice as long: one per cent of the messages come as they begin
    paced = Workload(name="paced", messages=messages, rate_per_s=PACED, one_by_one=True)
    slow = run_load(paced, broker.running)
    assert slow.intact, slow
    assert slow.latency is not None
    return Round(outcome.received / cpu_s, slow.latency.p99_us, login_us(users))


def of_metrics(admin: int) -> tuple[list[float], int]:
    """Milliseconds of some answers, and lines of one."""
    waits = []
    for _ in range(20):
        began = time.perf_counter()
        text = get(admin, "/metrics")
        waits.append((time.perf_counter() - began) * 1e3)
    return waits, text.count(b"\n")


@contextmanager
def broker_of(connected: int, clients: int) -> Iterator[tuple[Broker, int, int]]:
    """With so many clients, so many of them there; and the ports of admin and of users."""
    with TemporaryDirectory(prefix="tidemq-bench-") as name:
        folder, port, admin, users = Path(name), free_port(), free_port(), free_port()
        settings = folder / "settings.toml"
        settings.write_text(SETTINGS.format(admin=admin, users=users))
        command = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve", "--reactors", "1"]
        command += ["--config", str(settings), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--log-level", "error", "--store", "memory"]
        broker = Broker(command, port, folder / "data")
        with pinned(cores_of(1)[0]):
            broker.start()
        try:
            come(port, 0, clients - connected, stay=False)
            there = come(port, clients - connected, connected, stay=True)
            yield broker, admin, users
            del there
        finally:
            broker.stop()


def lines_of(without: list[Round], looked_at: list[Round]) -> list[list[str]]:
    """A line for each figure: both medians, the ratio of each pair of rounds, the goal."""
    found = []
    for what, field in (("per CPU-second", "per_cpu_s"), ("p99", "p99_us"), ("CONNECT", "login_us")):
        plain, looked = ([getattr(each, field) for each in rounds] for rounds in (without, looked_at))
        ratios = [with_ / bare for with_, bare in zip(looked, plain, strict=True)]
        goal, sign = GOALS[what]
        met = median(ratios) >= goal if sign == ">=" else median(ratios) <= goal
        found.append(
            [what, spread(plain), spread(looked), spread(ratios), f"{sign} {goal}", pages.verdict(met)]
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100_000, help="sessions, in hundreds")
    parser.add_argument("--connected", type=int, default=9_000, help="of these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each part of a round, about")
    parser.add_argument(
        "--output", type=Path, help="stem of the files; default: results/DATE-operations-COMMIT"
    )
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    here = machine.describe()
    without: list[Round] = []
    looked_at: list[Round] = []
    with (
        broker_of(options.connected, options.clients) as (broker, admin, users),
        pinned(cores_of(1)[1]),
    ):
        ask_for_slices(SLICE_NS)
        thread, looker = reactor_of(broker), Looker(admin)
        for number in range(options.rounds + 1):
            bare = measured(broker, thread, users, options.seconds)
            with looker.looking():
                looked = measured(broker, thread, users, options.seconds)
            print(f"without: {bare}\n   with: {looked}", flush=True)
            if number:
                without.append(bare)
                looked_at.append(looked)
        waits, count = of_metrics(admin)
    head = ["", "without", "with", "ratio", "goal", ""]
    rows = lines_of(without, looked_at)
    rows.append(["/metrics, ms", spread(waits), "", "", "<= 20", pages.verdict(median(waits) <= 20)])
    rows.append(["/metrics, lines", f"{count:,}", "", "", "<= 2,000", pages.verdict(count <= 2000)])
    note = (
        f"{options.clients:,} sessions, {options.connected:,} of them connected; medians of {options.rounds} "
        f"rounds (lowest-highest), alternating. Who looked: {looker.scrapes} scrapes, {looker.walks:.0f} "
        f"walks through all clients, {looker.listed:,} rows; a dashboard took "
        f"{looker.events} events. p99 and CONNECT in µs."
    )
    text = "\n".join(
        [
            "# Being looked at",
            "",
            f"{pages.measured_on(here, os.cpu_count())}.",
            "",
            *pages.part("What it costs", note, head, rows),
            "",
        ]
    )
    print(text)
    stem = options.output or RESULTS / f"{date.today()}-operations-{here.commit.rstrip('+')}"
    pages.write(stem, text, here, {"without": without, "with": looked_at, "metrics_ms": waits})


if __name__ == "__main__":
    main()
