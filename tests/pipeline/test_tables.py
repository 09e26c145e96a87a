"""Tables in both formats, when others write to them: nothing is lost, doubled, or removed too early."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pipeline.iced import OWN, now

from tidemq.pipeline.lake.compaction import compact
from tidemq.pipeline.lake.day_files import DayFiles
from tidemq.pipeline.lake.delta_log import DELTA
from tidemq.pipeline.lake.iceberg_log import IcebergSnapshot
from tidemq.pipeline.lake.progress import Progress, Span, Working
from tidemq.pipeline.lake.stale import Stale
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import ConflictError, File, TableError, TableFormat, without_date

DAY = timedelta(days=1)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = pa.schema(
    {"epoch": pa.int64(), "offset": pa.int64(), "rule": pa.string(), "window": pa.timestamp("us", "UTC")}
    | {"date": pa.date32()}
)
EARLIER, LATER = (Progress("plant", 1, Working("r", generation, 7)) for generation in (100, 200))
LATE = datetime.now(UTC) + 400 * DAY  # all partitions are closed then

Make = Callable[[], Table]


@pytest.fixture(params=[DELTA, OWN], ids=["delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """`make()`: the same table, as another driver has it."""
    table_format: TableFormat = request.param
    return lambda: Table(str(tmp_path / "lake/plant/silver/r"), table_format=table_format)


def adding(
    table: Table, progress: Progress, span: Span, *, days: int = 1, stale: Callable[[], Stale] = Stale
) -> Callable[[], int]:
    """The messages of a span, as files, over so many days; what is given commits them."""
    attempt = table.attempt(COLUMNS, progress, span, stale=stale)
    found = []
    for offset in range(max(span.start, attempt.reached), span.end):
        day = FIRST + offset % days * DAY
        row = {"epoch": 1, "offset": offset, "rule": "ab"[offset // days % 2], "window": day}
        with DayFiles(table.storage, 1 << 20) as files:
            batch = pa.RecordBatch.from_pylist([row], without_date(COLUMNS))
            files.add(attempt.folder, batch, pa.array([day.date()]))
        found += files.written
    return lambda: attempt.commit(found)


def offsets(table: Table) -> list[int]:
    snapshot = table.now()
    assert snapshot is not None
    found = table.rows(snapshot, pa.schema([COLUMNS.field("offset")]), {})["offset"].to_pylist()
    return sorted(found, key=lambda each: (each is None, each))


def own(table: Table, rows: pa.Table) -> None:
    """The table's owner adds rows."""
    if isinstance(table.now(), IcebergSnapshot):
        now(table).append(rows)
    else:
        write_deltalake(table.uri, rows, mode="append", schema_mode="merge")


def test_rows_that_come_while_a_rule_is_begun_again_do_not_stay(make: Make) -> None:
    """Ingest goes on with the earlier working until the later one has begun."""
    table = make()
    adding(table, EARLIER, Span(0, 20))()
    under_way = adding(make(), EARLIER, Span(20, 30))

    def stale() -> Stale:
        under_way()
        return Stale({1: 10})

    with pytest.raises(ConflictError):
        adding(table, LATER, Span(10, 30), stale=stale)
    adding(table, LATER, Span(10, 30), stale=lambda: Stale({1: 10}))()
    assert offsets(table) == list(range(30))


def test_rows_that_have_nothing_to_do_with_it_do_no_harm(make: Make) -> None:
    """As another rule's dead letters."""
    table = make()
    adding(table, Progress("plant", 1), Span(0, 10))()
    seen = table.now()
    assert seen is not None
    seen.files()
    adding(make(), Progress("plant", 1), Span(11, 12))()
    table.begin_again(seen, COLUMNS, Stale().of("a"), {"a": 1})
    assert offsets(table) == [1, 3, 5, 7, 9, 11]


def figures(window: datetime, count: int) -> pa.Table:
    row = {"epoch": 1, "offset": count, "rule": "a", "window": window, "date": window.date()}
    return pa.Table.from_pylist([row], COLUMNS)


