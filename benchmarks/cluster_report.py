"""The page on clusters: figures with the goals beside them, and what a reader must know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import ge, gt, le
from statistics import median

from cluster_log import Throughput
from disk import RECORD_BYTES, DiskLatency
from machine import Machine
from pages import GOALS_HEAD, figure, measured_on, part, remarks_part, verdict
from peers.nodes import ONE, TWO, TWO_SYNCED, Nodes
from workloads import PAIRS_ABSENT

from tidemq.bench.report.numbers import faults, short, spread
from tidemq.bench.result import Latency
from tidemq.bench.workload import Outcome, Workload

ACROSS_GOAL = 0.2  # of one node's deliveries per CPU-second
COPIES_GOAL = 0.25  # of one node's messages per CPU-second
WAIT_GOAL_MS = 3.0  # p50
LOG_GOAL_PER_S = 200_000
FAILOVER_GOAL_S = 3.0

Load = Callable[[Workload, Nodes], tuple[dict[str, float], Outcome]]

CONDITIONS = (
    "Loopback TCP, MQTT 3.1.1. Two nodes and one broker without a cluster run side by side; one of these "
    "sides at a time is under load, in turn. Both keep everything on the disk before they acknowledge it. "
    "The nodes of a side have together as many reactors as there are cores, as one broker has by default. "
    "The generator shares the cores with them. CPU is user and system time of all processes of a side, "
    "brokers and `nats-server`s, from the first message until they rest: a quarter of a second with less "
    "than a tenth of a core."
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one load against one side."""

    scenario: str
    text: str
    side: str
    outcome: Outcome
    cpu_s: dict[str, float]  # by what used it
    rested: bool  # the CPU is that of all that the run has caused
    load: float

    @property
    def messages(self) -> int:
        """Delivered; where nobody is there, acknowledged."""
        return self.outcome.received or self.outcome.sent

    @property
    def per_cpu_s(self) -> float:
        return self.messages / max(sum(self.cpu_s.values()), 0.001)

    @property
    def per_s(self) -> float:
        return self.messages / self.outcome.seconds if self.outcome.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """One run with one message at a time."""

    side: str
    outcome: Outcome
    load: float

    @property
    def latency(self) -> Latency:
        assert self.outcome.ack_latency is not None
        return self.outcome.ack_latency


@dataclass(frozen=True, slots=True)
class Failover:
    """A subscriber's node was killed."""

    seconds: float
    load: float


@dataclass(slots=True, kw_only=True)
class Found:
    """All that was measured."""

    disk: DiskLatency
    runs: list[Run] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    log: list[Throughput] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


hundredths = "{:.2f}".format


def print_run(run: Run) -> None:
    """One line on the terminal."""
    used = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in run.cpu_s.items())
    line = f"{run.scenario:18} {run.side:10} {run.per_s:11,.0f}/s {run.per_cpu_s:11,.0f} per CPU-second"
    print(f"{line} ({used})" + "".join(f"  [{each}]" for each in remarks_on(run)), flush=True)


def print_wait(wait: Wait) -> None:
    """One line on the terminal."""
    print(
        f"one at a time, {wait.side}: p50 {wait.latency.p50_us:,.0f} us, p99 {wait.latency.p99_us:,.0f} us",
        flush=True,
    )


def remarks_on(run: Run) -> list[str]:
    found = [] if run.outcome.intact else faults(run.outcome)
    return found + ([] if run.rested else ["did not come to rest"])


def run_lines(found: Found) -> list[str]:
    """A section for each load: both sides, and one's share of the other."""
    lines = []
    for name in dict.fromkeys(run.scenario for run in found.runs):
        runs = {
            side: [run for run in found.runs if (run.scenario, run.side) == (name, side)]
            for side in (ONE.name, TWO.name)
        }
        rows = [
            [
                side,
                spread(run.per_s for run in same),
                spread(run.per_cpu_s for run in same),
                *(
                    spread(run.cpu_s[what] / run.messages * 1e6 for run in same if run.messages)
                    for what in ("brokers", "nats-servers")
                ),
                spread((run.load for run in same), "{:.1f}".format),
            ]
            for side, same in runs.items()
        ]
        head = ["", "messages / s", "and CPU-second", "µs of brokers", "µs of nats-servers", "load"]
        text = next(run.text for run in found.runs if run.scenario == name)
        lines += part(text, "", head, rows)
    return lines


