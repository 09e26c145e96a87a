"""What rules cost: QoS 0 with a thousand of them, the last of which allows, against none.

    python benchmarks/acl.py [--rounds 20] [--seconds 0.3] [--rules 1000]     # rates, on a quiet machine
    python benchmarks/acl.py --instructions                                  # exact, on any; needs valgrind

Two brokers run beside each other, one without rules. Rates: they are loaded in turns, first the one, then the
other, so that what else goes on happens to both; a cost is that of two runs which follow each other, and what
is said of it are the median and the quartiles. Instructions: of the broker's own code for a message, and what
misses in a first cache of 32 KiB and a last one of 1 MiB, as callgrind simulates them: the difference of two
loads of which one is larger, so that it is no connection's beginning that is counted. The kernel's are not
among them, so the share of all that the broker does is smaller.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from measurement import run_load
from peers.peer import Running

from tidemq.bench.load.generator import Generator
from tidemq.bench.peer.target import local_target
from tidemq.bench.process import cpu_s
from tidemq.bench.workload import Workload

WORKLOADS = (
    Workload(name="1:1", messages=20_000),
    Workload(name="1:20", subscribers=20, messages=2_000),
    Workload(name="1:1, 1,000 topics", pairs=True, topics=1_000, messages=20_000),
)
SILENT = Workload(name="silent", prefix="silent", publishers=0, subscribers=0, idle_connections=1)
START_S = 20.0
VALGRIND_START_S = 300.0
CALLGRIND = "valgrind --tool=callgrind --cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=1048576,8,64"
EVENTS = {"Ir": "instructions", "D1": "misses in the first cache", "DL": "in the last"}


@contextmanager
def broker(
    folder: Path, rules: int, prefix: Sequence[str] = (), start_s: float = START_S
) -> Iterator[Running]:
    """`tidemq serve` with one reactor and so many rules; 0: no file. A client stays connected, so that the
    rules that runs are judged by, and what they said of a topic, stay as well.
    """
    command = [*prefix, sys.executable, "-c", "from tidemq.cli import main; main()", "serve"]
    command += ["--host", "127.0.0.1", "--port", "0", "--reactors", "1", "--store", "memory"]
    log, config = folder / f"log-{rules}", folder / f"config-{rules}.toml"
    config.write_text("sys_interval_s = 0\n")
    if rules:
        lines = [f"allow all elsewhere/{number}/#" for number in range(rules - 1)]
        acl = folder / "rules.acl"
        acl.write_text("\n".join([*lines, "allow all #"]))
        config.write_text(f'sys_interval_s = 0\nacl_file = "{acl}"\n')
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--config", str(config)], stdout=output, stderr=output)
    try:
        until = time.monotonic() + start_s
        while not (found := re.search(r"ready on [^ ]*:(\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"the broker does not listen: {log.read_text()}")
            time.sleep(0.02)
        running = Running(pid=process.pid, port=int(found[1]))
        silent = Generator(SILENT, local_target(running.port))
        silent.connect(timeout_s=start_s)
        yield running
        silent.close()
    finally:
        process.terminate()
        process.wait(start_s)


# --- rates -----------------------------------------------------------------------------------------


def measured(workload: Workload, running: Running) -> tuple[float, float]:
    """Deliveries per second, and per second of the broker's CPU."""
    before = cpu_s(running.pid)
    outcome = run_load(workload, running)
    return outcome.messages_per_s, outcome.received / (cpu_s(running.pid) - before)


def compare_rates(folder: Path, rules: int, rounds: int, seconds: float) -> None:
    """Prints two lines for each workload."""
    with broker(folder, 0) as bare, broker(folder, rules) as ruled:
        for workload in WORKLOADS:
            rate, _ = measured(workload, bare)
            many = max(int(workload.messages * rate * seconds / workload.deliveries), 1)
            sized = replace(workload, messages=many)
            measured(sized, ruled)  # its topics are judged now
            pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
            for number in range(rounds):
                if number % 2:
                    with_rules = measured(sized, ruled)
                    pairs.append((measured(sized, bare), with_rules))
                else:
                    pairs.append((measured(sized, bare), measured(sized, ruled)))
            for place, unit in enumerate(("a second", "a second of CPU")):
                none, some = ([pair[side][place] for pair in pairs] for side in (0, 1))
                costs = [1 - after / before for before, after in zip(none, some, strict=True)]
                low, middle, high = statistics.quantiles(costs, n=4)
                print(
                    f"{workload.name}, {unit}: without {statistics.median(none) / 1e6:.2f} M, with {rules} "
                    f"rules {statistics.median(some) / 1e6:.2f} M; cost {middle:.1%} "
                    f"({low:.1%} to {high:.1%})",
                    flush=True,
                )


# --- instructions ----------------------------------------------------------------------------------


def control(running: Running, command: str) -> None:
    """Tells callgrind something."""
    subprocess.run(["callgrind_control", command, str(running.pid)], check=True, capture_output=True)


def counted(folder: Path, workload: Workload, running: Running) -> dict[str, int]:
    """What callgrind has counted during a load."""
    for old in folder.glob("callgrind.*"):
        old.unlink()
    control(running, "--zero")
    run_load(workload, running)
    control(running, "--dump")
    until = time.monotonic() + VALGRIND_START_S
    while not (dumps := list(folder.glob("callgrind.*"))) or "totals:" not in dumps[0].read_text():
        if time.monotonic() > until:
            raise TimeoutError("callgrind has written nothing")
        time.sleep(0.1)
    text = dumps[0].read_text()
    names, totals = (re.search(rf"^{name}: (.*)$", text, re.MULTILINE) for name in ("events", "totals"))
    assert names is not None
    assert totals is not None
    return dict(zip(names[1].split(), map(int, totals[1].split()), strict=True))


def per_message(folder: Path, rules: int) -> list[dict[str, float]]:
    """For each workload: events for each message that was published."""
    found: list[dict[str, float]] = []
    folder.mkdir()
    prefix = [*CALLGRIND.split(), "--instr-atstart=no", f"--callgrind-out-file={folder}/callgrind"]
    with broker(folder, rules, prefix, VALGRIND_START_S) as running:
        control(running, "--instr=on")
        for workload in WORKLOADS:
            run_load(workload, running)
            once, thrice = (
                counted(folder, replace(workload, messages=times * workload.messages), running)
                for times in (1, 3)
            )
            found.append(
                {
                    event: sum(thrice[each] - once[each] for each in once if each.startswith(event))
                    / (2 * workload.messages)
                    for event in EVENTS
                }
            )
    return found


def compare_instructions(folder: Path, rules: int) -> None:
    """Prints a line for each workload."""
    both = (per_message(folder / str(number), number) for number in (0, rules))
    for workload, none, some in zip(WORKLOADS, *both, strict=True):
        parts = [
            f"{name} {none[event]:.1f} without, {some[event]:.1f} with {rules} rules"
            for event, name in EVENTS.items()
        ]
        print(f"{workload.name}: {'; '.join(parts)}; cost {some['Ir'] / none['Ir'] - 1:.1%}", flush=True)


def main() -> None:
    """Measures the one or the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each run")
    parser.add_argument("--rules", type=int, default=1_000)
    parser.add_argument("--instructions", action="store_true", help="count them instead")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if given.instructions:
            compare_instructions(Path(name), given.rules)
        else:
            compare_rates(Path(name), given.rules, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
