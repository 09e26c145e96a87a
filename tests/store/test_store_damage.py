"""Damaged files cost their own rows at most and are reported; a strict store refuses them."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tidemq.errors import StoreError
from tidemq.store import FAMILIES, Store
from tidemq.store.manifest import encode_dropped_table, parse_manifest, rewrite_manifest
from tidemq.store.rocksdb import RocksDBStore
from tidemq.store.sqlite import SQLiteStore

# in tables: three of "queue", with 3000 rows each; in the log alone: "session", and 100 batches of "retained"
ROWS = 3000
GENERATIONS = 3
BATCHES = 100
BATCH = 10


def fill(store: Store, generation: int, family: str) -> None:
    noise = random.Random(generation).randbytes
    store.write([(family, b"%d-%05d" % (generation, row), noise(100)) for row in range(ROWS)], sync=True)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a RocksDB store as a crash leaves them."""
    folder = tmp_path_factory.mktemp("damage")
    store = RocksDBStore(folder / "data")
    store.open()
    for generation in range(GENERATIONS):
        fill(store, generation, "queue")
        store._families["queue"].flush()
    fill(store, 0, "session")
    for index in range(BATCHES):
        batch = [("retained", b"%05d-%d" % (index, row), bytes(100)) for row in range(BATCH)]
        store.write(batch, sync=True)
    shutil.copytree(folder / "data", folder / "copy")
    store.close()
    return folder / "copy"


@pytest.fixture
def data(snapshot: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(snapshot, tmp_path / "data"))


def count(store: Store) -> tuple[int, int, int]:
    families = ("queue", "session", "retained")
    return tuple(sum(1 for _ in store.scan(family)) for family in families)  # type: ignore[return-value]


WHOLE = (ROWS * GENERATIONS, ROWS, BATCHES * BATCH)
LESS_A_TABLE = (ROWS * (GENERATIONS - 1), ROWS, BATCHES * BATCH)


def find(data: Path, pattern: str) -> Path:
    """The oldest table, the newest of anything else."""
    found = sorted((data / "rocksdb").glob(pattern))
    return found[0] if pattern == "*.sst" else found[-1]


def flip(path: Path, at: int) -> None:
    text = bytearray(path.read_bytes())
    text[at] ^= 0xFF
    path.write_bytes(text)


def flip_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip_footer(path: Path) -> None:
    flip(path, path.stat().st_size - 20)


DAMAGES: list[tuple[str, Callable[[Path], None], tuple[int, int, int]]] = [
    *(("*.sst", damage, LESS_A_TABLE) for damage in (zero, cut_half, empty, flip_footer, Path.unlink)),
    *(("CURRENT", damage, WHOLE) for damage in (zero, cut_half, empty, Path.unlink)),
    *(("MANIFEST-*", damage, WHOLE) for damage in (zero, empty, flip_middle, Path.unlink)),
]


@pytest.mark.parametrize(("pattern", "damage", "expected"), DAMAGES)
def test_a_damaged_file_costs_its_rows_at_most(
    data: Path, pattern: str, damage: Callable[..., Any], expected: tuple[int, ...]
) -> None:
    damage(find(data, pattern))
    store = RocksDBStore(data)
    lines = store.open()
    assert lines
    assert all("damaged" in line or "missing" in line or "set aside" in line for line in lines)
    assert count(store) == expected
    store.write([("retained", b"new", b"1")], sync=True)
    store.close()
    assert store.open() == []
    assert count(store) == (*expected[:2], expected[2] + 1)
    store.close()


@pytest.mark.parametrize(("pattern", "damage", "expected"), DAMAGES)
def test_a_strict_store_refuses_a_damaged_file_and_changes_nothing(
    data: Path, pattern: str, damage: Callable[..., Any], expected: tuple[int, ...]
) -> None:
    damage(find(data, pattern))
    for _ in range(2):
        with pytest.raises(StoreError):
            RocksDBStore(data, strict=True).open()
    assert not (data / "corrupt").exists()
    store = RocksDBStore(data)
    assert store.open()
    assert count(store) == expected
    store.close()


def test_what_is_set_aside_is_kept(data: Path) -> None:
    table = find(data, "*.sst")
    zero(table)
    text = table.read_bytes()
    store = RocksDBStore(data)
    (line,) = store.open()
    store.close()
    (kept,) = (data / "corrupt").iterdir()
    assert str(kept) in line
    assert "'queue'" in line
    assert kept.read_bytes() == text
    assert not table.exists()


