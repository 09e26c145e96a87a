"""The page on the engine: a line for each run, the goals beside the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median

from machine import Machine
from measurement import Sample
from pages import figure, measured_on, part, ratio, remarks_part, verdict
from workloads import RATE_PER_S_PACED, SCENARIOS, Scenario

from tidemq.bench.report.numbers import faults, short, spread

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
        """Median (lowest-highest), or a dash."""
        samples = self.of(scenario, broker, reactors)
        marks = "" if all(sample.outcome.intact for sample in samples) else " **not intact**"
        return spread(map(read, samples)) + marks


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
        found += faults(sample.outcome)
    if sample.generator_bound:
        found.append("generator-bound")
    if sample.disturbed:
        found.append(f"others used {sample.others_cpu_s:.2f} s CPU")
    return found


def rate_rows(samples: Samples, chosen: Sequence[Scenario]) -> list[list[str]]:
    rows = []
    for scenario in chosen:
        ours = samples.median(scenario.name, "tidemq", 1, cost_rate)
        theirs = samples.median(scenario.name, "mosquitto", 1, cost_rate)
        times = ratio(ours, theirs)
        goal = f"{short(scenario.goal_per_cpu_s)}, {scenario.goal_ratio:g} times"
        met = None
        if ours and times:
            met = ours >= scenario.goal_per_cpu_s and times >= scenario.goal_ratio
        rows.append(
            [
                scenario.text,
                samples.spread(scenario.name, "tidemq", 1, cost_rate),
                samples.spread(scenario.name, "mosquitto", 1, cost_rate),
                f"{times:.1f}" if times else "—",
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
        faster = ratio(many, one)
        dearer = ratio(dear, cheap)
        met = None
        if faster and dearer:
            met = dearer <= COST_RATIO_GOAL and (faster > 1 or not scenario.scales)
        rows.append(
            [
                scenario.text,
                samples.spread(scenario.name, "tidemq", 0, wall_rate),
                figure(faster),
                "> 1" if scenario.scales else "—",
                figure(dearer),
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
            ratios.append(ratio(cost, base))
            cells.append(samples.spread(scenario.name, broker, 1, cost_us))
            cells.append(figure(ratios[-1]))
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
                name = f"{scenario.text}, {'one reactor' if reactors else 'default'}"
                figures = [
                    samples.spread(scenario.name, each, reactors, read)
                    for read in (cost_rate, wall_rate)
                    for each in ("before", "tidemq")
                ]
                rows.append([name, *figures[:2], spread(ratios, figure), *figures[2:]])
    return rows


def before_part(samples: Samples, kinds: Mapping[str, Sequence[Scenario]]) -> list[str]:
    rows = before_rows(samples, [*kinds.get("rate", ()), *kinds.get("paced", ())])
    head = ["workload", "before / CPU-s", "now / CPU-s", "now to before", "before / s", "now / s"]
    return part("Before and now", "", head, rows) if rows else []


def rate_parts(samples: Samples, chosen: Sequence[Scenario]) -> list[str]:
    """With one reactor, and with the default number of them."""
    note = "Messages delivered per second of the broker's CPU, and (last columns) per second."
    head = ["workload", "TideMQ / CPU-s", "Mosquitto / CPU-s", "ratio", "goal", ""]
    head += ["TideMQ / s", "Mosquitto / s", "unparsed relay / CPU-s"]
    lines = part("One reactor", note, head, rate_rows(samples, chosen))
    if 0 in samples.reactors:
        head = ["workload", "TideMQ / s", "to one reactor", "goal", "CPU a message, to one reactor", "goal"]
        rows = reactor_rows(samples, chosen)
        lines += part("Default number of reactors", "", [*head, "", "Mosquitto / s"], rows)
    return lines


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
        lines += rate_parts(samples, kinds["rate"])
    if "paced" in kinds:
        goal = f"p99 no worse than Mosquitto's, at most {CPU_US_GOAL:g} us of CPU a message"
        title = f"1:1, QoS 0, paced at {RATE_PER_S_PACED:,} a second"
        head = ["broker", "p50", "p99", "CPU a message", ""]
        rows = paced_rows(samples, kinds["paced"])
        lines += part(title, f"Microseconds. Goal: {goal}. {PACED_NOTE}", head, rows)
    if "idle" in kinds:
        (scenario, *_) = kinds["idle"]
        head = ["", "TideMQ", "Mosquitto", "goal", ""]
        note = "Resident bytes of the broker, each connection."
        lines += part(scenario.text, note, head, idle_rows(samples, scenario))
    if "subscriptions" in kinds:
        goal = f"at most {MATCH_RATIO_GOAL:g} times what it costs with a thousand"
        head = ["held by 100 connections", "TideMQ", "to the first", "Mosquitto", "to the first", ""]
        note = f"CPU a message in microseconds, one reactor. Goal: {goal}."
        lines += part("Subscriptions", note, head, subscription_rows(samples, kinds["subscriptions"]))
    lines += before_part(samples, kinds)
    return "\n".join(lines + remarks_part([*failures, *remarked(runs)]))


def preface(machine: Machine, versions: Mapping[str, str], rounds: int, seconds: float) -> list[str]:
    brokers = ", ".join(f"{name} ({version})" for name, version in versions.items())
    return [
        f"{measured_on(machine)}. Brokers: {brokers}.",
        "",
        f"Median of {rounds} rounds of {seconds:g} s (lowest-highest), the brokers in turn. {CONDITIONS}",
        "",
    ]


def remarked(runs: Sequence[Sample]) -> list[str]:
    return [
        f"{run.scenario}, {run.broker}, {run.reactors or 'default'}: {'; '.join(remarks(run))}"
        for run in runs
        if remarks(run)
    ]


def content(
    runs: Sequence[Sample], failures: Sequence[str], versions: Mapping[str, str]
) -> dict[str, object]:
    """All that was measured, for the file beside the page."""
    samples = [asdict(run) | {"per_s": run.per_s, "per_cpu_s": run.per_cpu_s} for run in runs]
    return {"brokers": dict(versions), "failures": failures, "samples": samples}
