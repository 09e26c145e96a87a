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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import durable_report
import machine
from disk import measure_disk
from durable_report import Results, Wait
from keeping import Load, measure_queue, measure_retained
from measurement import measure, run_load, sized
from peers import mosquitto
from peers.durable import VARIANTS, Variant, started
from peers.running import Running
from workloads import PERSISTENT, Scenario

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
        if "rates" in self.plan.parts:
            for scenario in PERSISTENT:
                self.rates(scenario)
        if "waits" in self.plan.parts:
            for absent in (False, True):
                self.waits(absent)
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

    def rates(self, scenario: Scenario) -> None:
        """All brokers side by side, a warm-up each, then in turn for some rounds."""
        ready: dict[str, tuple[Running, Workload]] = {}
        with ExitStack() as stack:
            for variant in self.plan.variants:
                with self.failing(f"{scenario.name}, {variant.name}"):
                    running = stack.enter_context(self.started(variant))
                    if scenario.workload.part == "enqueue":
                        run_load(replace(scenario.workload, part="whole", messages=1), running)
                    first = measure(scenario, scenario.workload, variant.name, 0, running)
                    ready[variant.name] = running, sized(scenario.workload, first, self.plan.seconds)
            for _round in range(self.plan.rounds):
                for name, (running, workload) in list(ready.items()):
                    del ready[name]
                    with self.failing(f"{scenario.name}, {name}"):
                        sample = measure(scenario, workload, name, self.plan.reactors, running)
                        durable_report.print_sample(sample)
                        self.results.rates.append(sample)
                        ready[name] = running, workload

    def waits(self, absent: bool) -> None:
        """One message at a time to each broker, in turn for some rounds; the subscriber there, or away."""
        workload = replace(ONE_AT_A_TIME, part="enqueue") if absent else ONE_AT_A_TIME
        ready: dict[str, tuple[Running, Workload]] = {}
        with ExitStack() as stack:
            for variant in self.plan.variants:
                with self.failing(f"one at a time, {variant.name}"):
                    running = stack.enter_context(self.started(variant, nodelay=True))
                    first = run_load(ONE_AT_A_TIME, running)
                    messages = int(first.sent_per_s * self.plan.seconds) + 1
                    ready[variant.name] = running, replace(workload, messages=messages)
            for _round in range(self.plan.rounds):
                for name, (running, sequence) in ready.items():
                    with self.failing(f"one at a time, {name}"):
                        wait = Wait(variant=name, absent=absent, outcome=run_load(sequence, running))
                        durable_report.print_wait(wait)
                        self.results.waits.append(wait)

    def started(self, variant: Variant, *, nodelay: bool = False) -> AbstractContextManager[Running]:
        return started(variant, self.plan.parent, reactors=self.plan.reactors, nodelay=nodelay)

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Note what could not be done, and go on."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            self.results.failures.append(f"{what}: {error}")
            print(self.results.failures[-1], flush=True)


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
        run.results, here, mosquitto.version(), plan.rounds, plan.seconds, load_before
    )
    print(text)
    stem = options.output or RESULTS / f"{date.today()}-durable-{here.commit.rstrip('+')}"
    durable_report.write(stem, text, run.results, here)


if __name__ == "__main__":
    main(sys.argv[1:])
