"""Compare the client library with paho-mqtt, gmqtt, aiomqtt and mqttools: same broker, same run, 64 bytes a
message.

    python benchmarks/client.py            # some minutes; writes a page to results/
    python benchmarks/client.py --quick    # a look, nothing written
    python benchmarks/client.py --broker mosquitto
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

import machine
import pages
from client_peers import HOST, PAYLOAD, TOPIC
from peers.mosquitto import Mosquitto
from peers.peer import Conditions, await_listener

from tidemq.bench.report.numbers import spread
from tidemq.bench.report.tables import markdown_rows
from tidemq.client import Client
from tidemq.testing.ports import free_port

RESULTS = Path(__file__).parent / "results"
PEERS = Path(__file__).with_name("client_peers.py")
LIBRARIES = ("paho-mqtt", "gmqtt", "aiomqtt", "mqttools")
WITNESS = Path(__file__).with_name("client_witness.py")
WORKER_S = 120.0
COUNT_MIN = 2000
COUNT_MAX = 2_000_000
BROKERS = {
    "tidemq": "One TideMQ broker",
    "mosquitto": "Mosquitto, and a subscriber that counts what is published,",
}
GOALS = {"paho-mqtt": 10.0, "fastest": 5.0}

BARE = "a bare asyncio connection"  # what no client in Python can be cheaper than

# activity: QoS, and who does it: the name in the table, the function in client_peers.py
ACTIVITIES: dict[str, tuple[int, tuple[tuple[str, str], ...]]] = {
    "publish, QoS 0": (
        0,
        (
            ("tidemq publish_many", "tidemq_publish_many"),
            ("tidemq publish_nowait", "tidemq_publish_nowait"),
            ("tidemq await publish", "tidemq_publish"),
            ("tidemq.sync publish_nowait", "tidemq_sync_publish"),
            ("paho-mqtt", "paho_publish"),
            ("gmqtt", "gmqtt_publish"),
            ("aiomqtt", "aiomqtt_publish"),
            ("mqttools", "mqttools_publish"),
        ),
    ),
    "publish, QoS 1": (
        1,
        (
            ("tidemq publish_many", "tidemq_publish_many"),
            ("tidemq publish_nowait", "tidemq_publish_nowait"),
            ("tidemq await publish", "tidemq_publish"),
            ("tidemq.sync publish_nowait", "tidemq_sync_publish"),
            ("paho-mqtt", "paho_publish"),
            ("gmqtt", "gmqtt_publish"),
            ("aiomqtt", "aiomqtt_publish"),
            ("a bare asyncio task, woken", "asyncio_wake"),
        ),
    ),
    "receive, QoS 0": (
        0,
        (
            ("tidemq take", "tidemq_take"),
            ("tidemq async for", "tidemq_async_for"),
            ("tidemq callback", "tidemq_callback"),
            ("tidemq.sync for", "tidemq_sync_for"),
            ("paho-mqtt", "paho_receive"),
            ("gmqtt", "gmqtt_receive"),
            ("aiomqtt", "aiomqtt_receive"),
            ("mqttools", "mqttools_receive"),
            (BARE, "asyncio_receive"),
        ),
    ),
}
ACTIVITIES["receive, QoS 1"] = (
    1,
    tuple(each for each in ACTIVITIES["receive, QoS 0"][1] if each[0] not in ("mqttools", BARE)),
)
ACTIVITIES["publish, QoS 1, one at a time"] = (
    1,
    (
        ("tidemq await publish", "tidemq_one_by_one"),
        ("tidemq.sync publish", "tidemq_sync_one_by_one"),
        ("paho-mqtt", "paho_one_by_one"),
        ("aiomqtt", "aiomqtt_one_by_one"),
        (BARE, "asyncio_one_by_one"),
    ),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one library."""

    count: int
    seconds: float
    cpu_s: float  # of the client's process

    @property
    def per_s(self) -> float:
        return self.count / self.seconds

    @property
    def per_cpu_s(self) -> float:
        return self.count / self.cpu_s


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker in a process of its own. `GET /counters` at `admin_port` says how many messages it has
    received.
    """

    port: int
    admin_port: int


@contextmanager
def mosquitto(cores: set[int]) -> Iterator[Broker]:
    """Runs until the block ends, with one subscriber that counts."""
    peer = Mosquitto()
    peer.install()
    with peer.started(Conditions(cores=frozenset(cores))) as running:
        command = [sys.executable, str(WITNESS), str(running.port), TOPIC]
        witness = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert witness.stdout is not None
            yield Broker(running.port, int(witness.stdout.readline()))
        finally:
            witness.kill()
            witness.wait()


@contextmanager
def tidemq(cores: set[int]) -> Iterator[Broker]:
    """Runs until the block ends."""
    port, admin_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "tidemq.toml"
        config.write_text(f"admin_port = {admin_port}\n[limits]\nbackpressure_s = 60\n")
        command = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve", "--host", HOST]
        command += ["--port", str(port), "--store", "memory", "--reactors", "1", "--config", str(config)]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cores)
        )
        try:
            await_listener(process, port)
            await_listener(process, admin_port)
            yield Broker(port, admin_port)
        finally:
            process.terminate()
            process.wait()


def run(function: str, count: int, qos: int, broker: Broker, cores: set[int]) -> Sample:
    """One library's process, from its start to its report."""
    arguments = [function, str(count), str(qos), str(broker.port), str(broker.admin_port)]
    process = subprocess.Popen(
        [sys.executable, str(PEERS), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if line == "ready\n":
            asyncio.run(feed(broker.port, count, qos))
            line = process.stdout.readline()
        process.wait(WORKER_S)
        return Sample(**json.loads(line))
    except ValueError as error:
        raise RuntimeError(f"{function} gave no result: {line!r}") from error
    finally:
        process.kill()
        process.wait()


async def feed(port: int, count: int, qos: int) -> None:
    """Publishes what the library receives; the broker holds this publisher back where the library is
    slower."""
    async with Client(f"mqtt://{HOST}:{port}", close_timeout_s=WORKER_S) as client:
        await client.publish_many(((TOPIC, PAYLOAD) for _ in range(count)), qos=qos)
        await client.flush()


def measure(
    rounds: int, seconds: float, broker: Broker, cores: set[int], only: str
) -> dict[str, dict[str, list[Sample]]]:
    """All activities: a short run says how many messages take so many seconds, then all take turns."""
    found: dict[str, dict[str, list[Sample]]] = {}
    for activity, (qos, clients) in ACTIVITIES.items():
        if only not in activity:
            continue
        counts: dict[str, int] = {}
        for name, function in clients:
            counts[name] = sized(run(function, COUNT_MIN, qos, broker, cores), seconds / 4)
            counts[name] = sized(run(function, counts[name], qos, broker, cores), seconds)
        samples: dict[str, list[Sample]] = {name: [] for name, _ in clients}
        for _ in range(rounds):
            for name, function in clients:
                samples[name].append(run(function, counts[name], qos, broker, cores))
        found[activity] = samples
        print(table(activity, samples), flush=True)
    return found


def sized(sample: Sample, seconds: float) -> int:
    """How many messages take so many seconds, going by a shorter run."""
    return min(max(int(sample.per_s * seconds), COUNT_MIN), COUNT_MAX)


def table(activity: str, samples: dict[str, list[Sample]]) -> str:
    """Medians with their range, and how many times as fast as the peers."""
    lines = [f"## {activity}", ""]
    for measured, attribute in (("second", "per_s"), ("CPU-second of the client", "per_cpu_s")):
        rates = {name: [getattr(each, attribute) for each in runs] for name, runs in samples.items()}
        medians = {name: statistics.median(each) for name, each in rates.items()}
        paho = medians["paho-mqtt"]
        fastest, peer = max((medians[name], name) for name in LIBRARIES if name in medians)
        head = [f"messages per {measured}", "median (range)", "times paho-mqtt", f"times {peer}, the fastest"]
        rows = [
            [name, spread(each), f"{medians[name] / paho:.1f}", f"{medians[name] / fastest:.1f}"]
            for name, each in rates.items()
        ]
        lines.append(markdown_rows(head, rows))
    return "\n".join(lines)


def write_page(found: dict[str, dict[str, list[Sample]]], rounds: int, seconds: float, broker: str) -> None:
    """The page and all samples, below results/."""
    described = machine.describe()
    stem = f"{date.today()}-client-{'' if broker == 'tidemq' else broker + '-'}{described.commit.rstrip('+')}"
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    page = [
        "# The client library beside others",
        "",
        f"`python benchmarks/client.py --broker {broker} --rounds {rounds} --seconds {seconds:g}`, commit "
        f"{described.commit}.",
        f"{pages.measured_on(described)}. {versions}.",
        "",
        f"{BROKERS[broker]} on one core, the client's process on another; 64 bytes, one topic, MQTT 5.0.",
        f"Medians of {rounds} runs of about {seconds:g} s, in turns, and their range. Publishing ends",
        "when the broker has counted the last message and, at QoS 1, the client has its acknowledgement;",
        "receiving goes from the first message to the last. mqttools has no QoS 1.",
        f"Load of the machine over the last 5 minutes: {os.getloadavg()[1]:.1f} on {described.cores} cores.",
        "Where that is more than about 1.5, messages per second say little; those per CPU-second still do.",
        "",
        f"Goals: {GOALS['paho-mqtt']:g} times paho-mqtt and {GOALS['fastest']:g} times the fastest peer.",
        "",
        *(table(activity, samples) for activity, samples in found.items()),
    ]
    samples = {
        activity: {name: [asdict(each) for each in runs] for name, runs in samples.items()}
        for activity, samples in found.items()
    }
    pages.write(RESULTS / stem, "\n".join(page), described, {"samples": samples})


def main(arguments: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run, about")
    parser.add_argument("--broker", choices=list(BROKERS), default="tidemq")
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is written")
    parser.add_argument("--only", default="", help="activities whose name has this in it; nothing is written")
    options = parser.parse_args(arguments)
    rounds, seconds = (1, 0.3) if options.quick else (options.rounds, options.seconds)
    cores = sorted(os.sched_getaffinity(0))
    server_cores, client_cores = set(cores[1:2] or cores), {cores[0]}
    os.sched_setaffinity(0, server_cores)
    started = mosquitto(server_cores) if options.broker == "mosquitto" else tidemq(server_cores)
    with started as running:
        found = measure(rounds, seconds, running, client_cores, options.only)
    if not options.quick and not options.only:
        write_page(found, rounds, seconds, options.broker)


if __name__ == "__main__":
    main(sys.argv[1:])
