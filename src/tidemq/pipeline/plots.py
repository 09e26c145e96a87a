"""Plots of load tests as the published evaluations have them, and a page with all of them and the tables."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import matplotlib
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMNS = 2
COLOURS = ("#0b6e99", "#e07a1f", "#3f9c5a", "#b83b5e", "#7d5ba6", "#8c6d46", "#52606d", "#c2a400")
SURGEMQ = {  # senders, receivers, whether a mesh: messages a second in its README of December 2014
    ("fan", 1, 1): 400_000.0,
    ("fan", 20, 1): 450_000.0,
    ("fan", 1, 20): 750_000.0,
    ("mesh", 20, 20): 700_000.0,
}
SURGEMQ_NOTE = (
    "The dashed line is what SurgeMQ published in December 2014, clients and broker on a MacBook Pro, as a "
    "lower bound: another machine's, of another time."
)
STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:1100px;margin:24px auto;color:#1f2933}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:3px 10px;text-align:right;"
    "border-bottom:1px solid #e4e7eb}td:first-child,td:nth-child(2){text-align:left}img{max-width:100%}"
)


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure, its file's name, and what it shows."""

    name: str
    title: str
    note: str
    figure: Figure


def write_page(out: Path, counts: pl.DataFrame, percentiles: pl.DataFrame, rates: pl.DataFrame) -> None:
    """OUT/NAME.png for each plot that there are figures for, and OUT/index.html, complete in itself."""
    body = ["<h1>Results of load tests</h1>"]
    with matplotlib.rc_context({"font.size": 9}):
        for plot in plots(counts, percentiles, rates):
            buffer = io.BytesIO()
            plot.figure.savefig(buffer, format="png", dpi=150, facecolor="white")
            (out / f"{plot.name}.png").write_bytes(buffer.getvalue())
            text = base64.b64encode(buffer.getvalue()).decode()
            body.append(f"<h2>{escape(plot.title)}</h2><p>{escape(plot.note)}</p>")
            body.append(f'<img alt="{escape(plot.title)}" src="data:image/png;base64,{text}">')
    for title, table in (("Latencies, µs", percentiles), ("Rates", rates.drop("arguments"))):
        if table.height:
            body.append(f"<h2>{title}</h2>{_table(table)}")
    head = f'<!doctype html><meta charset="utf-8"><title>Load tests</title><style>{STYLE}</style>'
    (out / "index.html").write_text(head + "\n".join(body) + "\n")


def _table(table: pl.DataFrame) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = ("".join(f"<td>{escape(_shown(value))}</td>" for value in row) for row in table.iter_rows())
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def _shown(value: object) -> str:
    if value is None:
        return "—"
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def plots(counts: pl.DataFrame, percentiles: pl.DataFrame, rates: pl.DataFrame) -> Iterator[Plot]:
    """All that these tables can be drawn as."""
    brokers = sorted({*percentiles["broker"], *rates["broker"]})
    colours = {broker: COLOURS[place % len(COLOURS)] for place, broker in enumerate(brokers)}
    surge = rates.with_columns(
        pl.struct("workload", "arguments")
        .map_elements(_published, return_dtype=pl.Float64, skip_nulls=False)
        .alias("published")
    ).filter(pl.col("published").is_not_null())
    if surge.height:
        figure = _bars(surge, "received_per_s", colours)
        yield Plot("surgemq", "SurgeMQ's workloads: deliveries a second", SURGEMQ_NOTE, figure)
    if rates.height:
        figure = _bars(rates, "received_per_s", colours)
        yield Plot("throughput", "Deliveries a second", "Medians of the rounds, lowest to highest.", figure)
    cores = rates.filter(pl.col("per_core_s").is_not_null())
    if cores.height:
        note = "Messages in and out a second of the broker's CPU, all its threads."
        yield Plot("per-core", "Messages a second and core", note, _bars(cores, "per_core_s", colours))
    ping = percentiles.filter(pl.col("workload").str.starts_with("ping"))
    if ping.height:
        figure = _bars(ping.rename({"workload": "label"}), "p50_us", colours)
        yield Plot("ping", "Ping: median of the way there and back, µs", "", figure)
    crowd = rates.filter(pl.col("subscribers").is_not_null())
    if crowd.height:
        latencies = percentiles.rename({"workload": "label"})
        figure = _crowd(crowd.join(latencies, on=["label", "broker"], how="left"), colours)
        note = "Strong: median; fine: p99. Below, the cores that the broker used meanwhile."
        yield Plot("subscribers", "Latency and CPU against subscribers", note, figure)
    if counts.height:
        note = "The share of messages that took at most so long; each step up is ten times rarer."
        yield Plot("latency", "Latency", note, _tails(counts, colours))