def test_a_window_that_two_drivers_fill_at_once_has_one_of_their_rows(make: Make) -> None:
    mine, others = (Progress("plant", epoch, Working("r", 1, 1)) for epoch in (1, 2))
    table, other = make(), make()
    for each in (mine, others):
        table.remove(table.before(COLUMNS, each, 0), [], each.said(1))
    before = table.before(COLUMNS, mine, 1)
    before.files()
    there, then = [(FIRST, FIRST + DAY)], [(FIRST + DAY, FIRST + 2 * DAY)]
    first = other.before(COLUMNS, others, 1)
    other.replace(first, figures(FIRST, 10), "window", there, others.said(2), there)
    with pytest.raises(ConflictError, match="were to be replaced"):
        table.replace(before, figures(FIRST, 5), "window", there, mine.said(2), there)
    with pytest.raises(ConflictError, match="were to be replaced"):
        table.replace(before, figures(FIRST + DAY, 5), "window", then, mine.said(2), there + then)
    table.replace(before, figures(FIRST + DAY, 5), "window", then, mine.said(2), then)
    assert offsets(table) == [5, 10]
    with pytest.raises(ConflictError, match="elsewhere than to the offset 1"):
        table.before(COLUMNS, mine, 1)


def test_what_the_owner_has_added_stays(make: Make) -> None:
    table = make()
    adding(table, EARLIER, Span(0, 4))()
    for _ in range(2):
        own(table, pa.table({"rule": ["own"], "date": [date(2026, 1, 2)]}))
    own(table, pa.table({"rule": ["own"], "date": pa.nulls(1, pa.date32())}))
    assert compact(table, LATE).files == 6
    spans = [(FIRST, FIRST + DAY)]
    before = table.before(COLUMNS, EARLIER, 4)
    table.replace(before, figures(FIRST, 9), "window", spans, EARLIER.said(4), spans)
    assert offsets(table) == [9, None, None, None]
    seen = table.now()
    assert seen is not None
    table.begin_again(seen, COLUMNS, Stale({1: 0}), {})
    assert offsets(table) == [None, None, None]


def test_files_that_were_replaced_a_moment_ago_stay(make: Make) -> None:
    """However old they are; a reader may be in the middle of them."""
    table = make()
    adding(table, EARLIER, Span(0, 3))()
    root = Path(table.uri.removeprefix("file://"))
    old = list(root.glob("batch-*/**/*.parquet"))
    for path in old:
        os.utime(path, (time.time() - 8 * 86400,) * 2)
    compact(table, LATE)
    for end in range(4, 50):
        adding(table, EARLIER, Span(end - 1, end), days=2)()
    table.clean()
    assert all(path.exists() for path in old)
    table.clean(0)
    assert not any(path.exists() for path in old)
    assert offsets(table) == list(range(49))


@contextmanager
def few_files(number: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_many_days_are_not_open_at_once(make: Make) -> None:
    table = make()
    adding(table, EARLIER, Span(0, 240), days=120)()
    seen = table.now()
    assert seen is not None
    with few_files(60):
        table.begin_again(seen, COLUMNS, Stale().of("a"), {})
    assert offsets(table) == list(range(120, 240))


def test_deletion_vectors_are_refused(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "lake/plant/bronze"))
    adding(table, EARLIER, Span(0, 3))()
    DeltaTable(table.uri).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(TableError, match="deletion vectors"):
        compact(Table(table.uri), LATE)


def test_files_that_another_puts_together_once_they_are_listed_are_so_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list and the snapshot that is committed to."""
    table = make()
    for start in range(0, 30, 10):
        adding(table, EARLIER, Span(start, start + 10))()
    files = Table.files

    def listed(self: Table) -> list[File]:
        found = files(self)
        monkeypatch.undo()
        assert compact(make(), LATE).into == 1
        return found

    monkeypatch.setattr(Table, "files", listed)
    assert compact(table, LATE).files == 0
    assert offsets(table) == list(range(30))
