"""Measure what a cluster costs: two nodes beside one broker without a cluster, in one run, on this machine.

    python benchmarks/cluster.py [--rounds 5] [--seconds 1] [--parts across,copies,waits,log,failover]

Two nodes and the broker run side by side; one at a time is under load, in turn. CPU is that of all processes
of a side, brokers and `nats-server`s, until all that a run has caused is done: what a replica has put off
counts. The generator's does not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

import cluster_log
import cluster_report
import machine
import pages
from cluster_report import Failover, Found, Run, Wait
from disk import measure_disk
from measurement import bare, run_load
from peers import nodes as peers
from peers.nodes import ONE, TWO, TWO_SYNCED, Nodes, Setup
from workloads import ACROSS, PAIRS_ABSENT, Scenario

from tidemq.bench.load.board import Board
from tidemq.bench.load.generator import Generator
from tidemq.bench.load.share import Share
from tidemq.bench.peer.target import local_target
from tidemq.bench.shares.sharing import merge_outcomes
from tidemq.bench.workload import Outcome, Workload
from tidemq.client import Client
from tidemq.errors import TideMQError

RESULTS = Path(__file__).parent / "results"
PARTS = ("across", "copies", "waits", "log", "failover")
ONE_AT_A_TIME = Workload(name="one", qos=1, payload_bytes=16, persistent=True, window=1, messages=20)
INTEREST_S = 1.0  # after which the other node surely knows what subscribers of this one want
CONNECT_S = 60.0
CPU_S_MIN = 0.005  # less says nothing of how much many messages take
IDLE_S = 20.0  # without a message or acknowledgement: the rest is lost
DISK_RECORDS = 500
LOG_OPERATIONS = 256  # a record
LOG_RECORDS = 8000  # for each second of a run; more than may be under way
FAILOVER_S = 60.0
PUBLISH_S = 0.02  # between two messages to the subscriber whose node is killed
RETRY_S = 0.02  # between two attempts to connect


class Bench:
    """Carries out what was asked for. What could not be done is noted, and the rest goes on."""

    def __init__(self, rounds: int, seconds: float, reactors: int, parent: Path) -> None:
        self.rounds, self.seconds, self.reactors, self.parent = rounds, seconds, reactors, parent
        self.found = Found(disk=measure_disk(parent, DISK_RECORDS))

    @contextmanager
    def sides(self, *setups: Setup) -> Iterator[dict[Setup, Nodes]]:
        """All of them, side by side."""
        if not setups:
            yield {}
            return
        with (
            peers.started(setups[0], self.parent, reactors=self.reactors) as nodes,
            self.sides(*setups[1:]) as others,
        ):
            yield {setups[0]: nodes, **others}

    def across(self) -> None:
        """Publishers at one node, subscribers at the other."""
        with self.sides(ONE, TWO) as sides:
            for scenario in ACROSS:
                self.in_turn(scenario, sides, load_across)

    def copies(self) -> None:
        """Messages for sessions whose clients are away."""
        with self.sides(ONE, TWO) as sides:
            for nodes in sides.values():
                run_load(replace(PAIRS_ABSENT.workload, part="whole", messages=1), nodes.first)
            self.in_turn(PAIRS_ABSENT, sides, load_first, alike=True)

    def in_turn(
        self,
        scenario: Scenario,
        sides: Mapping[Setup, Nodes],
        load: cluster_report.Load,
        *,
        alike: bool = False,
    ) -> None:
        """Warm-ups, after which a run takes so many seconds of CPU on its side, however busy the machine is;
        then all sides in turn for some rounds. `alike`: all get as many messages as the slowest side.
        """
        workloads = {}
        for setup, nodes in sides.items():
            workload = scenario.workload
            for share in (0.2, 1.0):  # the first messages say little
                run = self.measure(scenario, setup, nodes, workload, load)
                factor = share * self.seconds / max(sum(run.cpu_s.values()), CPU_S_MIN)
                workload = replace(workload, messages=max(int(workload.messages * factor), 1))
            workloads[setup] = workload
        if alike:
            fewest = min(each.messages for each in workloads.values())
            workloads = {setup: replace(each, messages=fewest) for setup, each in workloads.items()}
        for _round in range(self.rounds):
            for setup, nodes in sides.items():
                run = self.measure(scenario, setup, nodes, workloads[setup], load)
                cluster_report.print_run(run)
                self.found.runs.append(run)

    def measure(
        self,
        scenario: Scenario,
        setup: Setup,
        nodes: Nodes,
        workload: Workload,
        load: cluster_report.Load,
    ) -> Run:
        nodes.rest()
        average = os.getloadavg()[0]
        before, outcome = load(workload, nodes)
        rested = nodes.rest()
        used = {what: used - before[what] for what, used in nodes.cpu_s().items()}
        return Run(scenario.name, scenario.text, setup.name, outcome, used, rested, average)

    def waits(self) -> None:
        """One message at a time, to a session whose client is away."""
        with self.sides(ONE, TWO, TWO_SYNCED) as sides:
            counts = {}
            for setup, nodes in sides.items():
                first = run_load(ONE_AT_A_TIME, nodes.first, IDLE_S)
                counts[setup] = int(first.sent_per_s * self.seconds) + 1
            for _round in range(self.rounds):
                for setup, nodes in sides.items():
                    nodes.rest()
                    average = os.getloadavg()[0]
                    workload = replace(ONE_AT_A_TIME, part="enqueue", messages=counts[setup])
                    outcome = run_load(workload, nodes.first, IDLE_S)
                    self.found.waits.append(Wait(setup.name, outcome, average))
                    cluster_report.print_wait(self.found.waits[-1])

    def log(self) -> None:
        """Operations through the log alone, as `cluster_log.py` measures them."""
        records = max(int(LOG_RECORDS * self.seconds), 16)
        for _round in range(self.rounds):
            for sync in cluster_log.SYNC_S:
                self.found.log.append(cluster_log.measure(sync, "one way", LOG_OPERATIONS, records))
                print(f"log, {sync}: {self.found.log[-1].per_s:,.0f} operations/s", flush=True)

    def failover(self) -> None:
        """The node of a subscriber is killed, with nodes of their own for each time."""
        for _round in range(self.rounds):
            with peers.started(TWO, self.parent, reactors=self.reactors) as nodes:
                average = os.getloadavg()[0]
                took = asyncio.run(fail_over(nodes))
                self.found.failovers.append(Failover(took, average))
                print(f"failover: {took:.2f} s", flush=True)

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Note what could not be done, and go on."""
        try:
            yield
        except (OSError, RuntimeError, TideMQError) as error:
            self.found.failures.append(f"{what}: {error}")
            print(self.found.failures[-1], flush=True)


