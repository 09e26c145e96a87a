"""A store as Parquet tables: all of it comes back; what is missing or damaged is found."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from unit.test_store_inspection import make_id, make_store, message, queue_key, queue_value

from tidemq.errors import StoreError
from tidemq.store import MemoryStore
from tidemq.store.inspection import check_store
from tidemq.store.portable import fill_store, read_store
from tidemq.store.tables import read_tables, table_path, write_tables

META = [("meta", b"incarnation", bytes(7) + b"\7"), ("meta", b"clock", struct.pack(">Q", 77))]
IDS = struct.pack(">3I", 1, 2, 0xFFFFFFF)
WILL = struct.pack(">QIqqIqI", 8, 60, 1, 2, 3, -1, len(message())) + message()


def restored(folder: Path) -> MemoryStore:
    store = MemoryStore()
    store.open()
    fill_store(store, read_tables(folder))
    return store


@pytest.mark.parametrize("buckets", [1, 7])
def test_all_rows_come_back(tmp_path: Path, buckets: int) -> None:
    more = [
        ("session", b"other", WILL),
        ("queue", queue_key(8, 2, 3), queue_value(flags=4) + IDS),
        ("reference", make_id(3), b"\0\0\0\3"),
        ("stream", b"s\0", b"{}"),
    ]
    store = make_store(*META, *more)
    counts = write_tables(store, tmp_path / "dump", buckets)
    assert (counts["owners"], counts["entries"], counts["seen"], counts["leftovers"]) == (3, 4, 3, 0)
    new = restored(tmp_path / "dump")
    assert not check_store(new).leftovers
    assert check_store(new).corrupt_rows == 0

    def rows(each: MemoryStore) -> list[tuple[str, bytes, bytes]]:
        """Under the owner's name instead of its queue's number."""
        names = {value[:8]: key for key, value in each.scan("session")}
        names |= dict(each.scan("shared"))
        found = []
        for family, key, value in read_store(each):
            if family in ("queue", "received"):
                key = names[key[:8]] + key[8:]
            elif family == "expiry":
                key = key[:8] + names[key[8:16]] + key[16:]
            elif family == "session":
                value = value[8:]
            elif family == "shared":
                key = b""
            found.append((family, key, value))
        return sorted(found)

    assert rows(new) == rows(store)


def test_a_shared_subscription_of_several_queues_gets_one(tmp_path: Path) -> None:
    shards = [("shared", struct.pack(">Q", 12), b"$share/g/a"), ("queue", queue_key(12, 1, 2), queue_value())]
    write_tables(make_store(*shards), tmp_path / "dump")
    new = restored(tmp_path / "dump")
    assert len(list(new.scan("shared"))) == 1
    queues = {key[:8] for key, _ in new.scan("queue")}
    assert len(queues) == 2  # that, and the client's


def test_what_nobody_has_is_left_out_and_counted(tmp_path: Path) -> None:
    lost = [
        ("queue", queue_key(99, 1, 3), queue_value()),
        ("received", struct.pack(">QH", 99, 1), b""),
        ("subscription", b"\0\1xa", bytes(5)),
    ]
    assert write_tables(make_store(*lost), tmp_path / "dump")["leftovers"] == 3
    assert len(list(restored(tmp_path / "dump").scan("queue"))) == 3


def test_a_corrupt_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="corrupt: shared 78: its key has 1 bytes, not 8"):
        write_tables(make_store(("shared", b"x", b"")), tmp_path / "dump")
    with pytest.raises(StoreError, match=r"not complete: manifest\.json is missing"):
        list(read_tables(tmp_path / "dump"))


def test_missing_rows_and_damaged_files_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    write_tables(make_store(*META), folder, 1)
    path = table_path(folder, "entries", 0)
    whole = path.read_bytes()
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 2), path)
    with pytest.raises(StoreError, match="'entries': 3"):
        list(read_tables(folder))
    damaged = bytearray(whole)
    damaged[60] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"entries/bucket=0000\.parquet cannot be read"):
        list(read_tables(folder))
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        list(read_tables(folder))


def test_another_version_is_refused(tmp_path: Path) -> None:
    write_tables(make_store(), tmp_path / "dump", 1)
    manifest = tmp_path / "dump/manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(StoreError, match="has version 9"):
        list(read_tables(tmp_path / "dump"))
