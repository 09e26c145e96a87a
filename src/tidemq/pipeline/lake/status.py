"""How far the tables of a stream have got, by their logs alone; and how far the stream has, by its broker."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tidemq.client.streams import StreamState
from tidemq.pipeline.lake.maintenance import names_of_tables
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, reached_by_rule
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import TableError


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table as it is now."""

    name: str  # below the stream's folder
    rows: int
    files: int
    bytes: int
    newest: datetime | None  # when the broker received the newest message that has a row; gold has none
    reached: int | None = None  # offset up to which its messages are worked; None: it does not say
    behind: int | None = None  # messages from there to the end of what it follows


def status(lake: Lake, state: StreamState | None = None) -> list[TableStatus]:
    """Of all tables. Bronze follows the stream, a decoded table bronze, gold a decoded table; each in the
    epoch that the broker has now, or else in the newest of bronze. TableError where there is no table.
    """
    epochs = lake.bronze.epochs()
    if not epochs:
        raise TableError(f"there is no table {lake.bronze.uri} with messages")
    epoch = state.epoch if state else epochs[-1]
    bronze = Progress(lake.stream, epoch)
    reached = lake.bronze.reached(bronze)
    found = []
    for name in names_of_tables(lake):
        table = lake.table(name)
        kind, _, rule = name.partition("/")
        if name == "bronze":
            found.append(_status(name, table, reached, state.next_offset if state else None))
        elif kind == "silver":
            found.append(_status(name, table, _reached(lake, rule, table, epoch), reached))
        elif kind == "gold":
            silver = _reached(lake, rule, lake.table(f"silver/{rule}"), epoch)
            found.append(_status(name, table, _reached(lake, rule, table, epoch), silver))
        else:
            found.append(_status(name, table, None, None))
    return found


def _reached(lake: Lake, rule: str, table: Table, epoch: int) -> int | None:
    """None where there is no table, or it has begun no working."""
    snapshot = table.now()
    return reached_by_rule(snapshot, lake.stream, epoch, rule) if snapshot else None


def _status(name: str, table: Table, reached: int | None, end: int | None) -> TableStatus:
    files = table.files()
    times = [time for each in files if (time := each.high.get("received")) is not None]
    behind = None if reached is None or end is None else max(end - reached, 0)
    return TableStatus(
        name=name,
        rows=sum(each.rows for each in files),
        files=len(files),
        bytes=sum(each.size for each in files),
        newest=max(times, default=None),
        reached=reached,
        behind=behind,
    )


def as_row(status: TableStatus) -> dict[str, Any]:
    """For JSON."""
    newest = status.newest.astimezone(UTC).isoformat() if status.newest else None
    return asdict(status) | {"newest": newest}


def as_text(found: list[TableStatus]) -> str:
    """A line for each table below a head."""
    head = ("table", "rows", "files", "bytes", "newest", "reached", "behind")
    lines = [head] + [
        tuple("" if value is None else str(value) for value in as_row(each).values()) for each in found
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in (0, 4) else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
