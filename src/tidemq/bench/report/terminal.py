"""Results as text: one run in SurgeMQ's form (messages, nanoseconds a message, messages a second), several
brokers side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidemq.bench.report.numbers import Show, duration, short, spread
from tidemq.bench.result import Latency, Result, Summary

Read = Callable[[Summary], float | None]


def run_text(result: Result) -> str:
    """One run, some lines."""
    summary, run = result.summary, result.run
    said = f", {run.broker_version}" if run.broker_version else ""
    lines = [f"{run.label}, MQTT {run.mqtt}: {run.broker}{said}"]
    if summary.sent or summary.expected:
        lines += rate_lines(summary) + fault_lines(summary)
    else:
        lines.append(f"  held for {summary.seconds:.1f} s")
    if summary.latency is not None:
        lines.append(f"  {summary.latency_span}: {latency_text(summary.latency)}")
    lines.append(connect_line(summary))
    lines.append(usage_line(summary))
    return "\n".join(lines + remarks(summary))


def rate_lines(summary: Summary) -> list[str]:
    """What SurgeMQ prints of a run."""
    counts = {"sent": summary.sent, "received": summary.received}
    width = max(len(f"{count:,}") for count in counts.values())
    lines = []
    for name, count in counts.items():
        each_ns = summary.seconds * 1e9 / count if count else 0.0
        rate = count / summary.seconds if summary.seconds else 0.0
        lines.append(
            f"  total {name:8} {count:{width},} messages in {summary.seconds:.3f} s, "
            f"{each_ns:,.0f} ns a message, {rate:,.0f} messages a second"
        )
    return lines


def fault_lines(summary: Summary) -> list[str]:
    counts = f"lost {summary.lost:,}, repeated {summary.duplicates:,}, out of order {summary.disordered:,}"
    if summary.foreign:
        counts += f", foreign {summary.foreign:,}"
    if summary.ack_errors:
        counts += f", acknowledgements out of order {summary.ack_errors:,}"
    return [f"  {counts}"]


def latency_text(latency: Latency) -> str:
    values = (latency.p50_us, latency.p90_us, latency.p99_us, latency.p999_us, latency.max_us)
    names = ("p50", "p90", "p99", "p99.9", "max")
    return ", ".join(f"{name} {duration(value)}" for name, value in zip(names, values, strict=True))


def connect_line(summary: Summary) -> str:
    text = f"  {summary.connections:,} connections in {duration(summary.connect_s * 1e6)}"
    text += f", {summary.connects_per_s:,.0f} a second"
    if summary.connect_latency is not None and summary.connections > 1:
        text += f", to CONNACK p50 {duration(summary.connect_latency.p50_us)}"
        text += f", p99 {duration(summary.connect_latency.p99_us)}"
    if summary.bytes_per_connection is not None:
        text += f"; {summary.bytes_per_connection:,.0f} bytes of the broker's memory each"
    return text


def usage_line(summary: Summary) -> str:
    text = f"  generator: {summary.generator_cpu_s:.3f} s of CPU, "
    if summary.shares > 1:
        text = f"  generator, {summary.shares} shares: {summary.generator_cpu_s:.3f} s of CPU, busiest "
    text += f"ready {summary.generator_ready_share:.0%}"
    if summary.broker_cpu_s is None or summary.broker_ready_share is None:
        return text + "; the broker's process cannot be looked at from here"
    return (
        text
        + f"; broker: {summary.broker_cpu_s:.3f} s, busiest thread ready {summary.broker_ready_share:.0%}"
    )


def remarks(summary: Summary) -> list[str]:
    """What a reader must know before he trusts the figures."""
    found = []
    if summary.limited_by_generator:
        found.append(f"  LIMITED BY THE GENERATOR: {why_limited(summary)}; the broker can do more")
    if summary.clock_error_us:
        error = duration(summary.clock_error_us)
        found.append(f"  clocks of several machines: latencies between them may be off by {error}")
    missing = f"{summary.lost:,} of {summary.expected:,} messages are missing"
    if summary.end == "disconnected":
        reason = f" ({summary.reason})" if summary.reason else ""
        found.append(f"  THE BROKER CLOSED A CONNECTION{reason}: {missing}")
    elif summary.end == "share lost":
        found.append(f"  A SHARE OF THE LOAD WAS LOST ({summary.reason}): {missing}")
    elif summary.end == "stalled":
        found.append(f"  NOTHING CAME ANY MORE: {missing}")
    elif summary.end == "interrupted":
        found.append("  interrupted")
    if not summary.intact and summary.end == "complete":
        found.append("  NOT INTACT: see the counts above")
    return found


def why_limited(summary: Summary) -> str:
    if summary.limited_by_exchange:
        return "shares learned too late what had arrived at others"
    ready_s = summary.generator_ready_share * summary.seconds * summary.shares
    if summary.generator_cpu_s > ready_s / 2:
        return "it was busy (more --threads, if there are cores)"
    return "it waited for a core, this machine has too few or does other things"


# ------------------------------------------------------------------ several brokers


def comparison_text(results: Sequence[Result]) -> str:
    """One table: a row for each workload, for each broker the median of its rounds and their spread."""
    brokers = list(dict.fromkeys(result.run.broker for result in results))
    labels = list(dict.fromkeys(result.run.label for result in results))
    rows = [["", *brokers]]
    for label in labels:
        runs = {
            broker: [
                each.summary for each in results if each.run.label == label and each.run.broker == broker
            ]
            for broker in brokers
        }
        for title, read, text in figures_of([each for of_one in runs.values() for each in of_one]):
            rows.append([f"{label}: {title}", *[cell(runs[broker], read, text) for broker in brokers]])
    return aligned(rows) + "\n" + legend(results)


def figures_of(runs: Iterable[Summary]) -> list[tuple[str, Read, Show]]:
    """What a workload is judged by."""
    summaries = list(runs)
    if all(each.expected == 0 for each in summaries):
        return [
            ("connections/s", lambda each: each.connects_per_s, short),
            ("bytes a connection", lambda each: each.bytes_per_connection, short),
        ]
    p99: tuple[str, Read, Show] = (
        "p99",
        lambda each: each.latency.p99_us if each.latency else None,
        duration,
    )
    if all(each.latency_span == "sent to received" for each in summaries):
        return [("messages/s", lambda each: each.received_per_s, short), p99]
    return [
        ("p50", lambda each: each.latency.p50_us if each.latency else None, duration),
        p99,
    ]


def cell(runs: Sequence[Summary], read: Read, text: Show) -> str:
    """Median (least - greatest), with marks."""
    values = [value for each in runs if (value := read(each)) is not None]
    marks = "!" if not all(each.intact for each in runs) else ""
    marks += "*" if any(each.limited_by_generator for each in runs) else ""
    return spread(values, text, " - ") + marks


def legend(results: Sequence[Result]) -> str:
    lines = [
        "median (least - greatest) of the rounds; deliveries a second; wait of a message, 99 of 100 below"
    ]
    if any(each.summary.limited_by_generator for each in results):
        lines.append("* limited by the generator: the broker can do more")
    if not all(each.summary.intact for each in results):
        lines.append("! lost, repeated, disordered, or ended early")
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        right = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:{widths[0]}}", *right]).rstrip())
    return "\n".join(lines)