def _published(row: dict[str, str]) -> float | None:
    given = json.loads(row["arguments"])
    clients = given.get("clients")
    if given.get("qos") or given.get("rate"):
        return None
    return SURGEMQ.get((row["workload"], given.get("senders", clients), given.get("receivers", clients)))


def _panels(count: int, height_in: float) -> tuple[Figure, list[Axes]]:
    columns, rows = min(COLUMNS, count), math.ceil(count / COLUMNS)
    figure = Figure(figsize=(5.6 * columns, height_in * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e4e7eb", linewidth=0.7)
        axes.set_axisbelow(True)
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def _labels(table: pl.DataFrame, column: str) -> list[str]:
    return table[column].unique(maintain_order=True).to_list()


def _bars(table: pl.DataFrame, figure_name: str, colours: dict[str, str]) -> Figure:
    """A panel a workload, a bar a broker."""
    labels = _labels(table, "label")
    figure, grid = _panels(len(labels), 0.6 + 0.25 * len(colours))
    for axes, label in zip(grid, labels, strict=True):
        rows = table.filter(pl.col("label") == label).sort("broker").to_dicts()
        for place, row in enumerate(rows):
            axes.barh(place, row[figure_name], color=colours[row["broker"]])
            axes.text(row[figure_name], place, f" {row[figure_name]:,.4g}", va="center", fontsize=8)
            if figure_name == "received_per_s":
                ends = [row["received_per_s_low"], row["received_per_s_high"]]
                axes.plot(ends, [place, place], color="#1f2933", linewidth=1)
        if rows[0].get("published"):
            axes.axvline(rows[0]["published"], color="#616e7c", linestyle="--", linewidth=1)
        axes.set_yticks(range(len(rows)), [row["broker"] for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.margins(x=0.2)
        axes.set_title(label, loc="left")
    return figure


def _crowd(table: pl.DataFrame, colours: dict[str, str]) -> Figure:
    figure, (above, below) = _panels(2, 3.0)
    for broker in _labels(table.sort("broker"), "broker"):
        rows = table.filter(pl.col("broker") == broker).sort("subscribers")
        across = rows["subscribers"].to_list()
        above.plot(across, rows["p50_us"].to_list(), color=colours[broker], marker="o", label=broker)
        above.plot(across, rows["p99_us"].to_list(), color=colours[broker], linewidth=0.8)
        below.plot(across, rows["broker_cores"].to_list(), color=colours[broker], marker="o", label=broker)
    above.set_ylabel("µs")
    below.set_ylabel("cores")
    for axes in (above, below):
        axes.set_xlabel("subscribers")
        axes.set_xscale("log")
        axes.legend(frameon=False)
    above.set_yscale("log")
    return figure


def _tails(counts: pl.DataFrame, colours: dict[str, str]) -> Figure:
    labels = _labels(counts, "workload")
    figure, grid = _panels(len(labels), 2.8)
    for axes, label in zip(grid, labels, strict=True):
        of_label = counts.filter(pl.col("workload") == label)
        deepest = 1.0
        for broker in _labels(of_label, "broker"):
            across, up = tail(of_label.filter(pl.col("broker") == broker))
            deepest = max(deepest, up[-1])
            axes.plot(across, up, color=colours[broker], label=broker)
        ticks = range(math.floor(deepest) + 1)
        axes.set_yticks(list(ticks), [f"{100 * (1 - 10.0**-each):.10g} %" for each in ticks])
        axes.set_xscale("log")
        axes.set_xlabel("µs")
        axes.set_title(label, loc="left")
        axes.legend(frameon=False)
    return figure


def tail(counts: pl.DataFrame, points: int = 2000) -> tuple[Sequence[float], Sequence[float]]:
    """Latencies, ascending, and how rare longer ones are: 1 where one in ten took longer, 2 one in a hundred.
    So many points at most; the last message has none.
    """
    longer = 1 - counts["count"].cum_sum() / counts["count"].sum()
    curve = pl.DataFrame({"across": counts["latency_us"], "up": longer}).filter(pl.col("up") > 1e-12)
    curve = curve.with_columns(-pl.col("up").log10()).filter(pl.col("across") > 0)
    if curve.is_empty():
        curve = pl.DataFrame({"across": [float(counts["latency_us"].max() or 1)], "up": [0.0]})  # type: ignore[arg-type]
    step = (curve["up"] * points / max(float(curve["up"][-1]), 1.0)).cast(pl.Int64)
    curve = curve.filter(step != step.shift(1).fill_null(-1))
    return curve["across"].to_list(), curve["up"].to_list()
