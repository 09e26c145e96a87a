"""Iceberg's tables hold what Delta's do: each message once, whoever commits beside; others can read them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from object_store import BUCKET, ObjectStore
from pipeline.iced import OWN, by_duckdb, now, offsets

from tidemq.errors import ConfigError, UsageError
from tidemq.pipeline.lake.compaction import compact
from tidemq.pipeline.lake.day_files import DayFiles
from tidemq.pipeline.lake.formats import load_format, parse_format
from tidemq.pipeline.lake.iceberg_log import METADATA_MAX, SNAPSHOTS_MAX, Iceberg
from tidemq.pipeline.lake.maintenance import maintain_all
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress
from tidemq.pipeline.lake.stale import Stale
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import ConflictError, TableError
from tidemq.pipeline.places import ENVIRONMENT
from tidemq.pipeline.service.pipeline_file import load_pipeline

PLANT = Progress("plant", 1)
COLUMNS = pa.schema(
    {
        "epoch": pa.int64(),
        "offset": pa.int64(),
        "qos": pa.int8(),
        "received": pa.timestamp("us", "UTC"),
        "properties": pa.list_(pa.struct({"name": pa.string()})),
        "date": pa.date32(),
    }
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(str(tmp_path / "lake/plant/bronze"), table_format=OWN)


def written(table: Table, end: int, columns: pa.Schema = COLUMNS) -> Callable[[], int]:
    """The messages up to this offset that the table has not got to, as files; what is given commits them."""
    attempt = table.attempt(columns, PLANT, widen=True)
    rows = [
        {
            "epoch": 1,
            "offset": offset,
            "qos": offset % 3,
            "received": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=offset),
            "properties": [{"name": str(offset)}],
        }
        for offset in range(attempt.reached, end)
    ]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([each for each in columns if each.name != "date"]))
    with DayFiles(table.storage, 1 << 20) as found:
        found.add(attempt.folder, batch, pa.array([date(2026, 1, 1)] * len(rows)))
    return lambda: attempt.commit(found.written)


def test_what_is_committed_is_there_once_and_others_read_it(table: Table) -> None:
    first, second = written(table, 10), written(table, 10)
    assert first() == 10
    with pytest.raises(ConflictError, match="somebody else has written"):
        second()
    assert written(table, 25)() == 15
    assert (table.reached(PLANT), table.epochs()) == (25, [1])
    assert offsets(table) == list(range(25))
    found = now(table).scan(row_filter="date = '2026-01-01' and offset >= 20").to_arrow()
    assert sorted(found["qos"].to_pylist()) == sorted(offset % 3 for offset in range(20, 25))
    query = 'select date, count(*), sum("offset"), max(properties[1].name) from {table} group by date'
    assert by_duckdb(table, query) == [(date(2026, 1, 1), 25, 300, "9")]
    assert pl.scan_iceberg(now(table)).collect().height == 25
    catalog = OWN.catalog(table.uri.rpartition("/")[0], ENVIRONMENT)
    assert "commit.retry.num-retries" not in catalog.load_table(("plant", "bronze")).properties


def test_a_commit_of_somebody_else_does_no_harm(table: Table) -> None:
    """An owner's program that adds rows knows no numbers; `maintain` puts files together meanwhile."""
    written(table, 10)()
    later = written(table, 20)
    own = pa.table({"offset": pa.array([-1]), "date": pa.array([date(2026, 1, 2)])})
    now(table).append(own)
    assert later() == 10
    now(table).append(pa.table({"offset": pa.array([-2]), "date": pa.nulls(1, pa.date32())}))
    again = written(table, 30)
    assert compact(table, datetime(2027, 1, 1, tzinfo=UTC)).files == 2
    assert again() == 10
    assert offsets(table) == list(range(-2, 30))
    assert table.reached(PLANT) == 30


def test_files_that_are_gone_are_not_removed_again(table: Table) -> None:
    for end in (10, 20):
        written(table, end)()
    seen = table.now()
    assert seen is not None
    compact(table, datetime.now(UTC) + timedelta(days=400))
    with pytest.raises(ConflictError, match="replaced files"):
        table.remove(seen, seen.files(), {})
    with pytest.raises(ConflictError):
        table.begin_again(seen, COLUMNS, Stale({1: 5}), {"a": 1})
    assert offsets(table) == list(range(20))


def test_another_working_removes_rows_and_changes_columns(table: Table) -> None:
    written(table, 20)()
    seen = table.now()
    assert seen is not None
    table.begin_again(seen, COLUMNS, Stale({1: 15}), {"a": 1})
    assert offsets(table) == list(range(15))
    other = pa.schema({"epoch": pa.int64(), "offset": pa.int64(), "qos": pa.string(), "date": pa.date32()})
    with pytest.raises(ConflictError):
        table.begin_again(seen, other, Stale(), {"a": 2})
    seen = table.now()
    assert seen is not None
    table.begin_again(seen, other, Stale(), {"a": 2})
    emptied = table.now()
    assert emptied is not None
    assert (emptied.columns.names, offsets(table), emptied.number("a")) == (
        ["epoch", "offset", "date", "qos"],
        [],
        2,
    )
    assert emptied.columns.field("qos").type == pa.large_string()


