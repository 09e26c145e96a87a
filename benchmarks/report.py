"""Figures for people: a line for each run, a Markdown page with the goals beside the figures, and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from machine import Machine
from measurement import Sample
from workloads import RATE_PER_S_PACED, SCENARIOS, Scenario

from tidemq.bench.workload import Outcome

Read = Callable[[Sample], float]
IDLE_BYTES_GOAL = 700
CPU_US_GOAL = 20.0  # a message at the paced rate, FlashMQ's on one thread
COST_RATIO_GOAL = 1.5  # of CPU a message, default reactors to one
MATCH_RATIO_GOAL = 2.0  # of CPU a message, a million subscriptions to a thousand

CONDITIONS = (
    "Payload 64 bytes, MQTT 3.1.1, loopback TCP; QoS 1 and 2 with 100 messages in flight a publisher; "
    "at most 20,000 messages sent and not yet received. With one reactor the broker is pinned to one "
    "core and the generator (one thread) to another; with the default number nothing is pinned, and the "
    "generator takes its share of the same cores. CPU is user and system time of all the broker's "
    "threads, to the nanosecond. Mosquitto has one thread; its limits on queued and in-flight messages "
    "are lifted. FlashMQ is not in Debian, so it is not measured here."
)
PACED_NOTE = (
    "A receiver that sleeps must be woken, on loopback at the broker's expense; one that polls, or that sits "
    "behind a network, need not."
)


class Samples:
    """All runs, by scenario, broker and reactors."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.by_key: dict[tuple[str, str, int], list[Sample]] = {}
        self.reactors: list[int] = []  # that were run, in that order; 0: the default
        for sample in samples:
            if sample.reactors not in self.reactors:
                self.reactors.append(sample.reactors)
            self.by_key.setdefault((sample.scenario, sample.broker, sample.reactors), []).append(sample)

    def of(self, scenario: str, broker: str, reactors: int) -> list[Sample]:
        return self.by_key.get((scenario, broker, reactors), [])

    def median(self, scenario: str, broker: str, reactors: int, read: Read) -> float | None:
        """The middle of the rounds; None where nothing was run."""
        samples = self.of(scenario, broker, reactors)
        return median(map(read, samples)) if samples else None

    def spread(self, scenario: str, broker: str, reactors: int, read: Read) -> str:
        """Median (lowest to highest), or a dash."""
        samples = self.of(scenario, broker, reactors)
        if not samples:
            return "—"
        figures = sorted(map(read, samples))
        marks = "" if all(sample.outcome.intact for sample in samples) else " **not intact**"
        return f"{short(median(figures))} ({short(figures[0])}-{short(figures[-1])}){marks}"


def short(figure: float) -> str:
    """Three or four digits that count: 1.23 M, 45.6 k, 6,750, 7.89."""
    if figure >= 1e6 * 0.9995:
        return f"{figure / 1e6:.3g} M"
    if figure >= 1e4:
        return f"{figure / 1e3:.3g} k"
    return f"{figure:,.0f}" if figure >= 1e2 else f"{figure:.3g}"


def latency_p50_us(sample: Sample) -> float:
    return sample.outcome.latency.p50_us if sample.outcome.latency else 0.0


def latency_p99_us(sample: Sample) -> float:
    return sample.outcome.latency.p99_us if sample.outcome.latency else 0.0


def print_sample(sample: Sample) -> None:
    """One line on the terminal."""
    reactors = f"{sample.reactors} reactor" if sample.reactors else "default"
    line = f"{sample.scenario:24} {sample.broker:10} {reactors:9} "
    if sample.bytes_per_connection:
        print(line + f"{sample.bytes_per_connection:,.0f} bytes a connection", flush=True)
        return
    line += f"{sample.per_s:12,.0f} messages/s {sample.per_cpu_s:12,.0f} per broker CPU-second"
    if sample.paced:
        line += f"  p50 {latency_p50_us(sample):,.0f} us, p99 {latency_p99_us(sample):,.0f} us"
    print(line + "".join(f"  [{remark}]" for remark in remarks(sample)), flush=True)


