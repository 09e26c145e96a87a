"""The page on durability: figures with the goals beside them, and what a reader must know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from disk import RECORD_BYTES, DiskLatency
from engine_report import remarks
from flood import Flood
from keeping import PAYLOAD_BYTES, Kept, Queued, Retained
from machine import Machine
from measurement import Sample
from pages import GOALS_HEAD, figure, measured_on, part, ratio, remarks_part, verdict
from peers.durable import MEMORY, MOSQUITTO, SYNC, VARIANTS
from workloads import PAIRS, PERSISTENT

from tidemq.bench.report.numbers import faults, short, spread
from tidemq.bench.report.tables import markdown_rows
from tidemq.bench.result import Latency
from tidemq.bench.workload import Outcome

SYNC_SHARE_GOAL = 1 / 3  # of the rate without a store, with 100 pairs at QoS 1
PER_CORE_GOAL = 100_000  # messages in and out a second and core, the same
DRAIN_SHARE_GOAL = 1 / 4  # of the live rate
RISE_BYTES_GOAL = 200e6
RESTART_S_GOAL = 5.0
DISK_BYTES_GOAL = 1.5 * PAYLOAD_BYTES + 100  # a message, once compacted

CONDITIONS = (
    "Loopback TCP, MQTT 3.1.1; every session, publishers' too, is persistent; 100 messages in flight a "
    "publisher where no other number is named, at most 20,000 sent and not yet received. The generator (one "
    "thread) shares the cores with the broker. CPU is user and system time of all the broker's threads. "
    "`sync`, `interval` and `os` are TideMQ's durability: with `sync` no message is acknowledged before it "
    "is on the disk, or before all who wait for it have acknowledged it, which spares the disk where they "
    "are quick; with absent subscribers every message is written. Mosquitto runs with `persistence true`: it "
    "writes its state when it stops and every half hour, and acknowledges without waiting for the disk."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One run with one message in flight at a time."""

    variant: str
    absent: bool  # the subscriber is away, so that nothing else is written meanwhile
    outcome: Outcome

    @property
    def latency(self) -> Latency:
        assert self.outcome.ack_latency is not None
        return self.outcome.ack_latency


@dataclass(slots=True, kw_only=True)
class Results:
    """All that was measured."""

    disk: DiskLatency
    rates: list[Sample] = field(default_factory=list)  # broker: the variant's name
    waits: list[Wait] = field(default_factory=list)
    queues: list[Queued] = field(default_factory=list)
    retained: list[Retained] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def in_and_out(sample: Sample) -> int:
    return sample.outcome.sent + sample.outcome.received


def per_s(sample: Sample) -> float:
    """Messages in and out a second."""
    return in_and_out(sample) / sample.outcome.seconds if sample.outcome.seconds else 0.0


def per_cpu_s(sample: Sample) -> float:
    """Messages in and out a second of the broker's CPU."""
    return in_and_out(sample) / sample.broker_cpu_s if sample.broker_cpu_s else 0.0


def print_sample(sample: Sample) -> None:
    """One line on the terminal."""
    line = f"{sample.scenario:18} {sample.broker:17} {per_s(sample):12,.0f} in and out/s "
    line += f"{per_cpu_s(sample):12,.0f} per broker CPU-second"
    print(line + "".join(f"  [{remark}]" for remark in remarks(sample)), flush=True)


def print_wait(wait: Wait) -> None:
    """One line on the terminal."""
    where = "away" if wait.absent else "connected"
    line = f"one at a time, subscriber {where:10} {wait.variant:17}"
    print(f"{line} p50 {wait.latency.p50_us:,.0f} us, p99 {wait.latency.p99_us:,.0f} us", flush=True)


def middle(samples: Sequence[Sample], read: Callable[[Sample], float]) -> float | None:
    return median(map(read, samples)) if samples else None


def at_least(value: float | None, goal: float) -> str:
    return verdict(None if value is None else value >= goal)


