"""The page on scaling: a table for each load, a line for each number of reactors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from disk import DiskLatency
from engine_report import COST_RATIO_GOAL
from machine import Machine
from pages import figure, measured_on, part, ratio, remarks_part, verdict
from scaling_loads import LOADS, Load
from scaling_sample import Limit, Sample, siblings, threads_of

from tidemq.bench.report.numbers import NOTHING, duration, faults, short, spread
from tidemq.bench.report.tables import markdown_rows

Read = Callable[[Sample], float]
SIDES = {  # in the order of a table
    "tidemq": "",
    "durable": "",
    "preloaded": "other memory",
    "apart": "as many brokers, apart",
    "mosquitto": "Mosquitto",
}
KEPT_COUNTERS = (  # of a sample, in the file
    "messages_received",
    "messages_sent",
    "messages_mailed",
    "bytes_received",
    "bytes_sent",
    "turns",
    "turns_gathered",
    "cache_misses",
    "publishers_moved",
    "publishers_paused",
)
BROKER_HAD_MORE: tuple[Limit, ...] = ("generator", "one generator thread")
HEAD = (
    "reactors",
    "messages / s",
    "to one",
    "limited by",
    "cores used: broker, generator",
    "messages / CPU-s",
    "CPU a message, to one",
    f"goal ≤ {COST_RATIO_GOAL:g}",
    "mails a message",
    "received in a turn",
    "busiest reactor to the average",
    "p50",
    "p99",
)
HOW_TO_READ = (
    "Messages are deliveries, or (absent subscribers) messages stored and acknowledged. *To one*: to the "
    "line of one reactor. *Limited by*, in most rounds: *broker*, all its cores were busy for nine tenths of "
    "the time; *generator*, all its threads were, and the broker was not, so the figure is a lower bound, "
    "with ≥; *all cores*, broker and generator shared the cores, and no time was left over; *one reactor*, "
    "*one generator thread*, that one was busy all the time, and others were not; *waits*, nobody was: they "
    "waited for each other; *rate*, the load has one. *Mails a message*: to how many other reactors a "
    "message went. *Busiest reactor*: messages in and out of the one with most of them. Latencies are from "
    "sending to arrival with as much under way as the load allows; of the load with a rate, from when a "
    "message was due."
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the figures depend on."""

    here: Machine
    command: str
    cores: Sequence[int]
    speeds: Mapping[int, float]  # of so many loops at once, to one alone
    disk: DiskLatency


def line_of(sample: Sample, cores: int) -> str:
    """One line on the terminal."""
    threads = " ".join(f"{share:.2f}" for share in sample.thread_shares)
    return (
        f"{sample.scenario:16} {sample.side:9} {sample.reactors:2} {sample.per_s:12,.0f}/s "
        f"{sample.per_cpu_s:12,.0f}/CPU-s  broker {sample.cores_used:.2f} cores, generator "
        f"{sample.generator_cores_used:.2f}, {sample.limit(cores)}; mailed {sample.mailed:.2f}, turn "
        f"{sample.turn_messages:.1f}, uneven {sample.unevenness:.2f}, p99 {p99_us(sample):,.0f} us; "
        f"threads {threads}" + "".join(f"  [{remark}]" for remark in remarks(sample, cores))
    )


def remarks(sample: Sample, cores: int) -> list[str]:
    """What a reader must know before trusting a figure."""
    found = [] if sample.outcome.intact else faults(sample.outcome)
    if sample.disturbed(cores):
        found.append(f"others used {sample.others_cpu_s:.2f} s CPU")
    return found


def p50_us(sample: Sample) -> float:
    return sample.outcome.latency.p50_us if sample.outcome.latency else 0.0


def p99_us(sample: Sample) -> float:
    return sample.outcome.latency.p99_us if sample.outcome.latency else 0.0


