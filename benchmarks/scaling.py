"""How a broker scales over cores: the same loads with 1, 2, 4 … reactors, and as many cores for it.

    python benchmarks/scaling.py [--reactors 1,2,4,8,16] [--rounds 3] [--seconds 1] [--workloads mesh,pairs]

A broker with N reactors has the first N cores of this machine. The generator has as many threads as half of
the cores, and the other half for itself. A broker that needs more cores than its half shares all of them with
the generator. Rounds alternate between the numbers of reactors.

Beside one broker with N reactors there are N brokers with one reactor each, a core and a share of the pairs
each ("apart"): what they do is what this machine could do if reactors shared nothing. `--preload` adds
brokers whose memory comes from another malloc, say libjemalloc.so.2.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import machine
import pages
import scaling_report as report
from disk import DiskLatency, measure_disk
from peers.mosquitto import Mosquitto
from peers.peer import Conditions, PeerMissingError
from run import pinned
from scaling_loads import LOADS, Load
from scaling_sample import (
    Sample,
    Side,
    Watched,
    WithAdmin,
    cores_of,
    in_order,
    measured,
    threads_of,
)

RESULTS = Path(__file__).parent / "results"
DISK_RECORDS = 200
SPIN_S = 0.3
SPIN_START_S = 1.0  # until all processes of a probe run
SPIN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
start, seconds, count = float(sys.argv[2]), float(sys.argv[3]), 0
time.sleep(max(start - time.monotonic(), 0))
while time.monotonic() < start + seconds:
    for _ in range(1000):
        pass
    count += 1
print(count)
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run, and on which cores."""

    loads: Sequence[Load]
    reactors: Sequence[int]
    rounds: int
    seconds: float
    cores: Sequence[int]  # in the order in which they are given out
    preload: str  # a library that takes the place of malloc, for a side of its own; empty: no such side
    data: Path  # the durable brokers' directories are below it


@dataclass(slots=True)
class Run:
    """Carries out a plan. A side that fails a load is left out of the rest of it, and so reported."""

    plan: Plan
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def load(self, load: Load, sides: Sequence[Side]) -> None:
        """All sides that take part, in turn, for some rounds."""
        left = [side for side in sides if side.name in load.sides]
        for _round in range(self.plan.rounds):
            for side in list(left):
                broker_cores, generator_cores = cores_of(side.reactors, self.plan.cores)
                try:
                    with pinned(generator_cores):
                        sample = measured(
                            side,
                            load.timed(self.plan.seconds),
                            threads_of(self.plan.cores),
                            shared=bool(broker_cores & generator_cores),
                        )
                except (OSError, RuntimeError) as error:
                    self.failures.append(f"{load.name}, {side.name}, {side.reactors}: {error}")
                    print(self.failures[-1], flush=True)
                    left.remove(side)
                    continue
                self.samples.append(sample)
                print(report.line_of(sample, len(self.plan.cores)), flush=True)


@contextmanager
def sides_of(plan: Plan) -> Iterator[list[Side]]:
    """All brokers side by side, for the whole run."""
    wanted = {name for load in plan.loads for name in load.sides}
    with ExitStack() as stack:
        sides = []
        for name, store, preload in (
            ("tidemq", "memory", ""),
            ("preloaded", "memory", plan.preload),
            ("durable", "", ""),
        ):
            for count in plan.reactors if name in wanted else ():
                cores = frozenset(cores_of(count, plan.cores)[0])
                conditions = Conditions(cores=cores, reactors=count)
                broker = stack.enter_context(WithAdmin(name, store, preload).watched(conditions))
                sides.append(Side(name, count, [broker]))
        most = max(plan.reactors)
        if "apart" in wanted and most > 1:
            brokers = [
                stack.enter_context(
                    WithAdmin("apart", "memory").watched(Conditions(cores=frozenset({core}), reactors=1))
                )
                for core in in_turn(plan.cores, most)
            ]
            sides += [Side("apart", count, brokers[:count]) for count in plan.reactors if count > 1]
        if "mosquitto" in wanted:
            conditions = Conditions(cores=frozenset(plan.cores[:1]), reactors=1)
            sides.append(
                Side("mosquitto", 1, [Watched(stack.enter_context(Mosquitto().started(conditions)))])
            )
        yield sides


def in_turn(cores: Sequence[int], count: int) -> list[int]:
    """So many cores, from the first on, and again from there if there are fewer."""
    return [cores[number % len(cores)] for number in range(count)]


