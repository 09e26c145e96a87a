"""The plots, with matplotlib: a panel a workload, a colour a broker. Nothing here opens a window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from tidemq.bench.report.runs import Case, Runs, Spread
from tidemq.bench.report.tables import Read, duration, rate_text, short
from tidemq.bench.result import Bucket

COLUMNS = 2
PANEL_WIDTH_IN = 5.6
INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
# told apart by people who see few colours, too; the first is the broker of the house, or who came first
COLOURS = ("#0b6e99", "#e07a1f", "#3f9c5a", "#b83b5e", "#7d5ba6", "#8c6d46", "#52606d", "#c2a400")
TAILS = (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)  # ticks of a latency's share


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its file's name and what it shows."""

    name: str
    title: str
    note: str
    figure: Figure


def style() -> AbstractContextManager[None]:
    """How text looks while a figure is made and saved; in SVG it stays text, and a name is no formula."""
    return matplotlib.rc_context(
        {"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "text.parse_math": False}
    )


def plots(runs: Runs) -> list[Plot]:
    """All that these runs can be drawn as."""
    colours = {broker: COLOURS[place % len(COLOURS)] for place, broker in enumerate(runs.brokers)}
    rates = [label for label in runs.labels if has(runs, label, lambda run: run.rate)]
    costs = [label for label in runs.labels if has(runs, label, lambda run: run.per_broker_cpu_s)]
    waits = [label for label in runs.labels if any(case.latencies for case in runs.of(label))]
    lasting = [label for label in runs.labels if any(len(timed(case)) > 1 for case in runs.of(label))]
    found = []
    if rates:
        note = "Bars are medians, the fine line is from the lowest round to the highest."
        figure = bar_figure(runs, rates, colours, lambda run: run.rate)
        found.append(Plot("throughput", "Messages delivered per second", note, figure))
    if costs:
        note = "The same, by what it cost the broker: all its threads, user and system time."
        figure = bar_figure(runs, costs, colours, lambda run: run.per_broker_cpu_s)
        found.append(
            Plot("throughput-per-cpu", "Messages delivered per second of the broker's CPU", note, figure)
        )
    if waits:
        note = (
            "The share of messages that took at most so long, all rounds together; further right is slower."
        )
        found.append(Plot("latency", "Latency", note, cdf_figure(runs, waits, colours)))
    if lasting:
        note = "Of the round in the middle: the strong line is each interval's median, the fine one its p99."
        found.append(
            Plot("latency-over-time", "Latency over time", note, time_figure(runs, lasting, colours))
        )
    return found


def has(runs: Runs, label: str, read: Read) -> bool:
    return any(case.spread(read) for case in runs.of(label))


def panels(labels: Sequence[str], height_in: float) -> tuple[Figure, list[Axes]]:
    """A figure with a panel a label, titled."""
    rows = math.ceil(len(labels) / COLUMNS)
    columns = min(COLUMNS, len(labels))
    figure = Figure(figsize=(PANEL_WIDTH_IN * columns, height_in * rows + 0.35))
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.12)
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes, label in zip(grid, labels, strict=False):
        axes.set_title(label, loc="left", fontsize=10, color=INK, fontweight="bold")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(GRID)
        axes.tick_params(which="both", colors=FAINT, length=0, labelsize=8.5)
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    for axes in grid[len(labels) :]:
        axes.remove()
    return figure, grid[: len(labels)]


def bar_figure(runs: Runs, labels: Sequence[str], colours: dict[str, str], read: Read) -> Figure:
    """A bar a broker, from zero, with its figure at the end."""
    figure, grid = panels(labels, 0.55 + 0.27 * len(runs.brokers))
    for axes, label in zip(grid, labels, strict=True):
        spreads = [(case, spread) for case in runs.of(label) if (spread := case.spread(read))]
        highest = max(spread.values[-1] for _case, spread in spreads) or 1.0
        for place, (case, spread) in enumerate(spreads):
            draw_bar(axes, place, spread, rate_text(case, spread), colours[case.broker], highest)
        axes.set_yticks(range(len(spreads)), [case.broker for case, _spread in spreads], color=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, highest * 1.2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda figure, _place: short(figure) if figure else "0"))
        axes.grid(visible=False, axis="y")
    return figure