def test_columns_that_come_later_are_null_before(table: Table) -> None:
    written(table, 2)()
    wide = COLUMNS.insert(2, pa.field("site", pa.string()))
    assert written(table, 4, wide)() == 2
    assert by_duckdb(table, "select count(*), count(site) from {table}") == [(4, 0)]
    with pytest.raises(TableError, match=r"has no column qos of string"):
        table.attempt(COLUMNS.set(2, pa.field("qos", pa.string())), PLANT)


def test_a_rollback_takes_the_progress_back_with_the_rows(table: Table) -> None:
    written(table, 10)()
    before = now(table).current_snapshot()
    assert before is not None
    written(table, 20)()
    now(table).manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    assert table.reached(PLANT) == 10
    assert written(table, 20)() == 10
    assert offsets(table) == list(range(20))


def owner_adds(table: Table) -> int:
    """A row; gives the snapshot's identifier."""
    now(table).append(pa.table({"offset": pa.array([-1]), "date": pa.array([date(2026, 1, 2)])}))
    return current(table)


def current(table: Table) -> int:
    found = now(table).current_snapshot()
    assert found is not None
    return found.snapshot_id


def test_upkeep_by_others_takes_no_progress_away(table: Table) -> None:
    """As engines that put files together, and then let snapshots expire."""
    written(table, 10)()
    ours = current(table)
    theirs = owner_adds(table)
    table.clean(0)
    assert {each.snapshot_id for each in now(table).snapshots()} == {ours, theirs}
    now(table).maintenance.expire_snapshots().by_id(ours).commit()
    assert table.reached(PLANT) == 10
    assert written(table, 20)() == 10
    assert offsets(table) == [-1, *range(20)]
    for end in range(21, 21 + SNAPSHOTS_MAX):
        written(table, end)()
    table.clean(0)
    assert now(table).snapshot_by_id(theirs), "others' snapshots are theirs"


def test_a_table_that_has_forgotten_how_far_it_is_is_refused(table: Table) -> None:
    written(table, 10)()
    ours = [current(table)]
    theirs = owner_adds(table)
    written(table, 20)()
    ours.append(current(table))
    now(table).manage_snapshots().rollback_to_snapshot(theirs).commit()
    assert table.reached(PLANT) == 10
    now(table).maintenance.expire_snapshots().by_ids(ours).commit()
    with pytest.raises(TableError, match="does not say how far it has got"):
        table.reached(PLANT)


def test_a_renamed_column_is_not_lost(table: Table) -> None:
    for end in (10, 20):
        written(table, end)()
    with now(table).update_schema() as schema:
        schema.rename_column("qos", "quality")
    with pytest.raises(TableError, match="a column with two names: qos and quality"):
        compact(table, datetime.now(UTC) + timedelta(days=400))
    assert None not in now(table).scan().to_arrow()["quality"].to_pylist()


def test_tables_of_others_in_the_namespace_are_left_alone(tmp_path: Path) -> None:
    place = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    table_format = parse_format("iceberg", place, "catalog.toml")
    lake = Lake(stream="plant", tables=str(tmp_path / "lake"), format=table_format)
    written(lake.bronze, 10)()
    assert isinstance(table_format, Iceberg)
    catalog = table_format.catalog(lake.folder, ENVIRONMENT)
    catalog.create_table(("plant", "daily"), COLUMNS)
    assert [line.partition(":")[0] for line in maintain_all(lake, keep_h=0)] == ["bronze"]