def remarks(sample: Sample) -> list[str]:
    """What a reader must know before trusting a figure."""
    found = []
    if not sample.outcome.intact:
        found.append(faults(sample.outcome))
    if sample.generator_bound:
        found.append("generator-bound")
    if sample.disturbed:
        found.append(f"others used {sample.others_cpu_s:.2f} s CPU")
    return found


def faults(outcome: Outcome) -> str:
    """What went wrong in a run that is not intact."""
    counts = {
        "lost": outcome.lost,
        "twice": outcome.duplicates,
        "out of order": outcome.disordered,
        "not ours": outcome.foreign,
        "wrong acknowledgements": outcome.ack_errors,
    }
    return ", ".join([outcome.end, *(f"{count:,} {name}" for name, count in counts.items() if count)])


def verdict(met: bool | None) -> str:
    return "—" if met is None else "met" if met else "**missed**"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines] + [""]


def rate_rows(samples: Samples, chosen: Sequence[Scenario]) -> list[list[str]]:
    rows = []
    for scenario in chosen:
        ours = samples.median(scenario.name, "tidemq", 1, cost_rate)
        theirs = samples.median(scenario.name, "mosquitto", 1, cost_rate)
        ratio = ours / theirs if ours and theirs else None
        goal = f"{short(scenario.goal_per_cpu_s)}, {scenario.goal_ratio:g} times"
        met = None
        if ours and ratio:
            met = ours >= scenario.goal_per_cpu_s and ratio >= scenario.goal_ratio
        rows.append(
            [
                scenario.text,
                samples.spread(scenario.name, "tidemq", 1, cost_rate),
                samples.spread(scenario.name, "mosquitto", 1, cost_rate),
                f"{ratio:.1f}" if ratio else "—",
                goal,
                verdict(met),
                samples.spread(scenario.name, "tidemq", 1, wall_rate),
                samples.spread(scenario.name, "mosquitto", 1, wall_rate),
                samples.spread(scenario.name, "relay", 1, cost_rate),
            ]
        )
    return rows


def cost_rate(sample: Sample) -> float:
    return sample.per_cpu_s


def wall_rate(sample: Sample) -> float:
    return sample.per_s


def cost_us(sample: Sample) -> float:
    return sample.cpu_us


def memory_bytes(sample: Sample) -> float:
    return sample.bytes_per_connection


def reactor_rows(samples: Samples, chosen: Sequence[Scenario]) -> list[list[str]]:
    """Default number of reactors against one."""
    rows = []
    for scenario in chosen:
        one, many = (samples.median(scenario.name, "tidemq", count, wall_rate) for count in (1, 0))
        dear, cheap = (samples.median(scenario.name, "tidemq", count, cost_us) for count in (0, 1))
        faster = many / one if one and many else None
        dearer = dear / cheap if dear and cheap else None
        met = None
        if faster and dearer:
            met = dearer <= COST_RATIO_GOAL and (faster > 1 or not scenario.scales)
        rows.append(
            [
                scenario.text,
                samples.spread(scenario.name, "tidemq", 0, wall_rate),
                f"{faster:.2f}" if faster else "—",
                "> 1" if scenario.scales else "—",
                f"{dearer:.2f}" if dearer else "—",
                f"≤ {COST_RATIO_GOAL:g}",
                verdict(met),
                samples.spread(scenario.name, "mosquitto", 0, wall_rate),
            ]
        )
    return rows


def paced_rows(samples: Samples, chosen: Sequence[Scenario]) -> list[list[str]]:
    return [
        paced_row(samples, scenario, reactors, broker)
        for scenario in chosen
        for reactors in samples.reactors
        for broker in ("tidemq", "mosquitto")
    ]


