"""Measure what it costs to keep messages on disk, in one run, on this machine.

Rates of persistent sessions with each store and durability, and Mosquitto's; the wait for one
acknowledgement; queues for absent clients, retained messages, and restarts on them.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

import durable_report
import machine
import pages
from disk import measure_disk
from durable_report import Results, Wait
from keeping import Load, measure_queue, measure_retained
from measurement import measure, run_load, sized
from peers import PEERS
from peers.durable import VARIANTS, Variant, started
from peers.peer import Running
from workloads import PERSISTENT, Scenario

from tidemq.bench.load.generator import Generator
from tidemq.bench.peer.target import local_target
from tidemq.bench.workload import Workload

RESULTS = Path(__file__).parent / "results"
PARTS = ("rates", "waits", "queues", "retained")
ONE_AT_A_TIME = Workload(name="one", qos=1, payload_bytes=16, persistent=True, window=1, messages=50)
DISK_RECORDS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run."""

    parts: Sequence[str]
    variants: Sequence[Variant]
    rounds: int
    seconds: float  # each run
    queues: Sequence[Load]
    retained: Load
    reactors: int  # TideMQ's; 0: its default
    parent: Path  # where the brokers' directories are made


class Run:
    """Carries out a plan. What a broker could not do is noted, and the rest goes on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.results = Results(disk=measure_disk(plan.parent, DISK_RECORDS))

    def all(self) -> None:
        if {"rates", "waits"} & set(self.plan.parts):
            with self.brokers() as brokers:
                if "waits" in self.plan.parts:
                    self.waits(brokers)
                if "rates" in self.plan.parts:
                    for scenario in PERSISTENT:
                        self.rates(scenario, brokers)
        if "queues" in self.plan.parts:
            for load in self.plan.queues:
                with self.failing(f"{load.clients:,} absent clients"):
                    queued = measure_queue(load, self.plan.seconds, self.plan.parent, self.plan.reactors)
                    self.results.queues.append(queued)
                    print(*durable_report.queue_lines([queued]), sep="\n", flush=True)
        if "retained" in self.plan.parts:
            with self.failing("retained messages"):
                retained = measure_retained(self.plan.retained, self.plan.parent, self.plan.reactors)
                self.results.retained.append(retained)
                print(*durable_report.retained_lines([retained]), sep="\n", flush=True)

    @contextmanager
    def brokers(self) -> Iterator[dict[str, Running]]:
        """All of them side by side, one process each for the whole run; by name."""
        brokers: dict[str, Running] = {}
        with ExitStack() as stack:
            for variant in self.plan.variants:
                with self.failing(f"start of {variant.name}"):
                    running = stack.enter_context(
                        started(variant, self.plan.parent, reactors=self.plan.reactors)
                    )
                    brokers[variant.name] = running
            yield brokers

    def rates(self, scenario: Scenario, brokers: Mapping[str, Running]) -> None:
        """A warm-up each, then all brokers in turn for some rounds."""
        workloads: dict[str, Workload] = {}
        for name, running in brokers.items():
            with self.failing(f"{scenario.name}, {name}"):
                forget_sessions(running)
                if scenario.workload.part == "enqueue":
                    run_load(replace(scenario.workload, part="whole", messages=1), running)
                first = measure(scenario, scenario.workload, name, self.plan.reactors, running)
                workloads[name] = sized(scenario.workload, first, self.plan.seconds)
        for _round in range(self.plan.rounds):
            for name, workload in list(workloads.items()):
                del workloads[name]
                with self.failing(f"{scenario.name}, {name}"):
                    sample = measure(scenario, workload, name, self.plan.reactors, brokers[name])
                    durable_report.print_sample(sample)
                    self.results.rates.append(sample)
                    workloads[name] = workload

    def waits(self, brokers: Mapping[str, Running]) -> None:
        """One message at a time to each broker, in turn for some rounds: the subscriber there, then away."""
        for absent in (False, True):
            workload = replace(ONE_AT_A_TIME, part="enqueue") if absent else ONE_AT_A_TIME
            counts: dict[str, int] = {}
            for name, running in brokers.items():
                with self.failing(f"one at a time, {name}"):
                    first = run_load(ONE_AT_A_TIME, running)
                    counts[name] = int(first.sent_per_s * self.plan.seconds) + 1
            for _round in range(self.plan.rounds):
                for name, messages in counts.items():
                    with self.failing(f"one at a time, {name}"):
                        outcome = run_load(replace(workload, messages=messages), brokers[name])
                        self.results.waits.append(Wait(variant=name, absent=absent, outcome=outcome))
                        durable_report.print_wait(self.results.waits[-1])

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Note what could not be done, and go on."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            self.results.failures.append(f"{what}: {error}")
            print(self.results.failures[-1], flush=True)


def forget_sessions(running: Running) -> None:
    """End the sessions of every workload before: the same client identifiers connect without any."""
    count = max(scenario.workload.publishers + scenario.workload.subscribers for scenario in PERSISTENT)
    connections = Workload(name="forget", publishers=0, subscribers=0, idle_connections=count)
    generator = Generator(connections, local_target(running.port))
    try:
        generator.connect()
    finally:
        generator.close()


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    names = ", ".join(variant.name for variant in VARIANTS)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="with commas")
    parser.add_argument("--brokers", default="", help=f"with commas, of: {names}; all, if none is given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--reactors", type=int, default=0, help="TideMQ's; 0: its default")
    parser.add_argument("--retained", type=int, default=1_000_000, help="retained messages")
    parser.add_argument(
        "--small", action="store_true", help="thousands of messages instead of millions: does it all work?"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where the brokers keep their data meanwhile; on a disk, not in memory",
    )
    parser.add_argument(
        "--output", type=Path, help="stem of the files to write; default: results/DATE-durable-COMMIT"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.parts.split(",")) - set(PARTS)
    unknown |= set(filter(None, options.brokers.split(","))) - {variant.name for variant in VARIANTS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    queues = [Load(clients=1_000, messages=1_000), Load(clients=1, messages=100_000, window=1_000)]
    retained = Load(clients=10, messages=options.retained // 10)
    if options.small:
        queues = [Load(clients=20, messages=50), Load(clients=1, messages=2_000, window=1_000)]
        retained = Load(clients=10, messages=100)
    chosen = options.brokers.split(",")
    return Plan(
        parts=options.parts.split(","),
        variants=[variant for variant in VARIANTS if not options.brokers or variant.name in chosen],
        rounds=options.rounds,
        seconds=options.seconds,
        queues=queues,
        retained=retained,
        reactors=options.reactors,
        parent=options.data,
    )


def main(arguments: Sequence[str]) -> None:
    options = parse_options(arguments)
    plan = plan_of(options)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    here = machine.describe()
    load_before = os.getloadavg()[0]
    run = Run(plan)
    run.all()
    text = durable_report.markdown(
        run.results, here, PEERS["mosquitto"].version(), plan.rounds, plan.seconds, load_before
    )
    print(text)
    stem = options.output or RESULTS / f"{date.today()}-durable-{here.commit.rstrip('+')}"
    pages.write(stem, text, here, asdict(run.results))


if __name__ == "__main__":
    main(sys.argv[1:])
