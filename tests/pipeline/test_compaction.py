"""Small files are put together: nothing is lost or doubled, and no byte is written often."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pipeline.streaming import TIDEMQ

from tidemq.pipeline.lake import compaction
from tidemq.pipeline.lake.compaction import GATHERED, compact, groups
from tidemq.pipeline.lake.progress import Progress
from tidemq.pipeline.lake.stale import Stale
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import ConflictError, File

ROUNDS = 200
DAYS = 4
NEVER = datetime(2000, 1, 1, tzinfo=UTC)  # no partition is closed then


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(str(tmp_path / "lake/plant/bronze"))


def append(table: Table, number: int, day: date, *, rows: int = 10, **more: Any) -> None:
    """A batch with the messages of these offsets."""
    offsets = range(number * rows, (number + 1) * rows)
    columns = {"epoch": [1] * rows, "offset": list(offsets), **more, "date": [day] * rows}
    write_deltalake(table.uri, pa.table(columns), mode="append", partition_by=["date"], schema_mode="merge")


def offsets(table: Table) -> list[int]:
    return sorted(DeltaTable(table.uri).to_pyarrow_table().column("offset").to_pylist())


def rows_on_disk(table: Table) -> int:
    """Of all files that were ever written, as long as none is removed."""
    root = Path(table.uri.removeprefix("file://"))
    return sum(
        pq.read_metadata(path).num_rows for path in root.rglob("*.parquet") if "_delta_log" not in path.parts
    )


def test_a_row_is_written_four_times_at_most(table: Table) -> None:
    """Over 200 batches of four days, compacted after every ten."""
    first = datetime.now(UTC) + timedelta(days=1)  # of days to come: what is written now has long been quiet
    files = []
    for number in range(ROUNDS):
        now = first + timedelta(days=number * DAYS // ROUNDS)
        append(table, number, now.date(), rows=2)
        if number % 10 == 9:
            compact(table, now)
            files.append(len(table.files()))
    assert offsets(table) == list(range(2 * ROUNDS))
    assert rows_on_disk(table) <= 4 * 2 * ROUNDS
    assert max(files) <= DAYS + 2 * GATHERED
    after = first + timedelta(days=DAYS)
    compact(table, after)
    assert len(table.files()) == DAYS
    before = rows_on_disk(table)
    assert before <= 4 * 2 * ROUNDS
    assert compact(table, after).bytes == 0
    assert rows_on_disk(table) == before


def test_levels_of_an_open_partition(table: Table) -> None:
    def file(number: int, path: str = "batch-1/a.parquet", size: int = 1) -> File:
        return File(path, size, 0, 1, "2026-01-01", {"epoch": 1, "offset": number}, {})

    small = [file(number) for number in range(GATHERED, 0, -1)]
    assert list(groups(small[1:], NEVER)) == []
    (found,) = groups(small, NEVER)
    assert (found.date, found.level, len(found.files)) == ("2026-01-01", 1, GATHERED)
    assert [each.low["offset"] for each in found.files] == list(range(1, GATHERED + 1))
    ones = [file(number, "compact-1-x/date=2026-01-01/part.parquet") for number in range(GATHERED)]
    assert [(each.level, len(each.files)) for each in groups(ones + small[1:], NEVER)] == [(2, GATHERED)]
    twos = [file(number, "compact-2-x/date=2026-01-01/part.parquet") for number in range(2 * GATHERED)]
    assert list(groups(twos, NEVER)) == []
    halves = [file(number, size=compaction.TARGET_BYTES // 2) for number in range(GATHERED + 1)]
    assert [len(each.files) for each in groups(halves, NEVER)] == [2] * (GATHERED // 2)
    whole = [file(number, size=compaction.TARGET_BYTES) for number in range(GATHERED)]
    assert list(groups(whole, NEVER)) == []


def test_columns_that_came_later_and_bounds_are_kept(table: Table) -> None:
    day = date(2026, 1, 1)
    append(table, 0, day, site=[None] * 10)
    append(table, 1, day, site=["a"] * 10, more=[{"x": [1, None]}] * 10)
    compact(table, datetime.now(UTC) + timedelta(days=1))
    (file,) = table.files()
    assert (file.rows, file.low["offset"], file.high["offset"]) == (20, 0, 19)
    found = DeltaTable(table.uri).to_pyarrow_table().sort_by("offset")
    assert found.column("site").to_pylist() == [None] * 10 + ["a"] * 10
    assert found.column("more").to_pylist() == [None] * 10 + [{"x": [1, None]}] * 10


def test_what_was_replaced_meanwhile_is_left_alone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        append(table, number, date(2026, 1, 1))
    swap = Table.swap

    def late(self: Table, *arguments: Any) -> int:
        DeltaTable(table.uri).delete("offset = 5")
        append(table, 3, date(2026, 1, 1))
        return swap(self, *arguments)

    monkeypatch.setattr(Table, "swap", late)
    assert compact(table, datetime.now(UTC) + timedelta(days=1)).files == 0
    monkeypatch.undo()
    kept = [number for number in range(40) if number != 5]
    assert offsets(table) == kept
    assert compact(table, datetime.now(UTC) + timedelta(days=1)).files == 4
    assert offsets(table) == kept


@pytest.mark.parametrize("stale", [Stale(), Stale({1: 0})])
def test_a_working_begins_again_without_rows_that_were_put_together_meanwhile(
    table: Table, stale: Stale
) -> None:
    for number in range(3):
        append(table, number, date(2026, 1, 1))
    seen = table.now()
    assert seen is not None
    compact(Table(table.uri), datetime.now(UTC) + timedelta(days=1))
    progress = Progress("plant", 1)
    columns, said = seen.columns, progress.said(7)
    with pytest.raises(ConflictError):
        table.begin_again(seen, columns, stale, said)
    assert offsets(table) == list(range(30))
    seen = table.now()
    assert seen is not None
    table.begin_again(seen, columns, stale, said)
    assert (offsets(table), table.reached(progress)) == ([], 7)


def test_files_that_two_put_together_at_once_are_so_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        append(table, number, date(2026, 1, 1))
    swap, tomorrow = Table.swap, datetime.now(UTC) + timedelta(days=1)

    def second(self: Table, *arguments: Any) -> int:
        monkeypatch.undo()
        assert compact(Table(table.uri), tomorrow).files == 3
        return swap(self, *arguments)

    monkeypatch.setattr(Table, "swap", second)
    assert compact(table, tomorrow).files == 0
    assert offsets(table) == list(range(30))


def test_the_command(table: Table, tmp_path: Path) -> None:
    """Folders of attempts that were given up go, too; those of attempts under way stay."""
    for number in range(GATHERED):
        append(table, number, datetime.now(UTC).date())
    root = Path(table.uri.removeprefix("file://"))
    old, new = root / "batch-old/date=2026-01-01", root / "batch-new/date=2026-01-01"
    for folder in (old, new):
        folder.mkdir(parents=True)
    (old / "part.parquet").write_bytes(b"unfinished")
    long_ago = time.time() - 8 * 86400
    for path in (old / "part.parquet", old, old.parent):
        os.utime(path, (long_ago, long_ago))
    done = subprocess.run(
        [*TIDEMQ, "pipeline", "maintain", "plant", str(tmp_path / "lake")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"bronze: {GATHERED} files into 1, ")
    assert (old.parent.exists(), new.exists()) == (False, True)
    assert offsets(table) == list(range(10 * GATHERED))
    wrong = subprocess.run(
        [*TIDEMQ, "pipeline", "maintain", "climate", str(tmp_path / "lake")], capture_output=True, text=True
    )
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    assert "there are no tables in " in wrong.stderr
