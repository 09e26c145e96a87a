"""Measures brokers under the same load on this machine: `python benchmarks/run.py --help`."""

from __future__ import annotations

import argparse
import time

from workloads import SCENARIOS, scaled

from tidemq.bench.generator import Generator
from tidemq.bench.process import cpu_s
from tidemq.bench.workload import Workload

SETTLE_S = 0.02  # for the broker's last acknowledgements, before its CPU clock is read


def measure(workload: Workload, port: int, pid: int) -> dict[str, float]:
    """One run of `workload` against the broker `pid` on `port`."""
    generator = Generator(workload, port)
    generator.connect()
    before_s = cpu_s(pid)
    outcome = generator.run()
    time.sleep(SETTLE_S)
    broker_cpu_s = cpu_s(pid) - before_s
    generator.close()
    print(outcome)
    return {"per_s": outcome.messages_per_s, "per_cpu_s": outcome.received / broker_cpu_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attach", type=int, metavar="PORT", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--workloads", default="one-to-one")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    for name in options.workloads.split(","):
        figures = measure(scaled(SCENARIOS[name].workload, options.scale), options.attach, options.pid)
        print(f"{name}: {figures['per_s']:,.0f} messages/s, {figures['per_cpu_s']:,.0f} per broker CPU-second")


if __name__ == "__main__":
    main()