def draw_bar(axes: Axes, place: int, spread: Spread, text: str, colour: str, highest: float) -> None:
    low, high = spread.values[0], spread.values[-1]
    axes.barh(place, spread.median, height=0.66, color=colour)
    axes.plot([low, high], [place, place], color=INK, linewidth=1, solid_capstyle="butt")
    axes.text(
        high + highest * 0.015,
        place,
        text,
        va="center",
        color=INK,
        fontsize=8.5,
    )


def cdf_figure(runs: Runs, labels: Sequence[str], colours: dict[str, str]) -> Figure:
    """Latency against the share of messages, both logarithmic: each step up is ten times rarer."""
    figure, grid = panels(labels, 2.9)
    for axes, label in zip(grid, labels, strict=True):
        cases = [case for case in runs.of(label) if case.latencies]
        for case in cases:
            across, up = tail_curve(case.latencies)
            axes.plot(across, up, color=colours[case.broker], linewidth=1.7, label=case.broker)
        deepest = max(total(case) for case in cases)
        ticks = [share for share in TAILS if deepest * (1 - share) >= 1] or [0.5]
        axes.set_yticks([rarity(share) for share in ticks], [f"{share * 100:g} %" for share in ticks])
        axes.set_ylim(0, rarity(ticks[-1]) + 0.4)
        time_axis(axes.set_xscale, axes.xaxis.set_major_formatter)
    add_legend(figure, runs, colours)
    return figure


def total(case: Case) -> int:
    return sum(bucket.count for bucket in case.latencies)


def rarity(share: float) -> float:
    """Height of a share: 0.9 is 1, 0.99 is 2."""
    return -math.log10(1 - share)


def tail_curve(buckets: Sequence[Bucket]) -> tuple[list[float], list[float]]:
    """Microseconds, and the height of the share of values no greater; that of all has none, it ends below."""
    count = sum(bucket.count for bucket in buckets)
    across, up = [buckets[0].low_ns / 1000], [0.0]
    for bucket, passed in zip(buckets, accumulate(bucket.count for bucket in buckets), strict=True):
        across.append(bucket.high_ns / 1000)
        up.append(rarity(passed / count) if passed < count else up[-1])
    return across, up


def time_figure(runs: Runs, labels: Sequence[str], colours: dict[str, str]) -> Figure:
    figure, grid = panels(labels, 2.6)
    for axes, label in zip(grid, labels, strict=True):
        for case in runs.of(label):
            moments = timed(case)
            middle_s = [moment[0] for moment in moments]
            p50, p99 = [moment[1] for moment in moments], [moment[2] for moment in moments]
            colour = colours[case.broker]
            axes.plot(middle_s, p50, color=colour, linewidth=1.8, label=case.broker)
            axes.plot(middle_s, p99, color=colour, linewidth=0.8, alpha=0.8)
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds after the first message", color=FAINT, fontsize=8.5)
        time_axis(axes.set_yscale, axes.yaxis.set_major_formatter)
    add_legend(figure, runs, colours)
    return figure


def timed(case: Case) -> list[tuple[float, float, float]]:
    """Middle of the interval in seconds, p50 and p99 in microseconds, where anything arrived."""
    return [
        (moment.start_s + moment.seconds / 2, moment.p50_us, moment.p99_us)
        for moment in case.moments
        if moment.p50_us is not None and moment.p99_us is not None
    ]


def time_axis(set_scale: Callable[[str], object], set_format: Callable[[FuncFormatter], object]) -> None:
    """A logarithmic axis of microseconds, in the units that people use."""
    set_scale("log")
    set_format(FuncFormatter(lambda us, _place: duration(us)))


def add_legend(figure: Figure, runs: Runs, colours: dict[str, str]) -> None:
    """One for all panels, above them."""
    # labels come later: one that begins with "_" would be left out
    lines = [Line2D([], [], color=colours[broker], linewidth=3, label=" ") for broker in runs.brokers]
    legend = figure.legend(
        handles=lines, loc="outside upper left", ncols=len(lines), frameon=False, labelcolor=INK, fontsize=9
    )
    for text, broker in zip(legend.get_texts(), runs.brokers, strict=True):
        text.set_text(broker)
