"""Few large files in place of many small ones, while others write; a byte is written four times at most.

Each batch writes files of its own. While a partition grows, `GATHERED` of them become one of level 1, and as
many of level 1 one of level 2. When it has stopped growing, all that is smaller than `TARGET_BYTES` becomes
level 3, which is left alone. The path of a file says its level.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from tidemq.pipeline.lake.day_files import DayFiles, Written
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import ConflictError, File, without_date

TARGET_BYTES = 128 << 20  # a file that has so many is left alone
GATHERED = 32
LAST_LEVEL = 3
QUIET = timedelta(hours=1)  # a partition of an earlier day whose files are as old as this has stopped growing
GROUP_BYTES = 64 << 20  # in memory, of a row group


@dataclass(frozen=True, slots=True)
class Group:
    """Files of a partition that become one."""

    date: str
    level: int
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done."""

    files: int = 0
    into: int = 0
    bytes: int = 0


def compact(table: Table, now: datetime) -> Compacted:
    """Puts files together; leaves those that somebody else has replaced meanwhile to the next time."""
    before = into = written = 0
    for group in groups(table.files(), now):
        snapshot = table.now()
        assert snapshot is not None
        new = _write(table, group, without_date(snapshot.columns))
        try:
            written += table.swap(snapshot, group.files, new)
        except ConflictError:
            continue
        before, into = before + len(group.files), into + 1
    return Compacted(before, into, written)


def groups(files: Sequence[File], now: datetime) -> Iterator[Group]:
    """What is to become one, of the files of a table."""
    partitions: dict[str, list[File]] = {}
    for file in files:
        if file.date and file.size < TARGET_BYTES and level_of(file) < LAST_LEVEL:
            partitions.setdefault(file.date, []).append(file)
    for date, small in sorted(partitions.items()):
        if _is_closed(date, small, now):
            if len(small) > 1:
                yield from _filled(date, LAST_LEVEL, small)
            continue
        for level in range(LAST_LEVEL - 1):
            alike = [file for file in small if level_of(file) == level]
            if len(alike) >= GATHERED:
                yield from _filled(date, level + 1, alike)


def level_of(file: File) -> int:
    found = re.match(r"compact-(\d)-", file.path)
    return int(found[1]) if found else 0


def _is_closed(date: str, files: Sequence[File], now: datetime) -> bool:
    newest = datetime.fromtimestamp(max(file.modified_ms for file in files) / 1000, UTC)
    return date < now.astimezone(UTC).date().isoformat() and now - newest >= QUIET


def _filled(date: str, level: int, files: Sequence[File]) -> Iterator[Group]:
    """In the order of their messages, so many at a time as make a whole file."""
    ordered = sorted(files, key=lambda file: (file.low.get("epoch", 0), file.low.get("offset", 0)))
    found: list[File] = []
    for file in ordered:
        found.append(file)
        if sum(each.size for each in found) >= TARGET_BYTES:
            yield Group(date, level, tuple(found))
            found = []
    if len(found) > 1:
        yield Group(date, level, tuple(found))


def _write(table: Table, group: Group, columns: pa.Schema) -> list[Written]:
    """The rows of the files, in their order, as one."""
    folder = f"{table.uri}/compact-{group.level}-{uuid.uuid4()}"
    with DayFiles(table.storage, GROUP_BYTES) as files:
        for file in group.files:
            for batch in table.batches(file, columns):
                files.add(folder, batch, pa.repeat(group.date, batch.num_rows))
    return files.written