def paced_row(samples: Samples, scenario: Scenario, reactors: int, broker: str) -> list[str]:
    ours, theirs = (
        samples.median(scenario.name, each, reactors, latency_p99_us) for each in ("tidemq", "mosquitto")
    )
    cost = samples.median(scenario.name, broker, reactors, cost_us)
    met = None
    if broker == "tidemq" and ours and theirs and cost:
        met = ours <= theirs and cost <= CPU_US_GOAL
    return [
        f"{broker}, {'one reactor' if reactors else 'default'}, {scenario.text}",
        samples.spread(scenario.name, broker, reactors, latency_p50_us),
        samples.spread(scenario.name, broker, reactors, latency_p99_us),
        samples.spread(scenario.name, broker, reactors, cost_us),
        verdict(met),
    ]


def idle_rows(samples: Samples, scenario: Scenario) -> list[list[str]]:
    rows = []
    for reactors in samples.reactors:
        ours = samples.median(scenario.name, "tidemq", reactors, memory_bytes)
        rows.append(
            [
                "one reactor" if reactors else "default",
                samples.spread(scenario.name, "tidemq", reactors, memory_bytes),
                samples.spread(scenario.name, "mosquitto", reactors, memory_bytes),
                f"≤ {IDLE_BYTES_GOAL}",
                verdict(ours <= IDLE_BYTES_GOAL if ours else None),
            ]
        )
    return rows


def subscription_rows(samples: Samples, chosen: Sequence[Scenario]) -> list[list[str]]:
    """Cost of a message by the number of subscriptions, and how it grows from the first row's."""
    rows = []
    for scenario in chosen:
        cells = [scenario.text]
        ratios = []
        for broker in ("tidemq", "mosquitto"):
            cost = samples.median(scenario.name, broker, 1, cost_us)
            base = samples.median(chosen[0].name, broker, 1, cost_us)
            ratios.append(cost / base if cost and base else None)
            cells.append(samples.spread(scenario.name, broker, 1, cost_us))
            cells.append(f"{ratios[-1]:.2f}" if ratios[-1] else "—")
        met = ratios[0] <= MATCH_RATIO_GOAL if ratios[0] and scenario is not chosen[0] else None
        rows.append([*cells, verdict(met)])
    return rows


def before_rows(samples: Samples, chosen: Sequence[Scenario]) -> list[list[str]]:
    """This checkout beside an earlier one; the ratio is the median of the rounds' ratios."""
    rows = []
    for scenario in chosen:
        for reactors in samples.reactors:
            now, before = (samples.of(scenario.name, each, reactors) for each in ("tidemq", "before"))
            ratios = sorted(
                after.per_cpu_s / earlier.per_cpu_s for after, earlier in zip(now, before, strict=False)
            )
            if ratios:
                spread = f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
                name = f"{scenario.text}, {'one reactor' if reactors else 'default'}"
                figures = [
                    samples.spread(scenario.name, each, reactors, read)
                    for read in (cost_rate, wall_rate)
                    for each in ("before", "tidemq")
                ]
                rows.append([name, *figures[:2], spread, *figures[2:]])
    return rows


def before_part(samples: Samples, kinds: Mapping[str, Sequence[Scenario]]) -> list[str]:
    rows = before_rows(samples, [*kinds.get("rate", ()), *kinds.get("paced", ())])
    if not rows:
        return []
    head = ["workload", "before / CPU-s", "now / CPU-s", "now to before", "before / s", "now / s"]
    return ["## Before and now", "", *table(head, rows)]