def test_all_files_damaged_give_an_empty_store(data: Path) -> None:
    for path in (data / "rocksdb").iterdir():
        path.write_bytes(b"garbage")
    store = RocksDBStore(data)
    assert store.open()
    assert count(store) == (0, 0, 0)
    store.write([("queue", b"a", b"1")], sync=True)
    store.close()


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "*.log"])
@pytest.mark.parametrize("kind", [5, 8])
def test_a_record_that_rocksdb_would_read_without_end_is_only_damaged(
    data: Path, pattern: str, kind: int
) -> None:
    """The type of a recycled log's record, behind the first record, keeps RocksDB 9.8 busy for ever."""
    path = find(data, pattern)
    text = bytearray(path.read_bytes())
    second = 7 + int.from_bytes(text[4:6], "little")
    text[second + 6] = kind
    path.write_bytes(text)
    with pytest.raises(StoreError, match="is damaged"):
        RocksDBStore(data, strict=True).open()
    assert path.read_bytes() == text
    store = RocksDBStore(data)
    assert "is damaged" in store.open()[0]
    found = count(store)
    assert found == WHOLE if pattern == "MANIFEST-*" else WHOLE[0] <= sum(found) < sum(WHOLE)
    store.close()
    assert text in [path.read_bytes() for path in (data / "corrupt").iterdir()]


def test_a_rebuilding_that_a_crash_interrupted_is_finished(data: Path) -> None:
    files = data / "rocksdb"
    find(data, "MANIFEST-*").unlink()
    (files / "held").mkdir()
    for path in files.glob("*.log"):
        path.rename(files / "held" / path.name)
    store = RocksDBStore(data)
    assert store.open()
    assert count(store) == WHOLE
    store.close()


def test_without_manifest_and_families_the_log_is_set_aside(data: Path) -> None:
    log = find(data, "*.log").read_bytes()
    find(data, "MANIFEST-*").unlink()
    (data / "families").write_text("garbage")
    store = RocksDBStore(data)
    lines = store.open()
    assert any("cannot be read without the file `families`" in line for line in lines)
    assert count(store) == (ROWS * GENERATIONS, 0, 0)
    store.close()
    assert log in [path.read_bytes() for path in (data / "corrupt").iterdir()]


def test_a_manifest_is_made_anew_twice(data: Path) -> None:
    """The second time the families are not in the order in which they were made."""
    for index in range(3):
        find(data, "MANIFEST-*").unlink()
        store = RocksDBStore(data)
        assert store.open()
        assert count(store) == (*WHOLE[:2], WHOLE[2] + index)
        store.write([("retained", b"new%d" % index, b"1")], sync=True)
        store._database.cancel_all_background(True)  # type: ignore[union-attr]  # no file may go while it is copied
        shutil.copytree(data, copy := data.with_name(f"copy{index}"))
        store.close()
        data = copy


def damage_block(data: Path, *, strict: bool = False) -> RocksDBStore:
    """A store with a table whose middle cannot be read, which opening does not see."""
    flip_middle(find(data, "*.sst"))
    store = RocksDBStore(data, strict=strict)
    assert store.open() == []
    return store


KEYS = [b"0-%05d" % row for row in range(ROWS)]
READS: list[Callable[[Store], list[Any]]] = [
    lambda store: list(store.scan("queue", b"0")),
    lambda store: [value for value in store.get_many("queue", KEYS) if value],
    lambda store: [value for value in [store.get("queue", key) for key in KEYS] if value],
]


