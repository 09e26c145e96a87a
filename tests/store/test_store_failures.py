"""A store that cannot be written says why, is still read, and takes writes again when the cause has gone."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from small_disk import small_disk

from tidemq.config import Config
from tidemq.errors import StoreError, StoreFullError
from tidemq.store import Store
from tidemq.store.rocksdb import RocksDBStore, make_rocksdb_store
from tidemq.store.sqlite import make_sqlite_store

SMALL_MIB, LARGE_MIB = 24, 100


@pytest.fixture(params=["rocksdb", "sqlite"])
def make(request: pytest.FixtureRequest) -> Callable[..., Store]:
    makers: dict[str, Callable[..., Store]] = {"rocksdb": make_rocksdb_store, "sqlite": make_sqlite_store}
    return makers[request.param]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with little room."""
    with small_disk(tmp_path / "disk", SMALL_MIB) as path:
        yield path


BATCH = 100


def write_batch(store: Store, number: int) -> None:
    keys = range(number * BATCH, (number + 1) * BATCH)
    store.write([("queue", b"%08d" % key, os.urandom(200)) for key in keys], sync=True)


def fill(store: Store) -> int:
    """Writes batches until the store is full; how many were written."""
    for number in range(SMALL_MIB << 10):
        try:
            write_batch(store, number)
        except StoreFullError:
            return number
    raise AssertionError("the store took more than its disk")


def test_a_full_disk_is_said_read_and_overcome(make: Callable[..., Store], disk: Path) -> None:
    store = make(Config(data=disk / "data"), {})
    store.open()
    number = fill(store)
    assert number > 100
    for _ in range(3):
        with pytest.raises(StoreFullError, match=r"No space left|disk is full"):
            write_batch(store, number)
        assert len(list(store.scan("queue"))) == number * BATCH
    subprocess.run(["mount", "-o", f"remount,size={LARGE_MIB}m", str(disk)], check=True)
    write_batch(store, number)
    for _ in range(2):
        assert len(list(store.scan("queue"))) == (number + 1) * BATCH
        store.close()
        assert store.open() == []
    store.close()


def test_a_disk_that_is_full_at_the_start_is_said(make: Callable[..., Store], disk: Path) -> None:
    (disk / "ballast").write_bytes(bytes((SMALL_MIB << 20) - 4096))
    with pytest.raises(StoreFullError):
        make(Config(data=disk / "data"), {}).open()
    (disk / "ballast").unlink()
    store = make(Config(data=disk / "data"), {})
    assert store.open() == []
    store.close()


def test_a_disk_that_cannot_be_forced_is_said_and_overcome(
    make: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fdatasync fails once: RocksDB is not told, so the store must not take what it wrote for durable."""

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = make(Config(data=tmp_path / "data"), {})
    store.open()
    store.write([("queue", b"a", b"1")], sync=False)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreError, match=r"cannot be written: .*Input/output error"):
            store.sync()
        assert store.get("queue", b"a") == b"1"
    store.sync()
    store.write([("queue", b"b", b"2")], sync=True)
    assert [key for key, _ in store.scan("queue")] == [b"a", b"b"]
    store.close()


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """As on a disk with too little room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_for_a_copy_of_it_a_damaged_file_is_still_read(tmp_path: Path) -> None:
    store = make_sqlite_store(Config(data=tmp_path), {})
    store.open()
    for number in range(40):
        write_batch(store, number)
    store.write([("session", b"%04d" % row, bytes(50)) for row in range(2000)], sync=True)
    store.close()
    file = tmp_path / "sqlite/tidemq.db"
    text = bytearray(file.read_bytes())
    at = text.index(b"%08d" % 2000) // 4096 * 4096
    text[at : at + 4096] = b"\xff" * 4096
    file.write_bytes(text)
    assert store.open() == []
    with files_no_larger_than(len(text) // 2):
        for _ in range(3):
            with pytest.raises(StoreError):
                list(store.scan("queue"))
            with pytest.raises(StoreError):
                store.write([("session", b"new", b"1")], sync=True)
            assert len(list(store.scan("session"))) == 2000
            assert store.get("queue", b"%08d" % 1) is not None
            assert not (file.with_name("unfinished")).exists()
    store.write([("session", b"new", b"1")], sync=True)
    assert 40 * BATCH - 40 < len(list(store.scan("queue"))) < 40 * BATCH
    assert len(list(store.scan("session"))) == 2001
    store.close()
    assert store.open() == []
    store.close()


def test_a_stalled_rocksdb_is_waited_for_without_the_gil(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB refuses writes while flushing is behind; the batch goes in when it takes them again."""
    monkeypatch.setattr("tidemq.store.rocksdb.MEMTABLE_BYTES", 64 << 10)  # each write fills one
    waited: list[float] = []
    sleep = time.sleep
    monkeypatch.setattr("tidemq.store.rocksdb.time.sleep", lambda s: (waited.append(s), sleep(s)))  # type: ignore[func-returns-value]
    store = RocksDBStore(tmp_path / "data")
    store.open()
    value = os.urandom(1 << 20)
    written = 0
    while not waited and written < 1000:
        store.write([("payload", b"%06d" % written, value)], sync=False)
        written += 1
    assert waited
    assert [key for key, _ in store.scan("payload")] == [b"%06d" % index for index in range(written)]
    store.close()


def test_after_a_synced_write_every_log_is_on_the_disk_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are no longer written, when RocksDB has begun another since the last synced write."""
    forced: dict[int, int] = {}  # inode -> bytes
    names: set[str] = set()
    files = tmp_path / "data/rocksdb"
    fdatasync, fsync = os.fdatasync, os.fsync

    def force_data(descriptor: int) -> None:
        fdatasync(descriptor)
        forced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    def force(descriptor: int) -> None:
        fsync(descriptor)
        if files.exists() and os.path.samestat(os.fstat(descriptor), os.stat(files)):
            names.update(os.listdir(files))

    monkeypatch.setattr(os, "fdatasync", force_data)
    monkeypatch.setattr(os, "fsync", force)
    store = RocksDBStore(tmp_path / "data")
    store.open()
    seen: set[str] = set()
    for index in range(200):
        family = ("payload", "queue", "retained")[index % 3]
        batch = [(family, b"%06d-%d" % (index, row), bytes(60_000)) for row in range(15)]
        store.write(batch, sync=index % 7 == 0)
        if index % 7:
            continue
        for path in files.glob("*.log"):
            with suppress(FileNotFoundError):  # RocksDB has just deleted it
                found = path.stat()
                assert forced.get(found.st_ino) == found.st_size
                assert path.name in names
                seen.add(path.name)
    assert len(seen) > 3
    store.close()
