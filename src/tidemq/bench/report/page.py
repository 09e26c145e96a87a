"""One HTML page of several runs, complete in itself: the plots are SVG within it, nothing is fetched."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tidemq.bench.report.figures import REPORTED, Plot, plots, style
from tidemq.bench.report.runs import Run, Runs, read_runs
from tidemq.bench.report.tables import Cell, Table, remarks, tables

PAGE_NAME = "report.html"
PNG_DPI = 160
STYLE = """
:root { color-scheme: light; --ink: #1f2933; --faint: #616e7c; --line: #e4e7eb; --house: #0b6e99; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7fa; color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; }
h2 { font-size: 18px; margin: 0 0 4px; }
p { margin: 0; }
.facts, .note { color: var(--faint); font-size: 13.5px; max-width: 100ch; }
.facts span { margin-right: 18px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 22px 24px;
  margin-top: 22px; overflow-x: auto; }
section > .note { margin-bottom: 14px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 7px 0 7px 14px; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-size: 13px; color: var(--faint); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; min-width: 12em; }
tr:last-child td { border-bottom: 0; }
td small { display: block; color: var(--faint); font-size: 11.5px; white-space: nowrap; }
td.best { color: var(--house); font-weight: 650; }
td.best small { font-weight: 400; }
svg { display: block; width: 100%; height: auto; }
ul { margin: 6px 0 0; padding-left: 20px; }
"""


def write_report(directories: Sequence[Path], output: Path | None = None) -> list[Path]:
    """Draw the runs of `directories`; returns the page and the pictures that it wrote.

    They go to `output`, or to the first directory. Raises UsageError where there are no runs to be read,
    OSError where nothing can be written.
    """
    runs = read_runs(directories)
    parts = [section(table.title, table.note, table_text(table)) for table in tables(runs)]
    parts.append(section("Remarks on single runs", "", remarks_text(runs)))
    page = (output or directories[0]) / PAGE_NAME
    return write_page(page, "Load report", facts_text(runs), parts, runs)


def write_page(
    page: Path, title: str, facts: str, parts: Iterable[str], runs: Runs, names: Sequence[str] = REPORTED
) -> list[Path]:
    """One page with the plots that are named, and behind them `parts`, which are HTML, as `facts` are.

    Beside it a picture for each plot; returns the page and the pictures.
    """
    page.parent.mkdir(parents=True, exist_ok=True)
    with style():
        drawn = plots(runs, names)
        pictures = [write_picture(plot, page.parent) for plot in drawn]
        sections = [*(section(plot.title, plot.note, svg_text(plot)) for plot in drawn), *parts]
        page.write_text(page_text(title, facts, sections), encoding="utf-8")
    return [page, *pictures]


def write_picture(plot: Plot, folder: Path) -> Path:
    path = folder / f"{plot.name}.png"
    plot.figure.savefig(path, dpi=PNG_DPI, facecolor="white")
    return path


def page_text(title: str, facts: str, sections: Iterable[str]) -> str:
    """The whole page."""
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n<main>\n<h1>{escape(title)}</h1>\n"
        + "\n".join([facts, *sections])
        + "\n</main>\n</html>\n"
    )


def facts_text(runs: Runs) -> str:
    """What was run, when and where."""
    first, last = runs.all[0], max(runs.all, key=lambda run: run.started_at)
    rounds = max(len(case.runs) for label in runs.labels for case in runs.of(label))
    facts = [
        f"{first.started_at:%Y-%m-%d %H:%M} to {last.started_at:%H:%M} UTC",
        f"{len(runs.all)} runs, {rounds} {'rounds' if rounds > 1 else 'round'}",
        *sorted({run.machine for run in runs.all}),
        f"tidemq {', '.join(sorted({run.tool_version for run in runs.all}))}",
    ]
    brokers = ", ".join(broker_text(broker, runs.all) for broker in runs.brokers)
    return (
        f"<p>{escape(brokers)}</p>\n"
        f'<p class="facts">{"".join(f"<span>{escape(fact)}</span>" for fact in facts)}</p>'
    )


def broker_text(broker: str, all_runs: Iterable[Run]) -> str:
    """Its name, with what it says of its version."""
    said = {run.broker_version for run in all_runs if run.broker == broker and run.broker_version}
    return f"{broker} ({', '.join(sorted(said))})" if said else broker


def section(title: str, note: str, content: str) -> str:
    noted = f'<p class="note">{escape(note)}</p>\n' if note else ""
    return f"<section>\n<h2>{escape(title)}</h2>\n{noted}{content}\n</section>"


def svg_text(plot: Plot) -> str:
    """The plot as an element of the page; its identifiers are made its own, for a page holds several."""
    buffer = io.StringIO()
    plot.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    element = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    element = re.sub(r"(\bid=\"|url\(#|href=\"#)", rf"\g<1>{plot.name}-", element)
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(plot.title)}" ', 1)


def table_text(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "\n".join(f"<tr>{''.join(map(cell_text, row))}</tr>" for row in table.rows)
    return f"<table>\n<tr>{head}</tr>\n{rows}\n</table>"


def cell_text(cell: Cell) -> str:
    detail = f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
    return f"<td{' class=best' if cell.best else ''}>{escape(cell.text)}{detail}</td>"


def remarks_text(runs: Runs) -> str:
    found = remarks(runs)
    if not found:
        return "<p>None: every message arrived once and in order.</p>"
    return "<ul>\n" + "\n".join(f"<li>{escape(text)}</li>" for text in found) + "\n</ul>"
