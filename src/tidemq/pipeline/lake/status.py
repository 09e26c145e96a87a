"""How far the tables of a stream have got, by their logs alone; and how far the stream has, by its broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tidemq.client.streams import StreamReader, StreamState, find_token, read_cafile
from tidemq.pipeline.lake.maintenance import names_of_tables
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, reached_by_rule
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import TableError
from tidemq.pipeline.sources.stream_options import urls_of


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table as it is now."""

    name: str  # below the stream's folder
    rows: int
    files: int
    bytes: int
    newest: datetime | None  # when the broker received the newest message that has a row; gold has none
    reached: int | None = (
        None  # offset up to which messages are worked; None: it does not say, or has several
    )
    behind: int | None = None  # messages from there to the end of what it follows


def describe(url: str, stream: str, token_file: str = "", cafile: str = "") -> list[StreamState]:
    """The stream as its broker has it; of several nodes, separated by commas, as each has it."""
    token, cadata = find_token(token_file), read_cafile(cafile)
    urls = urls_of(url) if url else ()
    return [StreamReader(each, stream, token=token, cadata=cadata).describe() for each in urls]


def status(lake: Lake, states: Sequence[StreamState] = ()) -> list[TableStatus]:
    """Of all tables. Bronze follows the stream, a decoded table bronze, gold a decoded table; each in the
    epoch that the broker has now, or those that several nodes have, or else in the newest of bronze.
    TableError where there is no table.
    """
    known = lake.bronze.epochs()
    if not known:
        raise TableError(f"there is no table {lake.bronze.uri} with messages")
    epochs = [state.epoch for state in states] or [known[-1]]
    streams: list[int | None] = [state.next_offset for state in states] or [None]
    bronze: list[int | None] = [lake.bronze.reached(Progress(lake.stream, epoch)) for epoch in epochs]
    found = []
    for name in names_of_tables(lake):
        table = lake.table(name)
        kind, _, rule = name.partition("/")
        if name == "bronze":
            found.append(_status(name, table, bronze, streams))
        elif kind == "silver":
            found.append(_status(name, table, _reached(lake, rule, table, epochs), bronze))
        elif kind == "gold":
            silver = _reached(lake, rule, lake.table(f"silver/{rule}"), epochs)
            found.append(_status(name, table, _reached(lake, rule, table, epochs), silver))
        else:
            found.append(_status(name, table, [None], [None]))
    return found


def _reached(lake: Lake, rule: str, table: Table, epochs: Sequence[int]) -> list[int | None]:
    """In each epoch; None where there is no table, or it has begun no working."""
    snapshot = table.now()
    return [reached_by_rule(snapshot, lake.stream, each, rule) if snapshot else None for each in epochs]


def _status(
    name: str, table: Table, reached: Sequence[int | None], ends: Sequence[int | None]
) -> TableStatus:
    files = table.files()
    times = [time for each in files if (time := each.high.get("received")) is not None]
    behind: int | None = 0
    for at, end in zip(reached, ends, strict=True):
        behind = None if behind is None or at is None or end is None else behind + max(end - at, 0)
    return TableStatus(
        name=name,
        rows=sum(each.rows for each in files),
        files=len(files),
        bytes=sum(each.size for each in files),
        newest=max(times, default=None),
        reached=reached[0] if len(reached) == 1 else None,
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
