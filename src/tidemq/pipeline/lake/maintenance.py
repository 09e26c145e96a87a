"""What keeps the tables of a stream small and quick to read, beside whoever writes to them. Needs no Spark
session.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tidemq.pipeline.lake.compaction import Compacted, compact
from tidemq.pipeline.lake.expiry import expire
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.table import RETAINED_H, Table
from tidemq.pipeline.lake.table_log import TableError


def maintain(table: Table, keep_h: int = RETAINED_H) -> Compacted:
    """Puts small files together, and removes those that no version of the last hours needs."""
    done = compact(table, datetime.now(UTC))
    table.clean(keep_h)
    return done


def maintain_all(lake: Lake, keep_h: int = RETAINED_H, bronze_days: int = 0) -> Iterator[str]:
    """The same for all tables of the stream, and before that removes messages from bronze that came so many
    days ago (0: none) and that all rules have worked: those of `lake`, or if it has none, all with a table.
    Gives a line for each thing that is done. TableError where there is no table.
    """
    names = names_of_tables(lake)
    if bronze_days:
        rules = [rule.name for rule in lake.rules] or [
            name.removeprefix("silver/") for name in names if name.startswith("silver/")
        ]
        gone = expire(lake, bronze_days, datetime.now(UTC), rules)
        yield f"bronze: {gone.messages} messages of {gone.days} days have expired"
        if gone.kept:
            yield f"bronze: {gone.kept}"
    for name in names:
        done = maintain(lake.table(name), keep_h)
        yield f"{name}: {done.files} files into {done.into}, {done.bytes} bytes"


def names_of_tables(lake: Lake) -> list[str]:
    """Below the stream's folder; TableError where there is none."""
    names = sorted(lake.format.names(lake.folder, lake.storage))
    if not names:
        raise TableError(f"there are no tables in {lake.folder}")
    return names
