"""What rules cost: QoS 0 with a thousand of them, the last of which allows, against none, in turns.

    python benchmarks/acl.py [--rounds 5] [--seconds 2] [--rules 1000]

Two brokers run beside each other, one without rules, and are loaded alternately, so that what else goes on
happens to both. Rates are deliveries per second, and per second of the broker's CPU.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from measurement import run_load
from peers.peer import Running

from tidemq.bench.process import cpu_s
from tidemq.bench.workload import Workload

WORKLOADS = (
    Workload(name="1:1", messages=20_000),
    Workload(name="1:20", subscribers=20, messages=2_000),
    Workload(name="1:1, 1,000 topics", pairs=True, topics=1_000, messages=20_000),
)
START_S = 20.0


@contextmanager
def broker(folder: Path, rules: int) -> Iterator[Running]:
    """`tidemq serve` with one reactor and so many rules; 0: no file."""
    command = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve"]
    command += ["--host", "127.0.0.1", "--port", "0", "--reactors", "1", "--store", "memory"]
    log, config = folder / f"log-{rules}", folder / f"config-{rules}.toml"
    config.write_text("sys_interval_s = 0\n")
    if rules:
        lines = [f"allow all elsewhere/{number}/#" for number in range(rules - 1)]
        acl = folder / "rules.acl"
        acl.write_text("\n".join([*lines, "allow all #"]))
        config.write_text(f'sys_interval_s = 0\nacl_file = "{acl}"\n')
    process = subprocess.Popen([*command, "--config", str(config)], stdout=log.open("wb"))
    try:
        until = time.monotonic() + START_S
        while not (found := re.search(r"ready on [^ ]*:(\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > until:
                raise TimeoutError("the broker does not listen")
            time.sleep(0.02)
        yield Running(pid=process.pid, port=int(found[1]))
    finally:
        process.terminate()
        process.wait(START_S)


def measured(workload: Workload, running: Running) -> tuple[float, float]:
    """Deliveries per second, and per second of the broker's CPU."""
    before = cpu_s(running.pid)
    outcome = run_load(workload, running)
    return outcome.messages_per_s, outcome.received / (cpu_s(running.pid) - before)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values) / 1e6:.2f} M ({min(values) / 1e6:.2f} to {max(values) / 1e6:.2f})"


def main() -> None:
    """Prints a line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--rules", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with broker(folder, 0) as bare, broker(folder, given.rules) as ruled:
            for workload in WORKLOADS:
                rate, _ = measured(workload, bare)
                many = max(int(workload.messages * rate * given.seconds / workload.deliveries), 1)
                sized = replace(workload, messages=many)
                runs: dict[str, list[tuple[float, float]]] = {"none": [], "rules": []}
                for _ in range(given.rounds):
                    runs["none"].append(measured(sized, bare))
                    runs["rules"].append(measured(sized, ruled))
                for place, unit in enumerate(("a second", "a second of CPU")):
                    none, some = ([run[place] for run in runs[kind]] for kind in ("none", "rules"))
                    pairs = [1 - after / before for before, after in zip(none, some, strict=True)]
                    print(
                        f"{workload.name}, {unit}: without {spread(none)}, with {given.rules} rules "
                        f"{spread(some)}; cost {statistics.median(pairs):.1%} "
                        f"({min(pairs):.1%} to {max(pairs):.1%})",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
