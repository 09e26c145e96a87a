"""Figures for people as rows of text: a column a broker, the median of the rounds and their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidemq.bench.report.numbers import NOTHING, Show, duration, faults, short
from tidemq.bench.report.runs import Case, Run, Runs, Spread
from tidemq.bench.report.surgemq import SURGEMQ, SURGEMQ_NOTE, surgemq_rate

Read = Callable[[Run], float | None]
NOT_INTACT = "✗"
AT_LEAST = "≥"
MARKS_NOTE = (
    f"{AT_LEAST}: the generator had no more to give, the broker had. {NOT_INTACT}: something was lost, came "
    "twice or out of order, or the run did not end by itself; see below."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure, and smaller below it how far the rounds lie apart."""

    text: str
    detail: str = ""
    best: bool = False  # of its row


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of each row says what the row is."""

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def spread_text(spread: Spread, show: Show) -> str:
    """Lowest and highest of several rounds; of one round nothing."""
    low, high = spread.values[0], spread.values[-1]
    return f"{show(low)} to {show(high)}" if len(spread.values) > 1 else ""


def rate_text(case: Case, spread: Spread) -> str:
    """A rate, with the marks that its rounds deserve."""
    limited = AT_LEAST if any(run.limited_by_generator for run in case.runs) else ""
    broken = NOT_INTACT if not all(run.intact for run in case.runs) else ""
    return " ".join(filter(None, [limited, short(spread.median), broken]))


def figure_cell(case: Case | None, read: Read, show: Show | None, best: float | None) -> Cell:
    """`show` None: a rate."""
    spread = case.spread(read) if case else None
    if case is None or spread is None:
        return Cell(NOTHING)
    text = show(spread.median) if show else rate_text(case, spread)
    return Cell(text, spread_text(spread, show or short), spread.median == best)


def figure_rows(
    runs: Runs, read: Read, show: Show | None = None, best_of: Callable[..., float] = max
) -> dict[str, tuple[Cell, ...]]:
    """A row for each workload that has the figure, by label."""
    rows = {}
    for label in runs.labels:
        spreads = [case.spread(read) for case in runs.of(label)]
        medians = [spread.median for spread in spreads if spread]
        best = best_of(medians) if len(medians) > 1 else None
        if medians:
            cells = (figure_cell(runs.case(label, broker), read, show, best) for broker in runs.brokers)
            rows[label] = (Cell(label), *cells)
    return rows


def rate_table(runs: Runs) -> Table | None:
    """Deliveries per second, SurgeMQ's own figures beside them where there are such."""
    rows = figure_rows(runs, lambda run: run.rate)
    published = {label: rate for label in rows if (rate := surgemq_rate(runs.of(label)[0].runs[0]))}
    note, head = MARKS_NOTE, ("workload", *runs.brokers)
    if published:
        note, head = f"{note} {SURGEMQ_NOTE}", (*head, SURGEMQ)
        texts = {label: f"> {short(published[label])}" if label in published else "" for label in rows}
        rows = {label: (*cells, Cell(texts[label])) for label, cells in rows.items()}
    return Table("Messages delivered per second", note, head, tuple(rows.values())) if rows else None


def tables(runs: Runs) -> list[Table]:
    """All that these runs have figures for."""
    head = ("workload", *runs.brokers)
    found = [rate_table(runs)]
    for title, note, rows in (
        (
            "Messages delivered per second of the broker's CPU",
            "User and system time of all its threads; only of brokers on the generator's machine.",
            figure_rows(runs, lambda run: run.per_broker_cpu_s),
        ),
        (
            "Latency, median",
            "In runs without a rate of their own the broker is driven as hard as it takes it: there a "
            "message's latency is its wait behind others.",
            figure_rows(runs, lambda run: run.latency_p50_us, duration, min),
        ),
        (
            "Latency, 99th percentile",
            "Of each round by itself.",
            figure_rows(runs, lambda run: run.latency_p99_us, duration, min),
        ),
        (
            "Connections per second",
            "From the first SYN until all were connected and subscribed.",
            figure_rows(runs, lambda run: run.connects_per_s if run.workload == "many" else None),
        ),
        (
            "Broker's memory for each connection, bytes",
            "Growth of its resident memory while they were made, in the first round.",
            figure_rows(
                runs,
                lambda run: run.bytes_per_connection if run.workload == "many" and run.round == 1 else None,
                lambda size: f"{size:,.0f}",
                min,
            ),
        ),
    ):
        found.append(Table(title, note, head, tuple(rows.values())) if rows else None)
    return [table for table in found if table]


def remarks(runs: Runs) -> list[str]:
    """A sentence for each run that a reader should distrust."""
    return [text for run in runs.all if (text := remark(run))]


def remark(run: Run) -> str:
    said = faults(run) + (["limited by the generator"] if run.limited_by_generator else [])
    return f"{run.label}, {run.broker}: {', '.join(said)}" if said else ""


def markdown(table: Table) -> str:
    """The table for a page of text, the best figure of a row in bold."""
    return markdown_rows(table.head, ([markdown_cell(cell) for cell in row] for row in table.rows))


def markdown_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same of plain text."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def markdown_cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.best else cell.text
    return f"{text} ({cell.detail})" if cell.detail else text
