"""A publisher that writes each message by itself, 1:1, at several rates: what is carried, and how late.

Brokers take turns within each rate; what counts is the median of the rounds. Another build of TideMQ takes
part with `--before`, as this machine's times are only worth something side by side.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from measurement import Sample, measure
from peers import PEERS
from peers.peer import Conditions, Peer, Running
from peers.tidemq import TideMQ
from run import cores_of, pinned
from workloads import Scenario

from tidemq.bench.load.frames import encode_publish
from tidemq.bench.workload import Workload

RATES = "5000,100000,500000,800000,1000000"
HEAD = "      rate broker      carried/s    p50 µs    p99 µs   per CPU-s generator's  lost"


class Before(TideMQ):
    """TideMQ of another folder of built sources."""

    def __init__(self, sources: Path) -> None:
        super().__init__("before", "memory")
        self.sources = sources

    def environment(self, folder: Path) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self.sources)}


def workload(rate: float, seconds: float, qos: int) -> Workload:
    return Workload(
        name="one-by-one", rate_per_s=rate, messages=int(rate * seconds), qos=qos, one_by_one=True
    )


def measured(
    rate: float, seconds: float, qos: int, rounds: int, running: Mapping[str, Running]
) -> dict[str, list[Sample]]:
    """The samples of each broker at one rate, after a round that does not count."""
    load = workload(rate, seconds, qos)
    scenario = Scenario(workload=load, text="", kind="paced")
    samples: dict[str, list[Sample]] = {name: [] for name in running}
    for round_ in range(rounds + 1):
        for name, broker in running.items():
            sample = measure(scenario, load, name, 1, broker)
            if round_:
                samples[name].append(sample)
    return samples


def row(rate: float, name: str, samples: Sequence[Sample]) -> str:
    """Medians."""
    found = [sample.outcome.latency for sample in samples]
    p50 = statistics.median(latency.p50_us if latency else 0 for latency in found)
    p99 = statistics.median(latency.p99_us if latency else 0 for latency in found)
    carried = statistics.median(sample.per_s for sample in samples)
    per_cpu = statistics.median(sample.per_cpu_s for sample in samples)
    own = statistics.median(sample.outcome.received / sample.outcome.generator_cpu_s for sample in samples)
    lost = sum(sample.outcome.lost for sample in samples)
    times = f"{p50:9,.0f} {p99:9,.0f}"
    return f"{rate:10,.0f} {name:10} {carried:10,.0f} {times} {per_cpu:11,.0f} {own:11,.0f}  {lost}"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rates", default=RATES, help="messages a second, with commas")
    parser.add_argument("--brokers", default="tidemq,relay,mosquitto", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--before", type=Path, metavar="SRC", help="built sources of another TideMQ")
    parser.add_argument("--qos", type=int, default=0, help="the relay knows 0 only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    brokers: list[Peer] = [PEERS[name] for name in options.brokers.split(",")]
    brokers += [Before(options.before)] if options.before else []
    broker_cores, generator_cores = cores_of(1)
    frame_bytes = len(encode_publish(workload(1, 1, 0), 0))
    conditions = Conditions(cores=frozenset(broker_cores), reactors=1, nodelay=True, frame_bytes=frame_bytes)
    with ExitStack() as stack:
        running: dict[str, Running] = {}
        for broker in brokers:
            broker.install()
            running[broker.name] = stack.enter_context(broker.started(conditions))
        stack.enter_context(pinned(generator_cores))
        print(HEAD, f"  ({os.cpu_count()} cores, medians of {options.rounds})", flush=True)
        for rate in map(float, options.rates.split(",")):
            found = measured(rate, options.seconds, options.qos, options.rounds, running)
            for name, samples in found.items():
                print(row(rate, name, samples), flush=True)


if __name__ == "__main__":
    main()
