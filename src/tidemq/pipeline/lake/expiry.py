"""Messages that bronze gives up when they are old: whole days, once every rule has worked them.

Bronze's log then says for each epoch up to which offset messages are missing: who would make rows anew that
nothing can be made of any more is refused (`rework`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, expired_of, reached_by_rule, said_to_have_expired
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import File


@dataclass(frozen=True, slots=True)
class Expired:
    """What was given up; and why a day that is old enough was not, nor those after it. Empty: all were."""

    days: int = 0
    messages: int = 0
    kept: str = ""


def expire(lake: Lake, days: int, now: datetime, rules: Sequence[str]) -> Expired:
    """Removes messages that came on a day (UTC) that ended so many days ago or earlier, and that the decoded
    tables of these rules have got beyond.

    ConflictError when somebody else has removed or replaced a file meanwhile.
    """
    bronze = lake.bronze
    snapshot = bronze.now()
    last = now.astimezone(UTC).date() - timedelta(days=days)
    given_up: list[File] = []
    ends: dict[int, int] = {}
    found = Expired()
    for day, of_day in _days(snapshot.files() if snapshot else (), last):
        ends_of_day = _ends(bronze, of_day)
        if kept := _needed(lake, rules, day, ends_of_day):
            found = Expired(found.days, found.messages, kept)
            break
        given_up += of_day
        ends |= {epoch: max(end, ends.get(epoch, 0)) for epoch, end in ends_of_day.items()}
        found = Expired(found.days + 1, found.messages + sum(each.rows for each in of_day))
    if snapshot is not None and given_up:
        progress = {Progress(lake.stream, epoch): end for epoch, end in ends.items()}
        ends_of = {each: max(end, expired_of(snapshot, each)) for each, end in progress.items()}
        bronze.remove(snapshot, given_up, said_to_have_expired(lake.stream, ends_of))
    return found


def _days(files: Iterable[File], last: date) -> Iterator[tuple[date, list[File]]]:
    """The files of each day before `last`, the earliest first."""
    old = sorted((each for each in files if each.date and _day(each) < last), key=_day)
    for day, of_day in groupby(old, _day):
        yield day, list(of_day)


def _day(file: File) -> date:
    return date.fromisoformat(file.date)


def _ends(bronze: Table, files: Iterable[File]) -> dict[int, int]:
    """By epoch, the offset after the last message that is in one of these files."""
    ends: dict[int, int] = {}
    for file in files:
        epoch, last = file.high.get("epoch"), file.high.get("offset")
        if epoch is None or last is None or epoch != file.low.get("epoch"):
            of_file = _read_ends(bronze, file)
        else:
            of_file = {epoch: last + 1}
        for epoch, end in of_file.items():
            ends[epoch] = max(end, ends.get(epoch, 0))
    return ends


def _read_ends(bronze: Table, file: File) -> dict[int, int]:
    """Of a file of several epochs, or one that somebody else has written."""
    ends: dict[int, int] = {}
    with bronze.open_file(file.path) as source:
        for batch in pq.ParquetFile(source).iter_batches(columns=["epoch", "offset"]):
            for epoch in pc.unique(batch.column("epoch")):
                offsets = pc.filter(batch.column("offset"), pc.equal(batch.column("epoch"), epoch))
                ends[epoch.as_py()] = max(pc.max(offsets).as_py() + 1, ends.get(epoch.as_py(), 0))
    return ends


def _needed(lake: Lake, rules: Sequence[str], day: date, ends: Mapping[int, int]) -> str:
    """Which rule has not got beyond these offsets, in words; empty: none."""
    for rule in rules:
        snapshot = lake.table(f"silver/{rule}").now()
        for epoch, end in ends.items():
            reached = reached_by_rule(snapshot, lake.stream, epoch, rule) if snapshot else None
            if (reached or 0) < end:
                return f"{day} is kept: the rule {rule} has got to offset {reached or 0} and not to {end}"
    return ""