def rate_lines(results: Results, cores: int) -> list[str]:
    lines = []
    for scenario in PERSISTENT:
        runs = {
            variant.name: [
                run for run in results.rates if (run.scenario, run.broker) == (scenario.name, variant.name)
            ]
            for variant in VARIANTS
        }
        rates = {name: middle(samples, per_s) for name, samples in runs.items()}
        if not any(runs.values()):
            continue
        rows = [
            [
                name,
                spread(map(per_s, samples)),
                spread(per_s(sample) / cores for sample in samples),
                spread(map(per_cpu_s, samples)),
                figure(ratio(rates[name], rates[MEMORY.name])),
                figure(ratio(rates[name], rates[MOSQUITTO.name])),
            ]
            for name, samples in runs.items()
            if samples
        ]
        head = ["", "in and out / s", "and core", "and broker CPU-s", "to memory", "to Mosquitto"]
        lines += part(scenario.text, "", head, rows)
        if scenario is PAIRS:
            lines.append(markdown_rows(GOALS_HEAD, rate_goals(rates, cores)))
    return lines


def rate_goals(rates: dict[str, float | None], cores: int) -> list[list[str]]:
    sync = rates[SYNC.name]
    share = ratio(sync, rates[MEMORY.name])
    return [
        [
            "rate with sync to memory",
            figure(share),
            f"≥ {SYNC_SHARE_GOAL:.2f}",
            at_least(share, SYNC_SHARE_GOAL),
        ],
        [
            "in and out / s and core with sync",
            short(sync / cores) if sync else "—",
            f"≥ {short(PER_CORE_GOAL)}",
            at_least(ratio(sync, cores), PER_CORE_GOAL),
        ],
    ]


def wait_lines(results: Results) -> list[str]:
    if not results.waits:
        return []
    rows = [
        ["fdatasync of the disk itself", f"{results.disk.p50_us:,.0f}", f"{results.disk.p99_us:,.0f}", "", ""]
    ]
    for variant in VARIANTS:
        cells = [variant.name]
        for absent in (True, False):
            waits = [
                wait.latency
                for wait in results.waits
                if (wait.variant, wait.absent) == (variant.name, absent)
            ]
            cells += [spread(wait.p50_us for wait in waits), spread(wait.p99_us for wait in waits)]
        rows.append(cells)
    note = (
        "From PUBLISH to PUBACK, microseconds, median of the rounds (lowest-highest). With its subscriber "
        "connected each message is also delivered, and its removal from the queue written, while the next "
        f"one waits for its turn. The disk: {RECORD_BYTES:,} bytes appended and synced."
    )
    head = ["", "subscriber away: p50", "p99", "subscriber connected: p50", "p99"]
    return part("One QoS 1 message at a time", note, head, rows)


def kept_rows(kept: Kept) -> list[list[str]]:
    """Rows of figure, value, goal, verdict."""
    restart, total = kept.restart, kept.load.total
    compacted = kept.disk_bytes_compacted / total
    return [
        ["stored / s", short(kept.stored.sent_per_s), "", ""],
        ["rise of the broker's memory", megabytes(kept.rise_bytes), "", ""],
        ["the same a message", f"{kept.rise_bytes / total:,.0f} bytes", "", ""],
        ["its peak", megabytes(kept.rise_bytes_peak), "", ""],
        ["on disk, a message", f"{kept.disk_bytes / total:,.0f} bytes", "", ""],
        [
            "once compacted",
            f"{compacted:,.0f} bytes",
            f"< {DISK_BYTES_GOAL:.0f} bytes",
            verdict(compacted < DISK_BYTES_GOAL),
        ],
        ["start with nothing kept", f"{restart.empty_s:.2f} s", "", ""],
        [
            "start after kill -9",
            f"{restart.killed_s:.2f} s",
            f"< {RESTART_S_GOAL:g} s",
            verdict(restart.killed_s < RESTART_S_GOAL),
        ],
        ["stop", f"{restart.stop_s:.2f} s", "", ""],
        [
            "start after the stop",
            f"{restart.stopped_s:.2f} s",
            f"< {RESTART_S_GOAL:g} s",
            verdict(restart.stopped_s < RESTART_S_GOAL),
        ],
    ]


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"


