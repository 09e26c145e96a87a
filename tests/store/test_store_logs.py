"""A write-ahead log that has lost what was acknowledged is said at the start, counted, and refused by a
strict store; one that a crash has cut off in a write that nobody was told of is not.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemq.broker import Broker
from tidemq.config import Config
from tidemq.errors import StoreError
from tidemq.store import Store
from tidemq.store.checksums import crc32c
from tidemq.store.manifest import Part, read_parts
from tidemq.store.rocksdb import RocksDBStore
from tidemq.store.sqlite import SQLiteStore
from tidemq.store.sync_note import Synced, SyncNote

BATCHES = 150
BATCH = 10
TAIL = 3  # batches that were written and not synced
STORES: dict[str, type[RocksDBStore] | type[SQLiteStore]] = {"rocksdb": RocksDBStore, "sqlite": SQLiteStore}


def put(store: Store, index: int, *, sync: bool) -> None:
    noise = random.Random(index).randbytes
    rows = [("retained", b"%05d-%d" % (index, row), noise(200)) for row in range(BATCH)]
    store.write(rows, sync=sync)


def crash(store: Store, data: Path, copy: Path) -> Path:
    """The files as a crash of the process leaves them."""
    shutil.copytree(data, copy)
    store.close()
    return copy


@pytest.fixture(scope="module", params=STORES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def snapshot(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with all rows synced."""
    folder = tmp_path_factory.mktemp("log")
    store = STORES[engine](folder / "data")
    store.open()
    if isinstance(store, SQLiteStore):
        store._database.execute("PRAGMA wal_autocheckpoint=0")  # type: ignore[union-attr]
    for index in range(BATCHES):
        put(store, index, sync=True)
    return crash(store, folder / "data", folder / "copy")


@pytest.fixture
def data(snapshot: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(snapshot, tmp_path / "data"))


def log_of(data: Path) -> Path:
    found = sorted([*data.glob("rocksdb/*.log"), *data.glob("sqlite/*-wal")])
    return found[-1]


def change(path: Path, act: Callable[[bytearray], None]) -> None:
    text = bytearray(path.read_bytes())
    act(text)
    path.write_bytes(text)


