"""The plot of a split: nodes, links, and queues with what nodes lack, over time. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster_split_watch import Sample
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tidemq.bench.report.figures import COLOURS, FAINT, GRID, INK, style
from tidemq.bench.report.numbers import short

SIZE_IN = (9.0, 7.5)
HEIGHTS = (1.0, 0.6, 2.4, 2.0)  # of the panels
WHOLE, CUT = COLOURS[2], COLOURS[3]


def draw(samples: Sequence[Sample], marks: Mapping[str, float], path: Path) -> None:
    """Writes it as SVG."""
    with style():
        figure = Figure(figsize=SIZE_IN)
        figure.set_layout_engine("constrained", h_pad=0.05)
        nodes, links, queued, lacks = figure.subplots(
            len(HEIGHTS), 1, sharex=True, height_ratios=HEIGHTS
        ).tolist()
        names = list(samples[0].nodes) if samples else []
        times = [each.at for each in samples]
        draw_nodes(nodes, samples, names)
        draw_links(links, samples)
        draw_queues(queued, samples, names)
        draw_lacks(lacks, samples, names)
        for axes, title in (
            (nodes, "nodes that answer"),
            (links, "links between the sides"),
            (queued, "messages queued, at each node and in all"),
            (lacks, "records of others that a node lacks"),
        ):
            dress(axes, title)
        for axes in (nodes, links, queued, lacks):
            draw_marks(axes, marks)
        name_marks(nodes, marks)
        lacks.set_xlabel("seconds", color=FAINT)
        if times:
            lacks.set_xlim(0, max(times))
        figure.savefig(path)


def dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(colors=FAINT, length=0, labelsize=8.5)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def draw_nodes(axes: Axes, samples: Sequence[Sample], names: Sequence[str]) -> None:
    """A row for each, coloured where it answers."""
    for row, name in enumerate(reversed(names)):
        there = [each.nodes[name] is not None for each in samples]
        draw_spans(axes, samples, [WHOLE if each else CUT for each in there], row)
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_ylim(-0.6, len(names) - 0.4)


def draw_links(axes: Axes, samples: Sequence[Sample]) -> None:
    draw_spans(axes, samples, [CUT if each.is_cut else WHOLE for each in samples], 0)
    axes.set_yticks([])
    axes.set_ylim(-0.6, 0.6)
    for text, colour, place in (("whole", WHOLE, 0.995), ("cut", CUT, 0.93)):
        axes.annotate(text, (place, 1.08), xycoords="axes fraction", color=colour, ha="right", fontsize=8.5)


def draw_spans(axes: Axes, samples: Sequence[Sample], colours: Sequence[str], row: int) -> None:
    """From the first sample of a colour to the first of the next."""
    begins = [at for at in range(len(samples)) if at == 0 or colours[at] != colours[at - 1]]
    for first, next_one in zip(begins, [*begins[1:], len(samples) - 1], strict=True):
        start, end = samples[first].at, samples[next_one].at
        axes.barh(row, end - start, left=start, height=0.6, color=colours[first], linewidth=0)


def draw_queues(axes: Axes, samples: Sequence[Sample], names: Sequence[str]) -> None:
    """Where they were counted. In a split both sides have all sessions, and the sum is that of both."""
    counted = [each for each in samples if each.queued]
    times = [each.at for each in counted]
    for name, colour in zip(names, COLOURS * len(names), strict=False):
        axes.plot(times, [each.queued[name] for each in counted], color=colour, label=name, linewidth=1.4)
    sums = [sum(each.queued.values()) for each in counted]
    axes.plot(times, sums, color=INK, label="all", linewidth=1.4, linestyle="--")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")


def draw_lacks(axes: Axes, samples: Sequence[Sample], names: Sequence[str]) -> None:
    for name, colour in zip(names, COLOURS * len(names), strict=False):
        known = [(each.at, lacks) for each in samples if (lacks := each.lacks.get(name)) is not None]
        axes.plot([at for at, _ in known], [lacks for _, lacks in known], color=colour, linewidth=1.4)


def draw_marks(axes: Axes, marks: Mapping[str, float]) -> None:
    for at in marks.values():
        axes.axvline(at, color=FAINT, linewidth=0.8, linestyle=":")


def name_marks(axes: Axes, marks: Mapping[str, float]) -> None:
    """Above the uppermost panel; those that are too near to each other have one text."""
    near = max(marks.values(), default=0.0) / 40
    texts: list[tuple[float, list[str]]] = []
    for what, at in sorted(marks.items(), key=lambda each: each[1]):
        if texts and at - texts[-1][0] < near:
            texts[-1][1].append(what)
        else:
            texts.append((at, [what]))
    for at, words in texts:
        axes.annotate(
            ", ".join(words),
            (at, 1.35),
            xycoords=("data", "axes fraction"),
            rotation=30,
            fontsize=8,
            color=INK,
            va="bottom",
        )
