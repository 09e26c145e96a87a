"""The plot of a split: nodes, links, and queues with what nodes lack, over time. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster_split_watch import Sample
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tidemq.bench.report.figures import COLOURS, FAINT, GRID, INK, style

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
    """From each sample to the next, in its colour."""
    for one, other, colour in zip(samples, samples[1:], colours, strict=False):
        axes.barh(row, other.at - one.at, left=one.at, height=0.6, color=colour, linewidth=0)


def draw_queues(axes: Axes, samples: Sequence[Sample], names: Sequence[str]) -> None:
    """Where they were looked at. In a split both sides have all sessions, so that the sum is that of both."""
    looked = [
        each for each in samples if all(seen and seen.queued is not None for seen in each.nodes.values())
    ]
    times = [each.at for each in looked]
    sums = [0] * len(looked)
    for name, colour in zip(names, COLOURS * len(names), strict=False):
        lengths = [seen.queued or 0 if (seen := each.nodes[name]) else 0 for each in looked]
        sums = [a + b for a, b in zip(sums, lengths, strict=True)]
        axes.plot(times, lengths, color=colour, label=name, linewidth=1.4)
    axes.plot(times, sums, color=INK, label="all", linewidth=1.4, linestyle="--")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")


def were_queues_seen(sample: Sample) -> bool:
    """At all nodes."""
    return all(seen is not None and seen.queued is not None for seen in sample.nodes.values())


def draw_lacks(axes: Axes, samples: Sequence[Sample], names: Sequence[str]) -> None:
    for name, colour in zip(names, COLOURS * len(names), strict=False):
        known = [(each.at, lacks) for each in samples if (lacks := each.lacks.get(name)) is not None]
        axes.plot([at for at, _ in known], [lacks for _, lacks in known], color=colour, linewidth=1.4)


def draw_marks(axes: Axes, marks: Mapping[str, float]) -> None:
    for at in marks.values():
        axes.axvline(at, color=FAINT, linewidth=0.8, linestyle=":")


def name_marks(axes: Axes, marks: Mapping[str, float]) -> None:
    """Above the uppermost panel."""
    for what, at in marks.items():
        place = (at, 1.25)
        axes.annotate(
            what, place, xycoords=("data", "axes fraction"), rotation=35, fontsize=8, color=INK, va="bottom"
        )
