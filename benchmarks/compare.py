"""Compare brokers by the load tools: every workload in turn against each, all started here, in one run.

Writes the runs, pictures and a page to `results/`. A broker that cannot be installed is left out, and named.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import machine
from pages import measured_on, remarks_part
from peers import PEERS
from peers.peer import PeerMissingError, anywhere

from tidemq.bench.report.page import write_report
from tidemq.bench.report.runs import read_runs
from tidemq.bench.report.tables import markdown, remarks, tables

RESULTS = Path(__file__).parent / "results"
TIDEMQ = Path(sys.executable).parent / "tidemq"
BROKERS = [name for name in PEERS if name != "relay"]  # that parse what they pass on


@dataclass(frozen=True, slots=True)
class Part:
    """Workloads that want the brokers started in the same way."""

    workloads: tuple[str, ...]
    latency: bool = False  # single messages are timed: TCP_NODELAY where a broker does not set it by itself


PARTS = (
    Part(
        (
            "many",  # the first, as a broker that had connections before has memory left for them
            "one-to-one",
            "fan-in",
            "fan-out",
            "mesh",
            "one-to-one-qos1",
            "one-to-one-qos2",
            "pairs-qos1",
        )
    ),
    Part(("ping", "ping-paced", "subscribers"), latency=True),
)


def parts_of(wanted: Collection[str]) -> list[Part]:
    """The parts, as far as their workloads are wanted."""
    chosen = [(part, tuple(name for name in part.workloads if name in wanted)) for part in PARTS]
    return [replace(part, workloads=names) for part, names in chosen if names]


def installed(names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The versions of those that can be had, and a sentence for each that cannot."""
    versions, missing = {}, []
    for name in names:
        try:
            PEERS[name].install()
            versions[name] = PEERS[name].version()
        except PeerMissingError as error:
            missing.append(f"{name} was left out: {error}")
            print(missing[-1], file=sys.stderr)
    return versions, missing


@contextmanager
def started(names: Sequence[str], *, latency: bool) -> Iterator[dict[str, str]]:
    """URLs of the brokers, which run side by side while the block does."""
    conditions = replace(anywhere(), nodelay=latency)
    with ExitStack() as stack:
        running = {name: stack.enter_context(PEERS[name].started(conditions)) for name in names}
        yield {name: f"mqtt://127.0.0.1:{each.port}" for name, each in running.items()}


def run_part(
    part: Part, names: Sequence[str], options: argparse.Namespace, folder: Path
) -> tuple[str, list[str]]:
    """Run `tidemq bench compare` over a part; returns the command, as a reader would type it, and a sentence
    for each workload that a broker could not begin.

    SystemExit where none could; what was lost on the way is in the runs.
    """
    with started(names, latency=part.latency) as urls:
        command = ["bench", "compare", "--workloads", ",".join(part.workloads)]
        command += ["--rounds", str(options.rounds), "--seconds", f"{options.seconds:g}"]
        command += [f"--broker={name}={url}" for name, url in urls.items()]
        command += ["--timeout", "30", "--out"]
        done = subprocess.run([str(TIDEMQ), *command, str(folder)], stderr=subprocess.PIPE, text=True)
        print(done.stderr, end="", file=sys.stderr)
        if done.returncode not in (0, 1):
            raise SystemExit(f"tidemq bench compare ended with status {done.returncode}")
    failures = [
        line.removeprefix("Error: ") for line in done.stderr.splitlines() if line.startswith("Error: ")
    ]
    return shlex.join(["tidemq", *command, "DIR"]), failures


def page(
    folder: Path,
    here: machine.Machine,
    busy: float,
    versions: Mapping[str, str],
    notes: Sequence[str],
    commands: Sequence[str],
) -> str:
    """The whole page; pictures lie in `folder`, beside it."""
    runs = read_runs([folder])
    brokers = ", ".join(f"{name} ({version})" for name, version in versions.items())
    lines = [
        "# Brokers compared",
        "",
        f"{measured_on(here)}. {brokers}.",
        "",
        "All brokers run side by side, one at a time under load; each workload goes round them in turn. "
        "Median of the rounds (lowest to highest). Generator, of one thread, and broker share the cores over "
        "loopback; MQTT 3.1.1; QoS 1 and 2 with 100 messages in flight a publisher; at most 20,000 messages "
        "sent and not yet received. How each broker is set up is said in `benchmarks/peers`: anonymous, "
        "nothing kept on disk. tidemq-durable, with its store, commits what it acknowledges to sessions that "
        "outlive their connection; here none does, so it has nothing to commit (`make bench-store` has). "
        f"Load average before the run: {busy:.2f}; niceness of all of it: {os.nice(0)}.",
        "",
        *(f"- {note}" for note in notes),
        *([""] if notes else []),
    ]
    for table in tables(runs):
        lines += [f"## {table.title}", "", table.note, "", markdown(table)]
    for name in sorted(path.name for path in folder.glob("*.png")):
        lines += [f"![{name.removesuffix('.png')}]({folder.name}/{name})", ""]
    lines += remarks_part(remarks(runs))
    lines += ["## Commands", "", "`make bench`, which starts the brokers and runs", "", "```"]
    lines += [*commands, "tidemq bench report DIR", "```", ""]
    return "\n".join(lines)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--brokers", default=",".join(BROKERS), help="names, with commas")
    names = [name for part in PARTS for name in part.workloads]
    parser.add_argument("--workloads", default=",".join(names), help="names, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--output", type=Path, help="stem of what is written; default: in results/, by date")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse_options(arguments)
    chosen = options.brokers.split(",")
    if unknown := set(chosen) - set(BROKERS):
        raise SystemExit(f"no broker {', '.join(sorted(unknown))}; known: {', '.join(BROKERS)}")
    stem = options.output or RESULTS / f"{date.today()}-brokers-{machine.commit().rstrip('+')}"
    if stem.exists():
        raise SystemExit(f"{stem} is there already: runs would be added to it; remove it, or give --output")
    wanted = set(options.workloads.split(","))
    if unknown := wanted - {name for part in PARTS for name in part.workloads}:
        raise SystemExit(f"no workload {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no broker is left behind
    versions, notes = installed(chosen)
    here, busy = machine.describe(), os.getloadavg()[0]
    commands = []
    for part in parts_of(wanted):
        command, failures = run_part(part, list(versions), options, stem)
        commands.append(command)
        notes += failures
    write_report([stem])
    stem.with_name(f"{stem.name}.md").write_text(page(stem, here, busy, versions, notes, commands))
    print(f"written: {stem}.md, runs and pictures in {stem}/")


if __name__ == "__main__":
    main(sys.argv[1:])
