"""The page on a split: how long it took to be one again, what that cost, and what was seen meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from cluster_split_watch import Sample
from disk import DiskLatency
from machine import Machine
from pages import GOALS_HEAD, measured_on, part, verdict

from tidemq.bench.report.numbers import short
from tidemq.bench.workload import Outcome, Workload

GOAL_MESSAGES = 30_000_000
GOAL_S, GOAL_CORES = 60.0, 2
THEIRS_S, THEIRS_CORES = 21.0, 4 * 32  # HiveMQ's, as published
PHASES = ("filling", "to same vectors", "to equal digests")

CONDITIONS = (
    "Times are from the moment at which the links are whole again. Nodes are looked at twice a second, and "
    "look at each other each 0.3 s: a time may be most of a second too long. CPU is user and system time."
)
NO_PLOT = "No plot was drawn: pip install 'tidemq[bench]'"


@dataclass(frozen=True, slots=True)
class Split:
    """What was to be done. `workload`: that of one side. `apart_s`: how long the sides have had each other's
    sessions when messages come.
    """

    nodes: int
    workload: Workload
    apart_s: float = 0.0

    @property
    def messages(self) -> int:
        """Of both sides."""
        return 2 * self.workload.messages * self.workload.publishers

    @property
    def copies(self) -> str:
        """What an acknowledgement waits for."""
        if self.nodes < 4:
            return "A side with one node acknowledges what is on its disk alone."
        return "Each side acknowledges what is on a disk and has a second copy."

    @property
    def in_queue(self) -> int:
        """Of both sides, in each queue."""
        return 2 * self.workload.messages


@dataclass(slots=True)
class Found:
    """What was measured. `marks`: moments, as `Sample.at`. `cpu_s`: by phase and kind of process. `log`: of
    each node when the links were healed, records and bytes. `homes`: nodes at which one session was, at most.
    """

    split: Split
    marks: dict[str, float] = field(default_factory=dict)
    filled: list[Outcome] = field(default_factory=list)
    cpu_s: dict[str, dict[str, float]] = field(default_factory=dict)
    own_cpu_s: float = 0.0  # of this program from healing to equal digests: the links, and looking
    others_cpu_s: float = 0.0  # of all other processes of the machine
    log: dict[str, tuple[int, int]] = field(default_factory=dict)
    verdict: str = ""
    rows: int = 0  # that were compared, on all nodes
    queues: int = 0  # that have messages
    queued: int = 0
    wrong: int = 0  # queues that have not as many as were sent
    homes: int = 0
    memory_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    disk_bytes: dict[str, int] = field(default_factory=dict)
    disk: DiskLatency | None = None
    load: float = 0.0  # average of a minute before
    here: bool = True  # the nodes were started on this machine
    failures: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Each message is in its queue, once."""
        split = self.split
        counts = (self.queues, self.queued, self.wrong, self.homes)
        return counts == (split.workload.publishers, split.messages, 0, 1)

    def seconds(self, mark: str) -> float | None:
        """From healing to that moment; None: it did not come."""
        if mark not in self.marks or "healed" not in self.marks:
            return None
        return self.marks[mark] - self.marks["healed"]

    def used_s(self, phase: str) -> float | None:
        """CPU of all nodes; None: not known."""
        return sum(self.cpu_s[phase].values()) if self.cpu_s.get(phase) else None


def what_is_wrong(found: Found) -> str:
    """In words, where not each message is in its queue, once."""
    split = found.split
    return (
        f"{found.queued:,} messages in {found.queues:,} queues instead of {split.messages:,} in "
        f"{split.workload.publishers:,}; {found.wrong:,} queues have not {split.in_queue:,}; one session is "
        f"at {found.homes} nodes"
    )


def plot_beside(stem: Path) -> Path | None:
    """Where the plot is to be; None where matplotlib is not there."""
    return stem.with_suffix(".svg") if find_spec("matplotlib") is not None else None


def seconds_text(value: float | None) -> str:
    return "—" if value is None else f"{value:.1f}"


