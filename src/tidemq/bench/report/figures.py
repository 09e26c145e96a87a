"""The plots, with matplotlib: a panel a workload, a colour a broker. Nothing here opens a window."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from tidemq.bench.report.numbers import Show, duration, short
from tidemq.bench.report.runs import Case, Runs, Spread
from tidemq.bench.report.surgemq import SURGEMQ_NOTE, surgemq_rate
from tidemq.bench.report.tables import rate_text
from tidemq.bench.result import Bucket

COLUMNS = 2
PANEL_WIDTH_IN = 5.6
INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
# told apart by people who see few colours, too; the first is the broker of the house, or who came first
COLOURS = ("#0b6e99", "#e07a1f", "#3f9c5a", "#b83b5e", "#7d5ba6", "#8c6d46", "#52606d", "#c2a400")
POINTS = 4000  # of a curve, at most
TAILS = (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)  # ticks of a latency's share


# what `tidemq bench report` draws, and what evaluations that others have published of brokers show
REPORTED = ("throughput", "throughput-per-cpu", "latency", "latency-over-time")
PUBLISHED = ("surgemq", "throughput", "per-core", "ping", "subscribers", "latency")

Colours = Mapping[str, str]  # by broker


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its file's name and what it shows."""

    name: str
    title: str
    note: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Bars:
    """A kind of plot: a bar a broker."""

    title: str
    note: str
    figure: Callable[[Case], Spread | None]  # of a workload and broker; None: there is no bar
    text: Callable[[Case, Spread], str] = lambda case, spread: rate_text(case, spread)
    ticks: Show = short
    line: Callable[[Case], float | None] = lambda case: None  # what others had, to compare with


@dataclass(frozen=True, slots=True)
class Curves:
    """A kind of plot with curves for every broker."""

    title: str
    note: str
    shows: Callable[[Case], bool]  # whether there is anything to draw of a workload and broker
    draw: Callable[[Runs, Sequence[str], Colours], Figure]  # of the workloads that there is anything of


def style() -> AbstractContextManager[None]:
    """How text looks while a figure is made and saved; in SVG it stays text, and a name is no formula."""
    return matplotlib.rc_context(
        {"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "text.parse_math": False}
    )


def plots(runs: Runs, names: Sequence[str] = REPORTED) -> list[Plot]:
    """All that these runs can be drawn as, of the plots that are named."""
    colours = {broker: COLOURS[place % len(COLOURS)] for place, broker in enumerate(runs.brokers)}
    found = []
    for name in names:
        kind = KINDS[name]
        shows = kind.figure if isinstance(kind, Bars) else kind.shows
        labels = [label for label in runs.labels if any(shows(case) for case in runs.of(label))]
        if labels:
            draw = partial(bar_figure, kind) if isinstance(kind, Bars) else kind.draw
            found.append(Plot(name, kind.title, kind.note, draw(runs, labels, colours)))
    return found


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


def bar_figure(bars: Bars, runs: Runs, labels: Sequence[str], colours: Colours) -> Figure:
    """A bar a broker, from zero, with its figure at the end."""
    figure, grid = panels(labels, 0.55 + 0.27 * len(runs.brokers))
    for axes, label in zip(grid, labels, strict=True):
        spreads = [(case, spread) for case in runs.of(label) if (spread := bars.figure(case))]
        highest = max(spread.values[-1] for _case, spread in spreads) or 1.0
        for place, (case, spread) in enumerate(spreads):
            draw_bar(axes, place, spread, bars.text(case, spread), colours[case.broker], highest)
        if line := bars.line(spreads[0][0]):
            axes.axvline(line, color=FAINT, linestyle="--", linewidth=1)
        axes.set_yticks(range(len(spreads)), [case.broker for case, _spread in spreads], color=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, max(highest, line or 0.0) * 1.2)
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda figure, _place: bars.ticks(figure) if figure else "0")
        )
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


def cdf_figure(runs: Runs, labels: Sequence[str], colours: Colours) -> Figure:
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
        height = rarity(passed / count) if passed < count else up[-1]
        if len(buckets) <= POINTS or height - up[-1] > rarity(1 - 1 / count) / POINTS:  # else nobody sees it
            across.append(bucket.high_ns / 1000)
            up.append(height)
    first = next((place for place, us in enumerate(across) if us), len(across) - 1)
    return [max(us, 0.001) for us in across[first:]], up[first:]  # the axis is logarithmic and has no 0