@pytest.mark.parametrize("read", READS)
def test_a_read_that_meets_a_damaged_block_sets_its_table_aside(
    data: Path, read: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    store = damage_block(data)
    assert len(read(store)) < ROWS
    assert "'queue' is damaged" in caplog.text
    assert count(store) == LESS_A_TABLE
    store.write([("retained", b"new", b"1")], sync=True)
    store.close()
    assert len(list((data / "corrupt").iterdir())) == 1
    assert store.open() == []
    store.close()


@pytest.mark.parametrize("read", READS)
def test_in_a_strict_store_such_a_read_fails_and_no_other(data: Path, read: Callable[..., Any]) -> None:
    store = damage_block(data, strict=True)
    with pytest.raises(StoreError, match=r"cannot be read: Corruption: .*\.sst") as held:
        read(store)
    with pytest.raises(StoreError, match=r"cannot be read: Corruption: .*\.sst"):
        read(store)
    assert store.get("queue", KEYS[0]) is not None
    assert len(list(store.scan("queue", b"1"))) == ROWS
    store.write([("retained", b"new", b"1")], sync=True)
    assert not (data / "corrupt").exists()
    store.close()
    assert store.open() == []  # though what an error's traceback holds is still there
    assert held.tb
    store.close()


def test_a_compaction_that_meets_damage_is_mended_by_the_next_write(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = damage_block(data)

    def write_until_compacted() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            fill(store, 0, "queue")
            with suppress(Exception):  # the error may come here first
                store._families["queue"].flush()

    with pytest.raises(StoreError, match=r"cannot be written: Corruption: .*\.sst"):
        write_until_compacted()
    store.write([("retained", b"new", b"1")], sync=True)
    assert "'queue' is damaged" in caplog.text
    assert count(store) == (*WHOLE[:2], WHOLE[2] + 1)
    store.close()


def test_edits_of_a_manifest_that_span_blocks_are_read_back(tmp_path: Path, snapshot: Path) -> None:
    path = tmp_path / "MANIFEST"
    original = parse_manifest(find(snapshot, "MANIFEST-*").read_bytes())
    assert len(original.tables) == GENERATIONS
    assert sorted(original.families) == sorted(["default", *FAMILIES])
    assert sorted(original.families.values()) == list(range(len(FAMILIES) + 1))
    edits = [encode_dropped_table(300, 6, 1_000_000 + index) for index in range(8000)]
    for kept in range(20):  # each a place further, so that headers and parts meet the block's end everywhere
        number = next(iter(original.tables))
        family, level = original.tables[number]
        rewrite_manifest(path, original, [*edits[: 8000 - kept], encode_dropped_table(family, level, number)])
        text = path.read_bytes()
        found = parse_manifest(text + b"torn")
        assert found.text == text
        assert found.tables.keys() == original.tables.keys() - {number}


def fill_sqlite(path: Path) -> SQLiteStore:
    store = SQLiteStore(path)
    store.open()
    for family in ("queue", "session"):
        fill(store, 0, family)
    store.close()
    return store


@pytest.fixture
def sqlite_data(tmp_path: Path) -> Path:
    fill_sqlite(tmp_path / "data")
    return tmp_path / "data"


def test_a_damaged_page_of_sqlite_costs_that_page(
    sqlite_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = sqlite_data / "sqlite/tidemq.db"
    text = bytearray(path.read_bytes())
    middle = text.index(b"0-%05d" % (ROWS // 2)) // 4096 * 4096
    text[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(text)
    strict = SQLiteStore(sqlite_data, strict=True)
    strict.open()
    with pytest.raises(StoreError, match="cannot be read: database disk image is malformed"):
        [list(strict.scan(family)) for family in ("queue", "session")]
    strict.close()
    store = SQLiteStore(sqlite_data)
    assert store.open() == []
    rows = [len(list(store.scan(family))) for family in ("queue", "session")]
    assert max(rows) == ROWS
    assert ROWS - 60 < min(rows) < ROWS
    assert f"was damaged: {sum(rows) + 1} rows of it" in caplog.text
    store.close()
    assert store.open() == []
    store.close()


def test_a_sqlite_file_that_is_none_is_set_aside_unless_strict(sqlite_data: Path) -> None:
    path = sqlite_data / "sqlite/tidemq.db"
    path.write_bytes(b"x" * 8192)
    with pytest.raises(StoreError, match="not a database"):
        SQLiteStore(sqlite_data, strict=True).open()
    store = SQLiteStore(sqlite_data)
    lines = store.open()
    assert "0 rows" in lines[0]
    assert "set aside" in lines[1]
    store.write([("queue", b"a", b"1")], sync=True)
    store.close()
    (kept,) = (sqlite_data / "corrupt").iterdir()
    assert kept.read_bytes() == b"x" * 8192


@pytest.mark.parametrize("moved", [False, True])
def test_a_sqlite_file_whose_replacement_a_crash_interrupted_is_replaced(
    sqlite_data: Path, moved: bool
) -> None:
    files = sqlite_data / "sqlite"
    shutil.copy(files / "tidemq.db", files / "mended.db")
    (files / "tidemq.db").write_bytes(b"x" * 8192)
    if moved:
        (files / "tidemq.db").unlink()
    (files / "unfinished").write_bytes(b"y")
    store = SQLiteStore(sqlite_data)
    assert len(store.open()) == (not moved)
    assert [len(list(store.scan(family))) for family in ("queue", "session")] == [ROWS, ROWS]
    store.close()