class Samples:
    """All runs, by load, side and number of reactors."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.by_key: dict[tuple[str, str, int], list[Sample]] = {}
        for sample in samples:
            self.by_key.setdefault((sample.scenario, sample.side, sample.reactors), []).append(sample)

    def sides(self, load: str) -> list[str]:
        """Those that were run, in order."""
        ran = {side for name, side, _count in self.by_key if name == load}
        return [side for side in SIDES if side in ran]

    def counts(self, load: str, side: str) -> list[int]:
        """The numbers of reactors that were run."""
        return sorted(count for name, ran, count in self.by_key if (name, ran) == (load, side))

    def of(self, load: str, side: str, reactors: int) -> list[Sample]:
        return self.by_key.get((load, side, reactors), [])

    def median(self, load: str, side: str, reactors: int, read: Read) -> float | None:
        samples = self.of(load, side, reactors)
        return median(map(read, samples)) if samples else None

    def to_one(self, load: str, side: str, reactors: int, read: Read) -> float | None:
        """To the median of one broker with one reactor, as it is started."""
        base = "tidemq" if side in ("apart", "preloaded") else side
        return ratio(self.median(load, side, reactors, read), self.median(load, base, 1, read))

    def limit(self, load: str, side: str, reactors: int, cores: int) -> Limit:
        """In most rounds."""
        ((limit, _count),) = Counter(
            sample.limit(cores) for sample in self.of(load, side, reactors)
        ).most_common(1)
        return limit


def per_s(sample: Sample) -> float:
    return sample.per_s


def per_cpu_s(sample: Sample) -> float:
    return sample.per_cpu_s


def cost_s(sample: Sample) -> float:
    """CPU seconds of a message."""
    return 1 / sample.per_cpu_s if sample.per_cpu_s else 0.0


def rows_of(samples: Samples, load: Load, cores: int) -> list[list[str]]:
    return [
        row_of(samples, load, side, reactors, cores)
        for side in samples.sides(load.name)
        for reactors in samples.counts(load.name, side)
    ]


def row_of(samples: Samples, load: Load, side: str, reactors: int, cores: int) -> list[str]:
    runs = samples.of(load.name, side, reactors)
    limit = samples.limit(load.name, side, reactors, cores)
    cost = samples.to_one(load.name, side, reactors, cost_s)
    scored = reactors > 1 and side != "apart"
    known = bool(runs[0].counters)

    def middle(read: Read) -> float:
        return median(map(read, runs))

    return [
        f"{reactors}, {SIDES[side]}" if SIDES[side] else f"{reactors}",
        ("≥ " if limit in BROKER_HAD_MORE else "")
        + spread(map(per_s, runs))
        + ("" if all(run.outcome.intact for run in runs) else " **not intact**"),
        figure(samples.to_one(load.name, side, reactors, per_s)),
        limit,
        f"{middle(lambda run: run.cores_used):.1f}, {middle(lambda run: run.generator_cores_used):.1f}",
        spread(map(per_cpu_s, runs)),
        figure(cost),
        verdict(cost <= COST_RATIO_GOAL) if scored and cost is not None else NOTHING,
        f"{middle(lambda run: run.mailed):.2f}" if known else NOTHING,
        short(middle(lambda run: run.turn_messages)) if known else NOTHING,
        f"{middle(lambda run: run.unevenness):.1f}" if known else NOTHING,
        duration(middle(p50_us)) if runs[0].outcome.latency else NOTHING,
        duration(middle(p99_us)) if runs[0].outcome.latency else NOTHING,
    ]


def overview(samples: Samples, loads: Sequence[Load], cores: int) -> list[str]:
    """Speed and cost by number of reactors, one line for each load."""
    reactors = sorted({count for _load, side, count in samples.by_key if side in ("tidemq", "durable")})
    head = ["", *(f"{count}" for count in reactors)]
    speed, cost = [], []
    for load in loads:
        for side in samples.sides(load.name):
            if side == "mosquitto":
                continue
            name = f"the same, {SIDES[side]}" if SIDES[side] else load.text
            limits = {
                count: samples.limit(load.name, side, count, cores)
                for count in samples.counts(load.name, side)
            }
            cells = []
            for count in reactors:
                cell = figure(samples.to_one(load.name, side, count, per_s))
                cells.append(f"≥ {cell}" if limits.get(count) in BROKER_HAD_MORE else cell)
            if not load.workload.rate_per_s:
                speed.append([name, *cells])
            cells = [figure(samples.to_one(load.name, side, count, cost_s)) for count in reactors]
            cost.append([name, *cells])
    speed_note = "To one reactor, medians. ≥: the generator could do no more."
    cost_note = f"To one reactor. Goal: at most {COST_RATIO_GOAL:g}."
    return [
        *part("Messages a second, by reactors", speed_note, head, speed),
        *part("The broker's CPU for a message, by reactors", cost_note, head, cost),
    ]


def spread_of_work(samples: Samples, loads: Sequence[Load]) -> list[list[str]]:
    """Of the last round of each load: what each thread of the broker with most reactors ran."""
    rows = []
    for load in loads:
        for side in samples.sides(load.name):
            counts = samples.counts(load.name, side)
            if side == "mosquitto":
                continue
            sample = samples.of(load.name, side, counts[-1])[-1]
            name = f"the same, {SIDES[side]}" if SIDES[side] else load.text
            rows.append(
                [
                    name,
                    str(counts[-1]),
                    " ".join(f"{share:.0%}".rstrip("%") for share in sample.thread_shares),
                    f"{sum(sample.waited_shares):.2f}",
                    shares_text(sample),
                    f"{sample.counters.get('publishers_moved', 0):,}",
                    f"{sample.counters.get('publishers_paused', 0):,}",
                ]
            )
    return rows


def shares_text(sample: Sample) -> str:
    """Of all messages in and out, per cent by reactor."""
    work = [each.received + each.sent for each in sample.by_reactor]
    return " ".join(f"{100 * each / max(sum(work), 1):.0f}" for each in work)


def preface(around: Surroundings, rounds: int, seconds: float) -> list[str]:
    cores, disk = around.cores, around.disk
    speeds = ", ".join(f"{count}: {speed:.1f}" for count, speed in around.speeds.items() if count > 1)
    pairs = {tuple(siblings(core)) for core in cores}
    physical = (
        "Linux knows of no two that are one physical core"
        if all(len(each) == 1 for each in pairs)
        else f"logical cores that are one physical core: {sorted(pairs)}"
    )
    return [
        f"{measured_on(around.here, len(cores))}. Command: `{around.command}`.",
        "",
        f"Medians of {rounds} rounds of {seconds:g} s (lowest-highest); rounds alternate between the numbers "
        f"of reactors. 64-byte payloads, MQTT 3.1.1, loopback TCP, `--store memory` except where a title "
        f"says `durability`. A broker with N reactors has N cores (in this order: "
        f"{' '.join(map(str, cores))}), and the generator's {threads_of(cores)} threads have the last "
        f"{max(len(cores) // 2, 1)}; a broker that needs these too shares all cores with the generator.",
        "",
        f"{physical}. So many loops of plain Python at once, each on a core, did as much as so many alone: "
        f"{speeds or '—'}; what does less has no physical core of its own, or is slowed down by the others. "
        f"fdatasync of 4 KiB on the disk of the durable brokers ({disk.file_system}): p50 "
        f"{duration(disk.p50_us)}, p99 {duration(disk.p99_us)}.",
        "",
    ]


def markdown(
    runs: Sequence[Sample], failures: Sequence[str], around: Surroundings, rounds: int, seconds: float
) -> str:
    """The whole page."""
    samples, cores = Samples(runs), len(around.cores)
    ran = {run.scenario for run in runs}
    loads = [load for load in LOADS if load.name in ran]
    lines = ["# Scaling over cores", "", *preface(around, rounds, seconds)]
    lines += overview(samples, loads, cores)
    lines += ["## Each load", "", HOW_TO_READ, ""]
    for load in loads:
        lines += [
            f"### {load.text}",
            "",
            load.why,
            "",
            markdown_rows(HEAD, rows_of(samples, load, cores)),
            "",
        ]
    head = ["", "reactors", "% of the time that each thread ran", "cores waited for", "% of the messages"]
    head += ["publishers moved", "pauses"]
    note = (
        "With most reactors, last round. The threads of the broker that ran at all, the busiest first; how "
        "many threads on average were ready and had no core; messages in and out, by reactor; publishers "
        "that moved to another reactor, and how often one was paused."
    )
    lines += part("How even the work is", note, head, spread_of_work(samples, loads))
    said = [
        f"{run.scenario}, {run.side}, {run.reactors}: {'; '.join(remarks(run, cores))}"
        for run in runs
        if remarks(run, cores)
    ]
    return "\n".join([*lines, *remarks_part([*failures, *said])])


def content(runs: Sequence[Sample], failures: Sequence[str], around: Surroundings) -> dict[str, object]:
    """All that was measured, for the file beside the page."""
    return {
        "command": around.command,
        "cores": list(around.cores),
        "speeds": dict(around.speeds),
        "disk": asdict(around.disk),
        "failures": list(failures),
        "samples": [recorded(run, len(around.cores)) for run in runs],
    }


def recorded(run: Sample, cores: int) -> dict[str, object]:
    """A sample without what is always the same, or follows from the rest."""
    values = asdict(run)
    outcome = values.pop("outcome")
    for name in ("intervals", "latencies", "reason", "ack_latency", "clock_error_s", "word_s"):
        del outcome[name]
    return {
        **values,
        "thread_shares": in_a_line(run.thread_shares),
        "waited_shares": in_a_line(run.waited_shares),
        "by_reactor": {
            name: " ".join(str(getattr(each, name)) for each in run.by_reactor)
            for name in ("turns", "received", "sent")
        },
        "counters": {name: run.counters[name] for name in KEPT_COUNTERS if name in run.counters},
        "outcome": outcome,
        "per_s": round(run.per_s),
        "per_cpu_s": round(run.per_cpu_s),
        "limit": run.limit(cores),
    }


def in_a_line(shares: Iterable[float]) -> str:
    return " ".join(f"{share:.3f}" for share in shares)