def goal_lines(found: Found) -> list[str]:
    """Beside the goal, which is for 30 million: with fewer, what it would be with as much for each."""
    took, used = found.seconds("equal digests"), found.used_s("to equal digests")
    factor = GOAL_MESSAGES / found.split.messages
    goal, budget = f"< {GOAL_S:g}", f"< {GOAL_S * GOAL_CORES:g}"
    rows = [
        ["from healing to same vectors, s", seconds_text(found.seconds("same vectors")), "", ""],
        ["from healing to equal digests, s", seconds_text(took), "", ""],
        ["CPU of all nodes for that, s", seconds_text(used), "", ""],
    ]
    for what, value, bound, text in (
        ("s", took, GOAL_S, goal),
        ("core-seconds", used, GOAL_S * GOAL_CORES, budget),
    ):
        scaled = None if value is None else value * factor
        met = None if scaled is None else scaled < bound
        name = "30 million messages" if factor <= 1 else "30 million, with as much for each message"
        rows.append([f"{name}: {what}", seconds_text(scaled), text, verdict(met)])
    note = (
        f"HiveMQ has published {THEIRS_S:g} s for 30 million on 4 machines of 32 cores: "
        f"{THEIRS_S * THEIRS_CORES:,.0f} core-seconds."
    )
    return part("Goals", note, GOALS_HEAD, rows)


def cost_lines(found: Found) -> list[str]:
    rows = []
    for phase in PHASES:
        used = found.cpu_s.get(phase, {})
        total = found.used_s(phase)
        rows.append(
            [
                phase if phase == "filling" else f"healed, {phase}",
                seconds_text(phase_seconds(found, phase)),
                *(seconds_text(used.get(kind)) for kind in ("broker", "nats-server")),
                "—" if not total else short(found.split.messages / total),
            ]
        )
    head = ["", "s", "CPU-s of brokers", "CPU-s of nats-servers", "messages per CPU-second"]
    note = (
        f"This program used {found.own_cpu_s:.1f} s of CPU from healing to equal digests, for the links and "
        f"for looking; all others on this machine {max(found.others_cpu_s, 0.0):.1f} s."
        if found.here
        else "The nodes are on other machines: their CPU, memory and disks are not known here."
    )
    return part("What it cost", note, head, rows)


def phase_seconds(found: Found, phase: str) -> float | None:
    if phase != "filling":
        return found.seconds(phase.removeprefix("to "))
    marks = found.marks
    return marks["filled"] - marks["filling"] if "filled" in marks else None


def node_lines(found: Found) -> list[str]:
    rows = []
    for name, (records, size) in found.log.items():
        memory = found.memory_bytes.get(name, {})
        disk = found.disk_bytes.get(name)
        rows.append(
            [
                name,
                f"{records:,}",
                megabytes(size),
                *(megabytes(memory.get(kind)) for kind in ("broker", "nats-server")),
                megabytes(disk),
            ]
        )
    head = ["", "records of its log", "MB of them", "broker, MB", "nats-server, MB", "on the disk, MB"]
    note = (
        "The log as it was when the links were healed: what the other side lacks. Memory is the most that "
        "was resident; the disk as it was in the end."
    )
    return part("The nodes", note, head, rows)


def megabytes(size: int | None) -> str:
    return "—" if size is None else f"{size / 1e6:,.0f}"


def count_line(found: Found) -> str:
    if not found.is_whole:
        return f"**{what_is_wrong(found)}**"
    return (
        f"All {found.queued:,} messages are in their queues, {found.split.in_queue:,} in each of "
        f"{found.queues:,}, each session at one node. {found.rows:,} rows were compared on all nodes."
    )


def markdown(found: Found, here: Machine, plot: Path | None) -> str:
    """The whole page."""
    split, disk = found.split, found.disk
    speed = f" The disk ({disk.file_system}) takes {disk.p50_us:,.0f} us for an fdatasync." if disk else ""
    place = "on this machine, over loopback" if found.here else "on other machines"
    lines = [
        "# A cluster that was split",
        "",
        f"{measured_on(here)}.{speed} Load average of a minute before: {found.load:.1f}.",
        "",
        f"{split.nodes} nodes {place}, {split.workload.publishers:,} sessions whose clients are away, "
        f"{split.messages:,} messages of QoS 1 and {split.workload.payload_bytes} bytes, half of them on "
        f"each side of the split, {split.apart_s:g} s after each side had all sessions. "
        f"{split.copies} {CONDITIONS}",
        "",
        count_line(found),
        "",
        *([f"![nodes, links and queues]({plot.name})", ""] if plot else [NO_PLOT, ""]),
        *goal_lines(found),
        *cost_lines(found),
        *node_lines(found),
        *(["## Failures", "", *(f"- {each}" for each in found.failures), ""] if found.failures else []),
    ]
    return "\n".join(lines)