def shares(found: Found, scenario: str) -> list[float]:
    """Two nodes' messages per CPU-second to one's, round by round."""
    one, two = (
        [run.per_cpu_s for run in found.runs if (run.scenario, run.side) == (scenario, side)]
        for side in (ONE.name, TWO.name)
    )
    return [b / a for a, b in zip(one, two, strict=False) if a]


def goal_row(
    text: str, values: Sequence[float], goal: str, met: Callable[[float], bool], show: Callable[[float], str]
) -> list[str]:
    """A row of goals by the median, which the spread stands beside."""
    return [text, spread(values, show), goal, verdict(met(median(values)) if values else None)]


def goal_lines(found: Found) -> list[str]:
    note = "Median of the rounds (lowest-highest). A node's own `nats-server` is lazy: it syncs each second."
    return part("Goals", note, GOALS_HEAD, [*share_goals(found), *other_goals(found)])


def share_goals(found: Found) -> list[list[str]]:
    rows = []
    for name in dict.fromkeys(run.scenario for run in found.runs):
        goal = COPIES_GOAL if name == PAIRS_ABSENT.name else ACROSS_GOAL
        text = next(run.text for run in found.runs if run.scenario == name)
        text += ": messages per CPU-second, to one node's"
        rows.append(goal_row(text, shares(found, name), f"≥ {goal:g}", partial(le, goal), figure))
    return rows


def other_goals(found: Found) -> list[list[str]]:
    rows = []
    for setup, text in ((TWO, "lazy"), (TWO_SYNCED, "synced")):
        waits = [wait.latency.p50_us / 1e3 for wait in found.waits if wait.side == setup.name]
        text = f"PUBACK of two copies, `nats-server` {text}: p50, ms"
        rows.append(goal_row(text, waits, f"≤ {WAIT_GOAL_MS:g}", partial(ge, WAIT_GOAL_MS), hundredths))
    for sync in ("lazy", "synced"):
        rates = [each.per_s for each in found.log if each.sync == sync]
        text = f"operations a second through the log, `nats-server` {sync}"
        rows.append(goal_row(text, rates, f"≥ {short(LOG_GOAL_PER_S)}", partial(le, LOG_GOAL_PER_S), short))
    times = [each.seconds for each in found.failovers]
    text = "failover of a subscriber's node, s"
    rows.append(goal_row(text, times, f"< {FAILOVER_GOAL_S:g}", partial(gt, FAILOVER_GOAL_S), hundredths))
    return rows


def wait_lines(found: Found) -> list[str]:
    rows = [
        [
            "fdatasync of the disk itself",
            f"{found.disk.p50_us / 1e3:.2f}",
            f"{found.disk.p99_us / 1e3:.2f}",
            "",
        ]
    ]
    for setup in (ONE, TWO, TWO_SYNCED):
        same = [wait for wait in found.waits if wait.side == setup.name]
        rows.append(
            [
                setup.name,
                spread((wait.latency.p50_us / 1e3 for wait in same), hundredths),
                spread((wait.latency.p99_us / 1e3 for wait in same), hundredths),
                spread((wait.load for wait in same), "{:.1f}".format),
            ]
        )
    note = (
        "From PUBLISH to PUBACK, milliseconds; the subscriber is away, so that the message is stored. "
        f"The disk: {RECORD_BYTES:,} bytes appended and synced."
    )
    return part("One QoS 1 message at a time", note, ["", "p50", "p99", "load"], rows)


def remarked(found: Found) -> list[str]:
    lines = [f"{run.text}, {run.side}: {'; '.join(remarks_on(run))}" for run in found.runs if remarks_on(run)]
    lines += [
        f"one at a time, {wait.side}: {', '.join(faults(wait.outcome))}"
        for wait in found.waits
        if not wait.outcome.intact
    ]
    return [*found.failures, *lines]


def markdown(found: Found, machine: Machine, rounds: int, seconds: float) -> str:
    """The whole page."""
    lines = [
        "# What a cluster costs",
        "",
        f"{measured_on(machine)}. The disk ({found.disk.file_system}) takes {found.disk.p50_us:,.0f} us for "
        f"an fdatasync (p99 {found.disk.p99_us:,.0f} us).",
        "",
        f"Median of {rounds} rounds, each of about {seconds:g} s of CPU (lowest-highest). {CONDITIONS} Load: "
        "the load average of a minute before each run; what runs cause themselves is in it.",
        "",
        *goal_lines(found),
        *run_lines(found),
        *(wait_lines(found) if found.waits else ()),
        *remarks_part(remarked(found)),
    ]
    return "\n".join(lines)
