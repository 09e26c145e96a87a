"""Measure brokers under the same load, in the same run, on this machine.

Every workload alternates between the brokers for some rounds; what counts is the median of the rounds.
Each broker's number of messages is chosen by a warm-up run, so that every run takes about --seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import engine_report as report
import machine
import pages
from measurement import Sample, measure, sized
from peers import PEERS
from peers.peer import Conditions, PeerMissingError, Running
from peers.tidemq import TideMQ
from workloads import SCENARIOS, Scenario, named

from tidemq.bench.load.frames import encode_publish
from tidemq.bench.workload import Workload

BROKERS = ("tidemq", "mosquitto", "relay")
RESULTS = Path(__file__).parent / "results"
RELAYED = {"one-to-one", "fan-in", "fan-out", "mesh"}  # what the relay can do


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run."""

    scenarios: Sequence[Scenario]
    brokers: Sequence[str]
    reactors: Sequence[int]
    rounds: int
    seconds: float  # each run
    messages: int  # each publisher, instead of what the warm-up says; 0: as it says


def cores_of(reactors: int) -> tuple[set[int], set[int]]:
    """The broker's cores and the generator's: one each for one reactor, else both have them all."""
    cores = sorted(os.sched_getaffinity(0))
    if reactors == 1 and len(cores) > 1:
        return {cores[0]}, {cores[1]}
    return set(cores), set(cores)


@contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """This process, and so the generator, on `cores` while the block runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def warmed_up(plan: Plan, scenario: Scenario, broker: str, reactors: int, running: Running) -> Workload:
    """The workload, sized for this broker by a first run that does not count."""
    if scenario.kind == "idle":
        return scenario.workload
    if plan.messages:
        return replace(scenario.workload, messages=plan.messages)
    first = measure(scenario, scenario.workload, broker, reactors, running)
    return sized(scenario.workload, first, plan.seconds)


def takes_part(broker: str, scenario: Scenario, reactors: int) -> bool:
    """The relay has one thread and knows only plain QoS 0; matching is measured on one reactor."""
    if broker == "relay":
        return scenario.name in RELAYED and reactors == 1
    return scenario.kind != "subscriptions" or reactors == 1


class Run:
    """Carries out a plan. A broker that fails a scenario is left out of the rest of it, and so reported."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.samples: list[Sample] = []
        self.failures: list[str] = []

    def all(self) -> None:
        """Every scenario with every number of reactors."""
        for reactors in self.plan.reactors:
            for scenario in self.plan.scenarios:
                # memory must be that of a fresh process every time
                rounds = self.plan.rounds
                processes, rounds = (rounds, 1) if scenario.kind == "idle" else (1, rounds)
                for _process in range(processes):
                    self.scenario(scenario, reactors, rounds)

    def scenario(self, scenario: Scenario, reactors: int, rounds: int) -> None:
        """One process of each broker, a warm-up, then the brokers in turn for some rounds."""
        broker_cores, generator_cores = cores_of(reactors)
        conditions = Conditions(
            cores=frozenset(broker_cores),
            reactors=reactors,
            nodelay=scenario.kind == "paced",
            frame_bytes=len(encode_publish(scenario.workload, 0)),
        )
        brokers = [broker for broker in self.plan.brokers if takes_part(broker, scenario, reactors)]
        ready: dict[str, tuple[Running, Workload]] = {}
        with ExitStack() as stack:
            for broker in brokers:
                with self.failing(scenario, broker, reactors):
                    running = stack.enter_context(PEERS[broker].started(conditions))
                    with pinned(generator_cores):
                        workload = warmed_up(self.plan, scenario, broker, reactors, running)
                    ready[broker] = running, workload
            stack.enter_context(pinned(generator_cores))
            for _round in range(rounds):
                for broker, (running, workload) in list(ready.items()):
                    del ready[broker]
                    with self.failing(scenario, broker, reactors):
                        sample = measure(scenario, workload, broker, reactors, running)
                        report.print_sample(sample)
                        self.samples.append(sample)
                        ready[broker] = running, workload

    @contextmanager
    def failing(self, scenario: Scenario, broker: str, reactors: int) -> Iterator[None]:
        """Note what a broker could not do, and go on."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            self.failures.append(f"{scenario.name}, {broker}, {reactors or 'default'}: {error}")
            print(self.failures[-1], flush=True)


def attach(plan: Plan, running: Running) -> None:
    """Load a broker that runs already, say under a profiler, pinned or not as its owner did."""
    for scenario in plan.scenarios:
        workload = warmed_up(plan, scenario, "attached", 0, running)
        for _round in range(plan.rounds):
            report.print_sample(measure(scenario, workload, "attached", 0, running))


def chosen_scenarios(names: str, quick: bool) -> list[Scenario]:
    """Those that were named, else all; a quick run leaves out what takes long to set up."""
    if names:
        return named(names.split(","))
    return [scenario for scenario in SCENARIOS if not quick or scenario.kind != "subscriptions"]


def installed(brokers: Sequence[str]) -> dict[str, str]:
    """The version of each, after installing what is missing; SystemExit where that cannot be done."""
    for broker in brokers:
        try:
            PEERS[broker].install()
        except PeerMissingError as error:
            raise SystemExit(f"{broker}: {error}; or leave it out with --brokers") from error
    return {broker: PEERS[broker].version() for broker in brokers}


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--workloads", default="", help=f"with commas, of {names}; all, if none is given")
    parser.add_argument("--brokers", default=",".join(BROKERS), help=f"with commas, of {', '.join(PEERS)}")
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="another checkout, built: the broker `before`"
    )
    parser.add_argument("--reactors", default="1,0", help="numbers, with commas; 0 is the broker's default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--messages", type=int, default=0, help="each publisher's; 0: by --seconds")
    parser.add_argument(
        "--quick", action="store_true", help="one reactor, one short round, not a million subscriptions"
    )
    parser.add_argument("--attach", type=int, metavar="PORT", help="load the broker that listens there")
    parser.add_argument("--pid", type=int, help="of the broker to attach to")
    parser.add_argument(
        "--output", type=Path, help="stem of the files to write; default: results/DATE-COMMIT"
    )
    options = parser.parse_args(arguments)
    if options.attach and not options.pid:
        parser.error("--attach needs the broker's --pid, whose CPU is measured")
    return options


def main(arguments: Sequence[str]) -> None:
    options = parse_options(arguments)
    if options.before:
        PEERS["before"] = TideMQ("before", "memory", options.before.resolve())
        options.brokers = options.brokers.replace("tidemq", "tidemq,before", 1)
    plan = Plan(
        scenarios=chosen_scenarios(options.workloads, options.quick),
        brokers=options.brokers.split(","),
        reactors=[1] if options.quick else [int(number) for number in options.reactors.split(",")],
        rounds=1 if options.quick else options.rounds,
        seconds=0.3 if options.quick else options.seconds,
        messages=options.messages,
    )
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.attach:
        attach(plan, Running(options.attach, options.pid))
        return
    here = machine.describe()
    versions = installed(plan.brokers)
    run = Run(plan)
    run.all()
    stem = options.output or RESULTS / f"{date.today()}-{here.commit.rstrip('+')}"
    text = report.markdown(
        run.samples, run.failures, report.preface(here, versions, plan.rounds, plan.seconds)
    )
    print(text)
    if not options.quick or options.output:
        pages.write(stem, text, here, report.content(run.samples, run.failures, versions))


if __name__ == "__main__":
    main(sys.argv[1:])