def test_a_partition_is_quiet_although_its_snapshots_are_forgotten(table: Table) -> None:
    written(table, 10)()
    root = Path(table.uri.removeprefix("file://"))
    (file,) = root.glob("batch-*/**/*.parquet")
    for end in range(11, 12 + 2 * SNAPSHOTS_MAX):
        written(table, end)()
    os.utime(file, (1e9, 1e9))
    again = Table(table.uri, table_format=OWN)
    assert min(each.modified_ms for each in again.files()) == 10**12


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"type": "nope"}, "cannot be opened: 'nope' is not a valid"),
        ({"type": "sql", "uri": "sqlite:////nowhere/catalog.db"}, "unable to open database file"),
        ({"type": "sql", "uri": "nosuch://user:secret@host/db"}, "cannot be opened"),
    ],
)
def test_a_catalogue_that_cannot_be_opened_is_named(tmp_path: Path, place: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        Table(str(tmp_path / "plant/bronze"), table_format=parse_format("iceberg", place, "file"))
    assert "secret" not in str(error.value)


def test_rows_with_delete_files_are_refused(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg writes none, Spark does: the manifest's kind is what says so."""
    from pyiceberg.manifest import ManifestContent, ManifestFile

    written(table, 10)()
    monkeypatch.setattr(ManifestFile, "content", ManifestContent.DELETES, raising=False)
    with pytest.raises(TableError, match="delete files"):
        table.files()


def test_metadata_stays_small(table: Table) -> None:
    for end in range(1, METADATA_MAX + 21):
        written(table, end)()
        assert len(now(table).snapshots()) <= 2 * SNAPSHOTS_MAX
    compact(table, datetime.now(UTC))
    table.clean(0)
    root = Path(table.uri.removeprefix("file://"))
    assert len(now(table).snapshots()) == 1
    assert len(list(root.glob("batch-*"))) + len(list(root.glob("compact-*"))) == len(table.files())
    assert len(list(root.glob("metadata/*.metadata.json"))) <= METADATA_MAX + 1
    assert offsets(table) == list(range(METADATA_MAX + 20))


def test_files_of_attempts_under_way_stay(table: Table) -> None:
    commit = written(table, 10)
    table.clean(1)
    assert commit() == 10
    assert offsets(table) == list(range(10))


def drive(uri: str) -> None:
    """Another process."""
    table = Table(uri, table_format=OWN)
    for end in range(5, 105, 5):
        while table.reached(PLANT) < end:
            with suppress(ConflictError):
                written(table, end)()


def test_drivers_that_race_lose_and_double_nothing(table: Table) -> None:
    """Three processes commit the same messages, and a fourth puts files together."""
    program = f"from pipeline.test_iceberg import drive; drive({table.uri!r})"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    drivers = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(3)]
    while any(driver.poll() is None for driver in drivers):
        compact(table, datetime.now(UTC) + timedelta(days=400))
    assert [driver.returncode for driver in drivers] == [0, 0, 0]
    assert offsets(table) == list(range(100))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("orc", None, "accepted: delta, iceberg"),
        ("delta", "[catalog]", "--catalog is for tables of Iceberg"),
        ("iceberg", "", "has no section catalog"),
        ("iceberg", "[catalog]\nuri = 7", "catalog.uri is not text"),
    ],
)
def test_what_is_wrong_with_a_format_is_said(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    file = tmp_path / "catalog.toml"
    file.write_text(text or "")
    with pytest.raises((UsageError, ConfigError), match=said):
        load_format(name, None if text is None else file)


def test_a_file_for_all_says_the_format_once(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    text = 'url = "http://broker:8080"\ntables = "lake"\nformat = "{}"\n{}\n[[streams]]\nname = "plant"\n'
    file.write_text(text.format("iceberg", '[catalog]\nname = "prod"\nuri = "sqlite://"'))
    (stream,) = load_pipeline(file).streams
    assert stream.ingest.format == Iceberg("prod", {"uri": "sqlite://"})
    assert "sqlite" not in repr(stream), "a catalogue's properties have credentials"
    file.write_text(text.format("iceberg", ""))
    assert load_pipeline(file).streams[0].ingest.format == OWN
    file.write_text(text.format("delta", '[catalog]\nname = "prod"'))
    with pytest.raises(ConfigError, match='catalog is for format = "iceberg" alone'):
        load_pipeline(file)
    file.write_text(text.format("orc", ""))
    with pytest.raises(ConfigError, match="format is 'orc'; accepted: 'delta' or 'iceberg'"):
        load_pipeline(file)


def test_an_object_store_needs_a_catalogue() -> None:
    with pytest.raises(UsageError, match="accepted: --catalog"):
        Table("s3://bucket/lake/plant/bronze", table_format=OWN)


def test_a_table_of_another_place_is_refused(tmp_path: Path, table: Table) -> None:
    written(table, 1)()
    uri = f"sqlite:///{tmp_path}/lake/catalog.db"
    other = Lake(
        stream="plant",
        tables=str(tmp_path / "other"),
        format=parse_format("iceberg", {"type": "sql", "uri": uri}, "catalog.toml"),
    )
    with pytest.raises(TableError, match=r"accepted: .*/other/plant/bronze"):
        other.bronze.now()


def test_in_an_object_store(store: ObjectStore, tmp_path: Path) -> None:
    """Metadata, too, is written by the same credentials."""
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    lake = Lake(
        stream="iced",
        tables=f"s3://{BUCKET}/iced-tables",
        storage=store.storage,
        format=parse_format("iceberg", catalog, "catalog.toml"),
    )
    for end in (10, 20):
        assert written(lake.bronze, end)() == 10
    assert offsets(lake.bronze) == list(range(20))
    assert list(maintain_all(lake, keep_h=0))
    assert offsets(lake.bronze) == list(range(20))
    assert any(path.startswith("metadata/") for path in store.objects("iced-tables/iced/bronze"))