def flip_a_bit(text: bytearray) -> None:
    text[len(text) // 2] ^= 4


def flip_near_the_end(text: bytearray) -> None:
    text[-40] ^= 4


def zero_the_end(text: bytearray) -> None:
    text[len(text) // 2 :] = bytes(len(text) - len(text) // 2)


def zero_the_middle(text: bytearray) -> None:
    middle = len(text) // 3
    text[middle : middle + 70_000] = bytes(70_000)


def zero_all(text: bytearray) -> None:
    text[:] = bytes(len(text))


def cut(text: bytearray) -> None:
    del text[len(text) * 7 // 10 :]


def cut_a_little(text: bytearray) -> None:
    del text[-5:]


def empty(text: bytearray) -> None:
    text.clear()


DAMAGES = [flip_a_bit, flip_near_the_end, zero_the_end, zero_the_middle, zero_all, cut, cut_a_little, empty]


@pytest.mark.parametrize("damage", DAMAGES)
def test_rows_that_a_log_has_lost_are_said_counted_and_refused_by_a_strict_store(
    data: Path, engine: str, damage: Callable[..., Any]
) -> None:
    change(log_of(data), damage)
    text = log_of(data).read_bytes()
    for _ in range(2):  # it changes nothing
        with pytest.raises(StoreError, match=r"write-ahead log .* is damaged: .* are lost"):
            STORES[engine](data, strict=True).open()
    assert not (data / "corrupt").exists()
    store = STORES[engine](data)
    lines = store.open()
    left = len(list(store.scan("retained")))
    store.write([("retained", b"new", b"1")], sync=True)
    assert "write-ahead log" in lines[0]
    lost = int(re.findall(r"at least (\d+) (?:rows|pages) are lost", " ".join(lines))[0])
    assert lost > 0
    assert store.counts["store_log_lost"] == lost
    assert store.counts["store_damaged"] == len(lines)
    if engine == "rocksdb":
        assert left + lost in (BATCHES * BATCH, BATCHES * BATCH + 1)  # the row of the format is one more
    assert left < BATCHES * BATCH
    store.close()
    copies = [path.read_bytes() for path in (data / "corrupt").iterdir()]
    assert any(text[:1000] == each[:1000] for each in copies)
    strict = STORES[engine](data, strict=True)
    assert strict.open() == []  # it is said once
    assert len(list(strict.scan("retained"))) == left + 1
    strict.close()


async def test_a_broker_says_so_counts_it_and_serves_or_strictly_does_not_start(
    data: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    change(log_of(data), cut)
    config = Config(host="127.0.0.1", port=0, sys_interval_s=0, reactors=1, store=engine, data=data)
    with pytest.raises(StoreError, match="are lost"):
        await Broker(config.model_copy(update={"store_strict": True})).start()
    async with Broker(config) as broker:
        assert broker.counters()["store_log_lost"] > 0
        assert broker.counters()["store_damaged"] > 0
    assert any("write-ahead log" in line and "is damaged" in line for line in caplog.messages)


def test_a_log_that_is_missing_is_noticed(data: Path, engine: str) -> None:
    log_of(data).unlink()
    with pytest.raises(StoreError, match="log"):
        STORES[engine](data, strict=True).open()
    store = STORES[engine](data)
    assert "log" in store.open()[0]
    assert store.counts["store_log_lost"] >= BATCHES
    store.close()
    assert store.open() == []
    store.close()


@pytest.fixture(scope="module")
def unsynced(engine: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A log with a part that nobody was told of, and where that begins."""
    folder = tmp_path_factory.mktemp("tail")
    store = STORES[engine](folder / "data")
    store.open()
    for index in range(BATCHES // 5):
        put(store, index, sync=True)
    size = log_of(folder / "data").stat().st_size
    for index in range(TAIL):
        put(store, 1000 + index, sync=False)
    return crash(store, folder / "data", folder / "copy"), size


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kept", [0, 0.1, 0.5, 0.99])
def test_what_was_written_and_not_synced_may_be_cut_off_anywhere(
    unsynced: tuple[Path, int], tmp_path: Path, engine: str, kept: float, strict: bool
) -> None:
    source, synced = unsynced
    data = Path(shutil.copytree(source, tmp_path / "data"))
    log = log_of(data)
    os.truncate(log, synced + int((log.stat().st_size - synced) * kept))
    store = STORES[engine](data, strict=strict)
    assert store.open() == []
    assert BATCHES // 5 * BATCH <= len(list(store.scan("retained"))) < (BATCHES // 5 + TAIL) * BATCH
    assert not any(store.counts.values())
    store.close()


@pytest.mark.parametrize("strict", [False, True])
def test_a_last_write_that_is_unreadable_is_cut_there(
    unsynced: tuple[Path, int], tmp_path: Path, engine: str, strict: bool
) -> None:
    source, _ = unsynced
    data = Path(shutil.copytree(source, tmp_path / "data"))
    change(log_of(data), flip_near_the_end)
    store = STORES[engine](data, strict=strict)
    lines = store.open()
    assert [("ends in the middle of a write" in line) for line in lines] == [True] * (engine == "rocksdb")
    assert len(list(store.scan("retained"))) == (BATCHES // 5 + TAIL - 1) * BATCH
    assert not any(store.counts.values())
    store.close()


def test_whole_writes_behind_a_break_are_said_though_they_may_never_have_been_acknowledged(
    unsynced: tuple[Path, int], tmp_path: Path, engine: str
) -> None:
    source, synced = unsynced
    data = Path(shutil.copytree(source, tmp_path / "data"))
    change(log_of(data), lambda text: text.__setitem__(synced + 100, text[synced + 100] ^ 4))
    store = STORES[engine](data)
    text = " ".join(store.open())
    if store.counts["store_log_lost"]:
        assert "whether what is lost was ever acknowledged is not known" in text
    else:  # nothing is behind: all of it is in the block of which RocksDB reads no more
        assert engine == "rocksdb"
        assert "ends in the middle of a write" in text
    store.close()


def test_without_a_note_what_is_behind_a_break_is_still_noticed(data: Path, engine: str) -> None:
    (data / engine / "synced").unlink()
    change(log_of(data), flip_a_bit)
    with pytest.raises(StoreError, match="acknowledged is not known"):
        STORES[engine](data, strict=True).open()


def test_a_note_that_cannot_be_read_is_said(data: Path, engine: str) -> None:
    (data / engine / "synced").write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreError, match="it is not known how far the log was on the disk"):
        STORES[engine](data, strict=True).open()
    store = STORES[engine](data)
    assert len(store.open()) == 1
    assert len(list(store.scan("retained"))) == BATCHES * BATCH
    store.close()
    assert STORES[engine](data, strict=True).open() == []


def test_a_store_that_crashes_again_and_again_says_nothing(tmp_path: Path, engine: str) -> None:
    """Logs come and go: with flushes and checkpoints between, and with starts that write nothing."""
    data = tmp_path / "data"
    chance = random.Random(1)
    kept = 0
    for life in range(12):
        store = STORES[engine](data, strict=True)
        assert store.open() == []
        for index in range(chance.choice([0, 1, 40])):
            put(store, 1000 * life + index, sync=True)
            kept += BATCH
            if chance.random() < 0.1 and isinstance(store, RocksDBStore):
                store._families["retained"].flush()
            elif chance.random() < 0.1 and isinstance(store, SQLiteStore):
                store._database.execute("PRAGMA wal_checkpoint(PASSIVE)")  # type: ignore[union-attr]
        if isinstance(store, RocksDBStore):
            store._database.cancel_all_background(True)  # type: ignore[union-attr]  # no file may go while it is copied
        data = crash(store, data, tmp_path / f"life{life}")
    store = STORES[engine](data, strict=True)
    assert store.open() == []
    assert len(list(store.scan("retained"))) == kept
    store.close()


def write_two_logs(data: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Files of a RocksDB that synced nothing, as a crash leaves them; how many rows of "session" are in the
    older log, which they need: those of the other family are in a table.
    """
    monkeypatch.setattr("tidemq.store.rocksdb.MEMTABLE_BYTES", 256 << 10)
    store = RocksDBStore(data)
    store.open()
    rows = 0
    while len(list(data.glob("rocksdb/*.log"))) < 2:
        batch = [("session", b"%05d" % rows, b"1"), ("payload", b"%05d" % rows, os.urandom(5000))]
        store.write(batch, sync=False)
        rows += 1
    store._families["payload"].flush()
    store.write([("session", b"behind", b"1")], sync=False)
    store._database.cancel_all_background(True)  # type: ignore[union-attr]
    crash(store, data, copy)
    return rows


def zero_the_last_tenth(text: bytearray) -> None:
    text[len(text) * 9 // 10 :] = bytes(len(text) - len(text) * 9 // 10)


def cut_behind_a_batch(text: bytearray) -> None:
    """Leaves nothing that could not be read."""
    ends = [end for part, _, end in read_parts(bytes(text)) if part in (Part.WHOLE, Part.LAST)]
    del text[ends[len(ends) // 2] :]


OLDER_DAMAGES = [
    (cut, r"its last \d+ rows are missing"),
    (cut_behind_a_batch, r"its last \d+ rows are missing"),
    (zero_the_last_tenth, r"its last \d+ rows are missing"),
    (zero_all, "nothing of it can be read"),
    (empty, "nothing of it can be read"),
]


@pytest.mark.parametrize(("damage", "said"), OLDER_DAMAGES)
def test_an_older_log_whose_end_is_missing_is_said_though_nothing_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[..., Any], said: str
) -> None:
    data = tmp_path / "copy"
    rows = write_two_logs(tmp_path / "data", data, monkeypatch)
    (data / "rocksdb/synced").unlink()  # the row of the format was synced
    older, *_ = sorted(data.glob("rocksdb/*.log"))
    whole = Path(shutil.copytree(data, tmp_path / "whole"))
    change(older, damage)
    with pytest.raises(StoreError, match=f"{older.name} is damaged: {said}, and the next log goes on"):
        RocksDBStore(data, strict=True).open()
    store = RocksDBStore(data)
    assert "acknowledged is not known" in store.open()[0]
    left = sum(1 for _ in store.scan("session"))
    assert 0 < left < rows + 1
    if said.startswith("its"):
        assert store.counts["store_log_lost"] >= rows + 1 - left
    assert store.get("session", b"behind") == b"1"
    store.close()
    for path in (data, whole):
        strict = RocksDBStore(path, strict=True)
        assert strict.open() == []
        strict.close()


def test_sqlite_puts_no_old_pages_in_the_place_of_newer_ones(tmp_path: Path) -> None:
    """All of the log is in the file; a bit in it would have an older part of it read again."""
    store = SQLiteStore(tmp_path / "data")
    store.open()
    for index in range(30):
        put(store, index, sync=True)
    store._database.execute("PRAGMA wal_checkpoint(PASSIVE)")  # type: ignore[union-attr]
    store._note_written(synced=False)
    data = crash(store, tmp_path / "data", tmp_path / "copy")
    change(log_of(data), flip_a_bit)
    with pytest.raises(StoreError, match="is in the file already"):
        SQLiteStore(data, strict=True).open()
    store = SQLiteStore(data)
    (line,) = store.open()
    assert "moved to" in line
    assert len(list(store.scan("retained"))) == 30 * BATCH
    assert store.counts["store_log_lost"] == 0
    store.close()


@pytest.mark.parametrize("in_file", [False, True])
def test_a_log_of_sqlite_that_was_being_begun_anew_has_lost_nothing(tmp_path: Path, in_file: bool) -> None:
    """Its new header is torn, and the note is from before its pages went to the file."""
    store = SQLiteStore(tmp_path / "data")
    store.open()
    store._database.execute("PRAGMA wal_autocheckpoint=0")  # type: ignore[union-attr]
    for index in range(30):
        put(store, index, sync=True)
    note = store._note._path.read_bytes()
    if in_file:
        store._database.execute("PRAGMA wal_checkpoint(PASSIVE)")  # type: ignore[union-attr]
    data = crash(store, tmp_path / "data", tmp_path / "copy")
    (data / "sqlite" / store._note._path.name).write_bytes(note)
    change(log_of(data), lambda text: text.__setitem__(slice(19, 24), bytes([text[19] + 1 & 0xFF]) + b"torn"))
    store = SQLiteStore(data)
    lines = store.open()
    assert (lines == []) is in_file
    assert (store.counts["store_log_lost"] == 0) is in_file
    assert (len(list(store.scan("retained"))) == 30 * BATCH) is in_file
    store.close()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Of a log that was never synced as a whole, all is in the file; and then it was killed."""
    store = SQLiteStore(tmp_path / "data")
    store.open()
    for index in range(30):
        put(store, index, sync=False)
    store._database.execute("PRAGMA wal_checkpoint(PASSIVE)")  # type: ignore[union-attr]
    store._note_written(synced=False)
    return crash(store, tmp_path / "data", tmp_path / "copy")


@pytest.mark.parametrize("starts", [0, 2])
@pytest.mark.parametrize("damage", [flip_a_bit, zero_the_end, cut])
def test_a_damaged_log_of_sqlite_that_is_in_the_file_is_dropped_though_it_was_not_synced(
    copied: Path, tmp_path: Path, damage: Callable[..., Any], starts: int
) -> None:
    """Also when SQLite has forgotten that it is in the file, as it does at a start after a crash."""
    for index in range(starts):
        store = SQLiteStore(copied, strict=True)
        store.open()
        copied = crash(store, copied, tmp_path / f"start{index}")
    change(log_of(copied), damage)
    with pytest.raises(StoreError, match="is in the file already"):
        SQLiteStore(copied, strict=True).open()
    store = SQLiteStore(copied)
    (line,) = store.open()
    assert "moved to" in line
    assert len(list(store.scan("retained"))) == 30 * BATCH
    assert store.counts["store_log_lost"] == 0
    store.close()


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_of_a_log_of_sqlite_of_which_a_part_is_in_the_file_no_old_page_is_read(
    copied: Path, tmp_path: Path, early: bool, synced: bool
) -> None:
    """Damage before the end of that part costs what is behind it; behind it, what is behind the damage."""
    store = SQLiteStore(copied)
    store.open()
    size = log_of(copied).stat().st_size
    for index in range(30, 60):
        put(store, index, sync=synced)
    data = crash(store, copied, tmp_path / "longer")
    size = size if early else log_of(data).stat().st_size
    change(log_of(data), lambda text: text.__setitem__(size * 3 // 4, text[size * 3 // 4] ^ 4))
    store = SQLiteStore(data)
    (line,) = store.open()
    assert ("moved to" if early else "copied to") in line
    left = [key for key, _ in store.scan("retained")]
    assert left == [b"%05d-%d" % (index // BATCH, index % BATCH) for index in range(len(left))]
    assert len(left) == 30 * BATCH if early else 30 * BATCH < len(left) < 60 * BATCH
    assert store.counts["store_log_lost"] > 0
    assert ("acknowledged is not known" in line) is not synced
    assert store._database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]  # type: ignore[union-attr]
    store.close()


def test_a_note_is_read_back_though_its_last_writing_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "synced"
    note = SyncNote(path)
    assert note.read() == Synced()
    note.open()
    for length in range(3):
        note.write(length, {7: length, 9: 5})
    assert note.read() == Synced(2, {7: 2, 9: 5})
    newest = 4 % 2 * 4096
    change(path, lambda text: text.__setitem__(newest + 20, text[newest + 20] ^ 1))
    assert note.read() == Synced(1, {7: 1, 9: 5})
    many = dict.fromkeys(range(1000), 1)
    note.write(0, many)
    assert set(note.read().lengths) < set(many)
    assert 999 in note.read().lengths
    note.close()


def test_crc32c_is_the_one_of_rfc_3720() -> None:
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"56789", crc32c(b"1234")) == crc32c(b"123456789") == 0xE3069283


def test_parts_of_a_log_are_found_behind_what_cannot_be_read(snapshot: Path, engine: str) -> None:
    if engine != "rocksdb":
        return
    text = bytearray(log_of(snapshot).read_bytes())
    whole = [part for part, _, _ in read_parts(bytes(text))]
    assert set(whole) <= {Part.WHOLE, Part.FIRST, Part.MIDDLE, Part.LAST}
    text[10] ^= 1
    found = [part for part, _, _ in read_parts(bytes(text))]
    assert found[0] is Part.DAMAGED
    assert found[-1] is whole[-1]