def speeds_of(cores: Sequence[int], counts: Sequence[int]) -> dict[int, float]:
    """How much as many loops as cores do at once, to what one does alone, each on one of the first cores: it
    says whether these are cores of their own, and equally fast when all are busy.
    """
    done: dict[int, int] = {}
    for count in sorted({1, *counts}):
        start = str(time.monotonic() + SPIN_START_S)
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", SPIN, str(core), start, str(SPIN_S)], stdout=subprocess.PIPE, text=True
            )
            for core in in_turn(cores, count)
        ]
        done[count] = sum(int(process.communicate()[0]) for process in processes)
    return {count: loops / done[1] for count, loops in done.items()}


def installed(loads: Sequence[Load]) -> list[Load]:
    """Without Mosquitto where it cannot be had."""
    try:
        Mosquitto().install()
    except PeerMissingError as error:
        print(f"without Mosquitto: {error}")
        return [
            replace(load, sides=tuple(name for name in load.sides if name != "mosquitto")) for load in loads
        ]
    return list(loads)


def with_preloaded(load: Load) -> Load:
    """Also against a broker with another malloc, where one without is loaded."""
    return replace(load, sides=(*load.sides, "preloaded")) if "tidemq" in load.sides else load


def chosen(names: str) -> list[Load]:
    """Those that were named, else all; SystemExit names one that does not exist."""
    wanted = names.split(",") if names else [load.name for load in LOADS]
    unknown = set(wanted) - {load.name for load in LOADS}
    if unknown:
        raise SystemExit(
            f"no workload {', '.join(sorted(unknown))}; known: {', '.join(load.name for load in LOADS)}"
        )
    return [load for load in LOADS if load.name in wanted]


def reactors_from(text: str, cores: int) -> list[int]:
    """The numbers of a text; empty: 1, 2, 4 … up to the number of cores."""
    if text:
        return [int(number) for number in text.split(",")]
    return [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = ", ".join(load.name for load in LOADS)
    parser.add_argument("--reactors", default="", help="with commas; 1, 2, 4 ... up to the number of cores")
    parser.add_argument("--workloads", default="", help=f"with commas, of {known}; all, if none is given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument(
        "--preload", default="", help="a library with another malloc: brokers that use it, beside the others"
    )
    parser.add_argument("--data", type=Path, help="where durable brokers keep their data; default: TMPDIR")
    parser.add_argument("--commit", default="", help="of what is measured, where there is no git")
    parser.add_argument(
        "--output", type=Path, help="stem of the files to write; default: results/DATE-scaling-COMMIT"
    )
    return parser.parse_args(arguments)


def command_of(plan: Plan, workloads: str) -> str:
    """What measures the same again."""
    reactors = ",".join(map(str, plan.reactors))
    command = f"python benchmarks/scaling.py --reactors {reactors} --rounds {plan.rounds}"
    command += f" --seconds {plan.seconds:g}" + (f" --workloads {workloads}" if workloads else "")
    return command + (f" --preload {Path(plan.preload).name}" if plan.preload else "")


def main(arguments: Sequence[str]) -> None:
    options = parse_options(arguments)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.data:
        tempfile.tempdir = str(options.data)
    cores = in_order(sorted(os.sched_getaffinity(0)))
    loads = installed(chosen(options.workloads))
    plan = Plan(
        loads=[with_preloaded(load) for load in loads] if options.preload else loads,
        reactors=reactors_from(options.reactors, len(cores)),
        rounds=options.rounds,
        seconds=options.seconds,
        cores=cores,
        preload=options.preload,
        data=Path(tempfile.gettempdir()),
    )
    here = machine.describe()
    if options.commit:
        here = replace(here, commit=options.commit)
    stem = options.output or RESULTS / f"{date.today()}-scaling-{here.commit.rstrip('+')}"
    speeds = speeds_of(cores, plan.reactors)
    disk: DiskLatency = measure_disk(plan.data, DISK_RECORDS)
    surroundings = report.Surroundings(here, command_of(plan, options.workloads), cores, speeds, disk)
    print(*report.preface(surroundings, plan.rounds, plan.seconds), sep="\n", flush=True)
    run = Run(plan)
    with sides_of(plan) as sides:
        for load in plan.loads:
            run.load(load, sides)
            # after each load: a run that is cut short has its figures
            text = report.markdown(run.samples, run.failures, surroundings, plan.rounds, plan.seconds)
            pages.write(stem, text, here, report.content(run.samples, run.failures, surroundings))
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