def queue_lines(queues: Iterable[Queued]) -> list[str]:
    lines = []
    for queued in queues:
        load = queued.kept.load
        rows = kept_rows(queued.kept)
        rows[1][2:] = [f"< {RISE_BYTES_GOAL / 1e6:g} MB", verdict(queued.kept.rise_bytes < RISE_BYTES_GOAL)]
        share = ratio(queued.drained.messages_per_s, queued.live.messages_per_s)
        rows += [
            [
                "delivered on return",
                f"{queued.drained.received:,} of {load.total:,}",
                "all",
                verdict(queued.drained.intact),
            ],
            ["in", f"{queued.drained.seconds:.2f} s", "", ""],
            ["delivered / s", short(queued.drained.messages_per_s), "", ""],
            ["delivered / s while connected, before", short(queued.live.messages_per_s), "", ""],
            [
                "share of that",
                figure(share),
                f"≥ {DRAIN_SHARE_GOAL:g}",
                at_least(share, DRAIN_SHARE_GOAL),
            ],
        ]
        note = (
            f"{PAYLOAD_BYTES} bytes, QoS 1, durability sync. Clients subscribe and leave; then each has "
            f"{load.messages:,} messages published to it; the broker is killed, started, stopped, its store "
            "compacted, started; then all clients come back at once. Delivery counts from the first CONNECT."
        )
        title = f"{load.total:,} messages for {load.clients:,} absent client{'s' * (load.clients > 1)}"
        lines += part(title, note, GOALS_HEAD, rows)
    return lines


def retained_lines(found: Iterable[Retained]) -> list[str]:
    lines = []
    for retained in found:
        rows = [
            *([*row[:2], "", ""] for row in kept_rows(retained.kept)),  # the goals are those of queues
            ["found by a wildcard that matches 10", f"{retained.found}", "10", verdict(retained.found == 10)],
            ["in", f"{retained.found_ms:.2f} ms", "", ""],
            ["in, first time after a restart", f"{retained.found_restarted_ms:.2f} ms", "", ""],
            *flood_rows(retained.flood),
        ]
        note = (
            f"{PAYLOAD_BYTES} bytes, QoS 1, durability sync, a topic each. A single message is one of "
            "QoS 0 that a client publishes to itself; eight such clients take turns, so that every reactor "
            "is looked at."
        )
        lines += part(f"{retained.kept.load.total:,} retained messages", note, GOALS_HEAD, rows)
    return lines


def flood_rows(flood: Flood) -> list[list[str]]:
    """What a wildcard finds that matches very many, and how long single messages take beside it."""
    rows = [
        [
            f"found by a wildcard that matches {flood.expected:,}",
            f"{flood.found:,}",
            "all",
            verdict(flood.found == flood.expected),
        ],
        ["all of them in", f"{flood.seconds:.2f} s", "", ""],
    ]
    for name, waits in (("before", flood.before), ("meanwhile", flood.meanwhile)):
        rows.append([f"a single message {name}: p50", f"{waits.p50_ms:.2f} ms", "", ""])
        rows.append([f"p99 {name}", f"{waits.p99_ms:.2f} ms", "", ""])
        rows.append([f"longest {name}", f"{waits.max_ms:.2f} ms of {waits.messages:,}", "", ""])
    return rows


def remarked(results: Results) -> list[str]:
    lines = [
        f"{run.scenario}, {run.broker}: {'; '.join(remarks(run))}" for run in results.rates if remarks(run)
    ]
    others = [(f"one at a time, {wait.variant}", wait.outcome) for wait in results.waits]
    for queued in results.queues:
        for name, outcome in (
            ("live", queued.live),
            ("stored", queued.kept.stored),
            ("drained", queued.drained),
        ):
            others.append((f"{queued.kept.load.clients:,} clients, {name}", outcome))
    others += [("retained", retained.kept.stored) for retained in results.retained]
    lines += [f"{name}: {', '.join(faults(outcome))}" for name, outcome in others if not outcome.intact]
    return [*results.failures, *lines]


def markdown(
    results: Results, machine: Machine, mosquitto: str, rounds: int, seconds: float, load_before: float
) -> str:
    """The whole page."""
    lines = [
        "# Durability benchmarks",
        "",
        f"{measured_on(machine)}; Mosquitto {mosquitto}; load average when it began {load_before:.2f}. The "
        f"disk ({results.disk.file_system}) takes {results.disk.p50_us:,.0f} us for an fdatasync (p99 "
        f"{results.disk.p99_us:,.0f} us).",
        "",
        f"Median of {rounds} rounds of {seconds:g} s (lowest-highest), the brokers in turn. {CONDITIONS}",
        "",
        *rate_lines(results, machine.cores),
        *wait_lines(results),
        *queue_lines(results.queues),
        *retained_lines(results.retained),
        *remarks_part(remarked(results)),
    ]
    return "\n".join(lines)