def markdown(runs: Sequence[Sample], failures: Sequence[str], preface: Sequence[str]) -> str:
    """The whole page."""
    samples = Samples(runs)
    kinds: dict[str, list[Scenario]] = {}
    ran = {sample.scenario for sample in runs}
    for scenario in SCENARIOS:
        if scenario.name in ran:
            kinds.setdefault(scenario.kind, []).append(scenario)
    lines = ["# Load benchmarks", "", *preface]
    if "rate" in kinds:
        lines += [
            "## One reactor",
            "",
            "Messages delivered per second of the broker's CPU, and (last columns) per second.",
            "",
        ]
        head = ["workload", "TideMQ / CPU-s", "Mosquitto / CPU-s", "ratio", "goal", ""]
        head += ["TideMQ / s", "Mosquitto / s", "unparsed relay / CPU-s"]
        lines += table(head, rate_rows(samples, kinds["rate"]))
    if "rate" in kinds and 0 in samples.reactors:
        lines += ["## Default number of reactors", ""]
        head = [
            "workload",
            "TideMQ / s",
            "to one reactor",
            "goal",
            "CPU a message, to one reactor",
            "goal",
            "",
        ]
        lines += table([*head, "Mosquitto / s"], reactor_rows(samples, kinds["rate"]))
    if "paced" in kinds:
        goal = f"p99 no worse than Mosquitto's, at most {CPU_US_GOAL:g} us of CPU a message"
        lines += [f"## 1:1, QoS 0, paced at {RATE_PER_S_PACED:,} a second", ""]
        lines += [f"Microseconds. Goal: {goal}. {PACED_NOTE}", ""]
        head = ["broker", "p50", "p99", "CPU a message", ""]
        lines += table(head, paced_rows(samples, kinds["paced"]))
    if "idle" in kinds:
        lines += [f"## {kinds['idle'][0].text}", "", "Resident bytes of the broker, each connection.", ""]
        lines += table(["", "TideMQ", "Mosquitto", "goal", ""], idle_rows(samples, kinds["idle"][0]))
    if "subscriptions" in kinds:
        goal = f"at most {MATCH_RATIO_GOAL:g} times what it costs with a thousand"
        lines += ["## Subscriptions", "", f"CPU a message in microseconds, one reactor. Goal: {goal}.", ""]
        head = ["held by 100 connections", "TideMQ", "to the first", "Mosquitto", "to the first", ""]
        lines += table(head, subscription_rows(samples, kinds["subscriptions"]))
    lines += before_part(samples, kinds)
    return "\n".join(lines + remarked(runs, failures))


def preface(machine: Machine, versions: Mapping[str, str], rounds: int, seconds: float) -> list[str]:
    brokers = ", ".join(f"{name} ({version})" for name, version in versions.items())
    return [
        f"{machine.cpu}; {machine.cores} cores, {machine.memory_gib} GiB; {machine.kernel}; "
        f"Python {machine.python}; commit {machine.commit}. Brokers: {brokers}.",
        "",
        f"Median of {rounds} rounds of {seconds:g} s (lowest-highest), the brokers in turn. {CONDITIONS}",
        "",
    ]


def remarked(runs: Sequence[Sample], failures: Sequence[str]) -> list[str]:
    """What could not be run, and every run that a reader should distrust."""
    lines = [f"- {failure}" for failure in failures]
    lines += [
        f"- {run.scenario}, {run.broker}, {run.reactors or 'default'}: {'; '.join(remarks(run))}"
        for run in runs
        if remarks(run)
    ]
    return [
        "## Remarks on single runs",
        "",
        *(lines or ["None: every message arrived once and in order."]),
        "",
    ]


def write(
    stem: Path,
    text: str,
    runs: Sequence[Sample],
    failures: Sequence[str],
    machine: Machine,
    versions: Mapping[str, str],
) -> None:
    """The page as STEM.md and every sample as STEM.json."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text(text)
    samples = [asdict(run) | {"per_s": run.per_s, "per_cpu_s": run.per_cpu_s} for run in runs]
    content = {
        "machine": asdict(machine),
        "brokers": dict(versions),
        "failures": failures,
        "samples": samples,
    }
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"written: {stem.with_suffix('.md')} and {stem.with_suffix('.json')}")
