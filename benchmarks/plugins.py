"""What plugins cost: the messages that none of them wants, and those that one does.

    python benchmarks/plugins.py [--starts 4] [--rounds 10] [--seconds 0.3] [--before SRC]

Others' messages: brokers run beside each other, one without a plugin, one with a plugin that wants other
topics, and with `--before` one of another build (the folder that holds its `tidemq`). They are loaded in
turns, so that what else goes on happens to all; a cost is that of two runs which follow each other, and what
is said of it are the median and the quartiles. Then the rate through a plugin that passes everything.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

# imports stand in the functions: a broker of another build has none of what loads it
START_S = 20.0


class Elsewhere:
    """Wants topics that nobody uses."""

    filters = ("elsewhere/#", "else/+/where")


class Everything:
    """Wants all messages, and passes them."""

    filters = ("#",)


async def serve(kind: str) -> None:
    """A broker with one reactor and that plugin, until the process is ended."""
    from tidemq import Broker, Config, hookimpl

    class Passes:
        filters: tuple[str, ...] = ()

        @hookimpl
        def publish(self, messages: list[Any]) -> None:
            pass

    plugins = []
    if kind != "none":
        passes = Passes()
        passes.filters = Elsewhere.filters if kind == "elsewhere" else Everything.filters
        plugins = [passes]
    config = Config(host="127.0.0.1", port=0, reactors=1, sys_interval_s=0, store="memory")
    async with Broker(config, plugins=plugins) as broker:
        print(f"ready on 127.0.0.1:{broker.port}", flush=True)
        await asyncio.Event().wait()


@contextmanager
def broker(folder: Path, kind: str, source: Path | None = None) -> Iterator[Any]:
    """One in a process of its own. `source`: of another build."""
    from peers.peer import Running

    log = folder / f"log-{kind}-{source is None}"
    environment = dict(os.environ) if source is None else os.environ | {"PYTHONPATH": str(source)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind], stdout=output, stderr=output, env=environment
        )
    try:
        until = time.monotonic() + START_S
        while not (found := re.search(r"ready on [^ ]*:(\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"the broker does not listen: {log.read_text()}")
            time.sleep(0.02)
        yield Running(pid=process.pid, port=int(found[1]))
    finally:
        process.terminate()
        process.wait(START_S)


def measured(workload: Any, running: Any) -> tuple[float, float]:
    """Deliveries per second, and per second of the broker's CPU."""
    from measurement import run_load

    from tidemq.bench.process import cpu_s

    before = cpu_s(running.pid)
    outcome = run_load(workload, running)
    if outcome.received != workload.deliveries:
        raise RuntimeError(f"{workload.name}: {outcome.received} of {workload.deliveries} came")
    return outcome.messages_per_s, outcome.received / max(cpu_s(running.pid) - before, 0.001)


Rates = tuple[float, float]  # deliveries per second, and per second of CPU


def pairs_of(workload: Any, bare: Any, other: Any, rounds: int) -> list[tuple[Rates, Rates]]:
    """Both brokers loaded in turns, each of them first in every other round."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            second = measured(workload, other)
            pairs.append((measured(workload, bare), second))
        else:
            pairs.append((measured(workload, bare), measured(workload, other)))
    return pairs


def compare(folder: Path, starts: int, rounds: int, seconds: float, before: Path | None) -> None:
    """Prints two lines for each workload and each broker that is compared with the one without plugins."""
    from tidemq.bench.workload import Workload

    workloads = (
        Workload(name="1:1, QoS 0", messages=20_000),
        Workload(name="1:1, QoS 1", messages=5_000, qos=1),
        Workload(name="20:1, QoS 0", publishers=20, messages=1_000),
        Workload(name="1:1, 1,000 topics", pairs=True, topics=1_000, messages=20_000),
    )
    found: dict[tuple[str, str], list[tuple[Rates, Rates]]] = defaultdict(list)
    for _ in range(starts):  # two processes of the same program differ by some percent
        with ExitStack() as stack:
            bare = stack.enter_context(broker(folder, "none"))
            others = {"a plugin on other topics": stack.enter_context(broker(folder, "elsewhere"))}
            if before is not None:
                others["the build before"] = stack.enter_context(broker(folder, "none", before))
            for workload in workloads:
                sized = for_so_long(workload, bare, seconds)
                for name, other in others.items():
                    found[workload.name, name] += pairs_of(sized, bare, other, rounds)
    for (workload_name, name), pairs in found.items():
        for place, unit in enumerate(("a second", "a second of CPU")):
            ratios = [pair[1][place] / pair[0][place] for pair in pairs]
            low, middle, high = statistics.quantiles(ratios, n=4)
            none = statistics.median(pair[0][place] for pair in pairs)
            print(
                f"{workload_name}, {unit}: without {none / 1e6:.2f} M; {name}: {middle:.3f} of it "
                f"({low:.3f} to {high:.3f})"
            )


def for_so_long(workload: Any, running: Any, seconds: float) -> Any:
    """The workload with as many messages as this broker takes so many seconds for."""
    rate, _ = measured(workload, running)
    return replace(workload, messages=max(int(workload.messages * rate * seconds / workload.deliveries), 1))


def through(folder: Path, rounds: int, seconds: float) -> None:
    """Prints the rate of messages that a plugin gets, passes all of, and that are delivered."""
    from tidemq.bench.workload import Workload

    workloads = (
        Workload(name="1:1, QoS 0", messages=5_000),
        Workload(name="1:1, QoS 1", messages=5_000, qos=1),
        Workload(name="20:1, QoS 0", publishers=20, messages=500),
        Workload(name="20:20, QoS 1", publishers=20, subscribers=20, pairs=True, messages=500, qos=1),
    )
    with broker(folder, "everything") as running:
        for workload in workloads:
            sized = for_so_long(workload, running, seconds)
            samples = [measured(sized, running) for _ in range(rounds)]
            for place, unit in enumerate(("a second", "a second of CPU")):
                rates = sorted(sample[place] for sample in samples)
                print(
                    f"{workload.name}, through a plugin, {unit}: {statistics.median(rates):,.0f} "
                    f"({rates[0]:,.0f} to {rates[-1]:,.0f})"
                )


def main() -> None:
    """Measures both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--starts", type=int, default=4, help="of the brokers that are compared")
    parser.add_argument("--rounds", type=int, default=10, help="after each start")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each run")
    parser.add_argument("--before", type=Path, help="folder that holds another build's tidemq")
    parser.add_argument("--serve", choices=("none", "elsewhere", "everything"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve))
        return
    with tempfile.TemporaryDirectory() as name:
        compare(Path(name), given.starts, given.rounds, given.seconds, given.before)
        through(Path(name), given.rounds, given.seconds)


if __name__ == "__main__":
    main()