def time_figure(runs: Runs, labels: Sequence[str], colours: Colours) -> Figure:
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


def crowd_figure(runs: Runs, labels: Sequence[str], colours: Colours) -> Figure:
    """Latency, and the cores that the broker used, by the number of subscribers."""
    figure, (waits, cores) = panels(["latency", "the broker's cores"], 3.0)
    cases = [case for label in labels for case in runs.of(label) if in_crowd(case)]
    for broker in runs.brokers:
        found = sorted((case for case in cases if case.broker == broker), key=crowd)
        across, colour = [crowd(case) for case in found], colours[broker]
        p50, p99 = ([case.latency_us(share) or math.nan for case in found] for share in (0.5, 0.99))
        used = [spread.median if (spread := cores_of(case)) else math.nan for case in found]
        waits.plot(across, p50, color=colour, linewidth=1.8, marker="o")
        waits.plot(across, p99, color=colour, linewidth=0.8, alpha=0.8)
        cores.plot(across, used, color=colour, linewidth=1.8, marker="o")
    for axes in (waits, cores):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _place: short(count)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("subscribers", color=FAINT, fontsize=8.5)
    time_axis(waits.set_yscale, waits.yaxis.set_major_formatter)
    add_legend(figure, runs, colours)
    return figure


def in_crowd(case: Case) -> bool:
    """Whether it is a run of the workload `subscribers`."""
    return bool(case.runs) and crowd(case) > 0


def crowd(case: Case) -> int:
    return case.runs[0].subscribers or 0


def cores_of(case: Case) -> Spread | None:
    return case.spread(lambda run: run.broker_cores)


def add_legend(figure: Figure, runs: Runs, colours: Colours) -> None:
    """One for all panels, above them."""
    # labels come later: one that begins with "_" would be left out
    lines = [Line2D([], [], color=colours[broker], linewidth=3, label=" ") for broker in runs.brokers]
    legend = figure.legend(
        handles=lines, loc="outside upper left", ncols=len(lines), frameon=False, labelcolor=INK, fontsize=9
    )
    for text, broker in zip(legend.get_texts(), runs.brokers, strict=True):
        text.set_text(broker)


def rate_of(case: Case) -> Spread | None:
    return case.spread(lambda run: run.rate)


def surgemq_of(case: Case) -> float | None:
    return surgemq_rate(case.runs[0]) if case.runs else None


def ping_of(case: Case) -> Spread | None:
    """Half of all messages were there and back again after so many microseconds."""
    return Spread((case.latency_us(0.5),)) if case.label.startswith("ping") and case.latencies else None


KINDS: dict[str, Bars | Curves] = {
    "surgemq": Bars(
        "SurgeMQ's workloads: messages delivered per second",
        f"The dashed line is what SurgeMQ published. {SURGEMQ_NOTE}",
        lambda case: rate_of(case) if surgemq_of(case) else None,
        line=surgemq_of,
    ),
    "throughput": Bars(
        "Messages delivered per second",
        "Bars are medians, the fine line is from the lowest round to the highest.",
        rate_of,
    ),
    "throughput-per-cpu": Bars(
        "Messages delivered per second of the broker's CPU",
        "The same, by what it cost the broker: all its threads, user and system time.",
        lambda case: case.spread(lambda run: run.per_broker_cpu_s),
    ),
    "per-core": Bars(
        "Messages per second and core",
        "Messages in and out per second of the broker's CPU, all its threads.",
        lambda case: case.spread(lambda run: run.per_core_s),
    ),
    "ping": Bars(
        "Ping",
        "Median of the way there and back.",
        ping_of,
        text=lambda _case, spread: duration(spread.median),
        ticks=duration,
    ),
    "subscribers": Curves(
        "Latency and CPU against subscribers",
        "The strong line is the median, the fine one the p99; beside it the cores that the broker used.",
        in_crowd,
        crowd_figure,
    ),
    "latency": Curves(
        "Latency",
        "The share of messages that took at most so long, all rounds together; further right is slower.",
        lambda case: bool(case.latencies),
        cdf_figure,
    ),
    "latency-over-time": Curves(
        "Latency over time",
        "Of the round in the middle: the strong line is each interval's median, the fine one its p99.",
        lambda case: len(timed(case)) > 1,
        time_figure,
    ),
}