def load_first(workload: Workload, nodes: Nodes) -> tuple[dict[str, float], Outcome]:
    """All clients at the first node. Also the CPU that had been used when all were connected."""
    generator = Generator(workload, local_target(nodes.first.port))
    try:
        generator.connect(CONNECT_S)
        return nodes.cpu_s(), bare(generator.run(IDLE_S))
    finally:
        generator.close()


def load_across(workload: Workload, nodes: Nodes) -> tuple[dict[str, float], Outcome]:
    """The same with publishers at the first node and subscribers at the last; a thread each, also where
    these are one node.
    """
    nobody = range(0)
    shares = [
        Share(range(workload.publishers), nobody, nobody),
        Share(nobody, range(workload.subscribers), nobody),
    ]
    board = Board(workload, shares)
    generators = [
        Generator(workload, local_target(running.port), board, number)
        for number, running in enumerate((nodes.first, nodes.last))
    ]
    try:
        for each in generators:
            each.connect(CONNECT_S)
        time.sleep(INTEREST_S)
        used, start_ns = nodes.cpu_s(), time.monotonic_ns() + 10_000_000
        with ThreadPoolExecutor(len(generators)) as pool:
            outcomes = list(pool.map(lambda each: each.run(IDLE_S, start_ns=start_ns), generators))
    finally:
        for each in generators:
            each.close()
    return used, bare(merge_outcomes(workload, outcomes))


async def fail_over(nodes: Nodes) -> float:
    """Seconds from `kill -9` of a subscriber's node until the subscriber has, at the other, a message that
    was published since. A publisher of QoS 1 goes on there.
    """
    dies, lives = nodes.brokers[0], nodes.brokers[1]
    settings = {"client_id": "subscriber", "clean_start": False, "session_expiry_s": 3600}
    killed_at = 0.0
    ended = asyncio.Event()

    async def publish() -> None:
        async with Client(f"mqtt://127.0.0.1:{lives.port}") as publisher:
            while not ended.is_set():
                with suppress(TideMQError):
                    await publisher.publish("failover", b"%.6f" % time.monotonic(), qos=1)
                await asyncio.sleep(PUBLISH_S)

    async with Client(f"mqtt://127.0.0.1:{dies.port}", reconnect=False, **settings) as subscriber:  # type: ignore[arg-type]
        await subscriber.subscribe("failover", qos=1)
        publishing = asyncio.create_task(publish())
        for _ in range(10):
            await anext(subscriber.messages)
        killed_at = time.monotonic()
        dies.kill()
    async with asyncio.timeout(FAILOVER_S):
        while True:
            with suppress(TideMQError):
                async with Client(
                    f"mqtt://127.0.0.1:{lives.port}",
                    reconnect=False,
                    **settings,  # type: ignore[arg-type]
                ) as subscriber:
                    while float((await anext(subscriber.messages)).payload) <= killed_at:
                        pass
                    break
            await asyncio.sleep(RETRY_S)
    took = time.monotonic() - killed_at
    ended.set()
    await publishing
    return took


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of CPU, of each run")
    parser.add_argument("--reactors", type=int, default=0, help="of each node; 0: together one for each core")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where nodes keep their data meanwhile; on a disk, not in memory",
    )
    parser.add_argument(
        "--output", type=Path, help="stem of the files to write; default: results/DATE-cluster-COMMIT"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


def main(arguments: Sequence[str]) -> None:
    options = parse_options(arguments)
    here = machine.describe()
    bench = Bench(options.rounds, options.seconds, options.reactors, options.data)
    for part in options.parts.split(","):
        with bench.failing(part):
            getattr(bench, part)()
    text = cluster_report.markdown(bench.found, here, options.rounds, options.seconds)
    print(text)
    stem = options.output or RESULTS / f"{date.today()}-cluster-{here.commit.rstrip('+')}"
    pages.write(stem, text, here, asdict(bench.found))


if __name__ == "__main__":
    main(sys.argv[1:])
