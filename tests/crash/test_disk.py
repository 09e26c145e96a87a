"""The disk that fails on demand acts on its directory only, and knows what power loss leaves."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.disk import Disk, compile_layer
from waiting import WAIT_S


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("the disk layer needs gcc")
    return compile_layer(tmp_path_factory.mktemp("layer"))


@pytest.fixture
def disk(library: Path, tmp_path: Path) -> Iterator[Disk]:
    (tmp_path / "data").mkdir()
    with_power = Disk(library, tmp_path / "data", tmp_path / "disk", power=True)
    yield with_power
    with_power.close()


def run(disk: Disk, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program on the disk, in its directory's parent; it may end itself by SIGKILL."""
    return subprocess.run(
        [sys.executable, "-c", "import errno, os, signal, sys, time\n" + program],
        cwd=disk.data.parent,
        env=os.environ | disk.environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def lost_power(disk: Disk, *, kept: bool = False, seed: int = 1) -> dict[str, bytes]:
    """What the directory holds after power loss."""
    disk.lose_power(random.Random(seed), kept=kept)
    return {
        str(path.relative_to(disk.data)): path.read_bytes() for path in disk.data.rglob("*") if path.is_file()
    }


KILL = "\nos.kill(os.getpid(), signal.SIGKILL)"
WRITER = """
def create(path, data, sync=True, directory=True):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, data)
    if sync: os.fsync(fd)
    if directory: sync_directory()
    return fd
def sync_directory(path="data"):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
"""


def test_only_what_was_synced_survives(disk: Disk) -> None:
    done = run(
        disk,
        WRITER
        + """
create("data/all", b"synced")
create("data/bytes_missing", b"not synced", sync=False)
fd = create("data/part", b"first ")
os.write(fd, b"second")
create("data/name_missing", b"synced", directory=False)
"""
        + KILL,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (disk.data / "part").read_bytes() == b"first second"  # kill -9 alone loses nothing
    left = lost_power(disk)
    assert left == {"all": b"synced", "bytes_missing": b"", "part": b"first "}


def test_a_renamed_file_has_its_old_name_until_the_directory_is_synced(disk: Disk) -> None:
    run(disk, WRITER + 'create("data/old", b"1"); os.rename("data/old", "data/new")' + KILL)
    assert lost_power(disk) == {"old": b"1"}
    run(disk, WRITER + 'os.rename("data/old", "data/new"); sync_directory()' + KILL)
    assert lost_power(disk) == {"new": b"1"}


def test_a_removed_file_comes_back_until_the_directory_is_synced(disk: Disk) -> None:
    run(disk, WRITER + 'create("data/a", b"1"); os.unlink("data/a")' + KILL)
    assert lost_power(disk) == {"a": b"1"}
    run(disk, WRITER + 'os.unlink("data/a"); sync_directory()' + KILL)
    assert lost_power(disk) == {}


def test_bytes_whose_sync_failed_stay_lost(disk: Disk) -> None:
    disk.tell(fsync_failures=1)
    done = run(
        disk,
        WRITER
        + """
fd = create("data/a", b"one ", sync=False, directory=False)
try: os.fsync(fd)
except OSError as error: assert error.errno == errno.EIO
else: sys.exit("no error")
os.write(fd, b"two")
os.fsync(fd)
sync_directory()
"""
        + KILL,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert lost_power(disk) == {"a": b"\0\0\0\0two"}


def test_unsynced_bytes_are_remembered_over_a_restart(disk: Disk) -> None:
    run(disk, WRITER + 'fd = create("data/a", b"one "); os.write(fd, b"two ")' + KILL)
    run(
        disk, 'fd = os.open("data/a", os.O_WRONLY | os.O_APPEND); os.write(fd, b"three"); os.fsync(fd)' + KILL
    )
    assert lost_power(disk) == {"a": b"one two three"}


def test_a_part_of_what_was_not_synced_may_survive(disk: Disk) -> None:
    sizes = set()
    for seed in range(12):
        shutil.rmtree(disk.data)
        disk.data.mkdir()
        disk._start_anew()
        run(
            disk,
            WRITER
            + 'fd = create("data/a", b"sure"); os.write(fd, b"x" * 1000); create("data/b", b"")'
            + KILL,
        )
        left = lost_power(disk, kept=True, seed=seed)
        assert left["a"].startswith(b"sure")
        assert left["a"].strip(b"x") == b"sure"
        sizes.add(len(left["a"]))
    assert len(sizes) > 3


def test_truncation_and_rewriting_are_kept_apart_from_their_sync(disk: Disk) -> None:
    run(disk, WRITER + 'fd = create("data/a", b"0123456789"); os.ftruncate(fd, 4)' + KILL)
    assert lost_power(disk) == {"a": b"0123456789"}
    run(
        disk,
        'fd = os.open("data/a", os.O_RDWR); os.ftruncate(fd, 4); os.pwrite(fd, b"x", 6); os.fsync(fd)' + KILL,
    )
    assert lost_power(disk) == {"a": b"0123\0\0x"}


@pytest.mark.parametrize("synced", [True, False])
def test_pieces_that_are_written_at_once_are_kept_by_their_sync(disk: Disk, synced: bool) -> None:
    run(disk, WRITER + 'create("data/a", b"0123")' + KILL)
    sync = "; os.fsync(fd)" if synced else ""
    run(disk, f'fd = os.open("data/a", os.O_RDWR); os.pwritev(fd, [b"ab", b"c"], 2){sync}' + KILL)
    assert lost_power(disk) == {"a": b"01abc" if synced else b"0123"}


def test_a_full_disk_takes_half_a_write_more_and_no_new_file(disk: Disk) -> None:
    done = run(
        disk,
        WRITER
        + """
fd = create("data/a", b"")
import mmap
control = mmap.mmap(os.open("disk/control", os.O_RDWR), 4096)
control[8:12] = b"\\1\\0\\0\\0"  # full
assert os.write(fd, b"12345678") == 4
for act in (lambda: os.write(fd, b"5678"), lambda: os.mkdir("data/d"), lambda: create("data/b", b"")):
    try: act()
    except OSError as error: assert error.errno == errno.ENOSPC
    else: sys.exit("no error")
assert os.write(os.open("elsewhere", os.O_WRONLY | os.O_CREAT), b"12345678") == 8
control[8:12] = b"\\0\\0\\0\\0"
assert os.write(fd, b"5678") == 4
""",
    )
    assert done.returncode == 0, done.stderr
    assert (disk.data / "a").read_bytes() == b"12345678"
    assert disk.told("failed") == 3


def test_a_torn_write_leaves_half_and_kills(disk: Disk) -> None:
    disk.tell(torn_write=2)
    done = run(
        disk, WRITER + 'fd = create("data/a", b"first "); os.write(fd, b"second"); os.write(fd, b"third")'
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (disk.data / "a").read_bytes() == b"first sec"


def test_a_slow_sync_takes_its_time_only_in_the_directory(disk: Disk) -> None:
    disk.tell(fsync_delay_us=1_500_000)  # longer than a busy disk needs for the file elsewhere
    done = run(
        disk,
        WRITER
        + """
start = time.monotonic()
fd = os.open("elsewhere", os.O_WRONLY | os.O_CREAT)
os.fsync(fd)
between = time.monotonic()
create("data/a", b"", directory=False)
assert time.monotonic() - between >= 1.5
assert between - start < 1.5
""",
    )
    assert done.returncode == 0, done.stderr


ROCKSDB = """
from rocksdict import Options, Rdict, WriteOptions
store = Rdict("data", Options(raw_mode=True))
durable = WriteOptions()
durable.sync = True
def put(key, sync): store.put(key, b"v" * 100, write_opt=durable) if sync else store.put(key, b"v" * 100)
def count(): return sum(1 for _ in store.keys())
"""
SQLITE = """
import sqlite3
store = sqlite3.connect("data/store.db", isolation_level=None)
store.execute("PRAGMA journal_mode=WAL")
store.execute("CREATE TABLE IF NOT EXISTS t (k)")
def put(key, sync):
    store.execute(f"PRAGMA synchronous={'FULL' if sync else 'OFF'}")
    store.execute("INSERT INTO t VALUES (?)", (key,))
def count(): return store.execute("SELECT count(*) FROM t").fetchone()[0]
"""


@pytest.mark.parametrize("engine", [ROCKSDB, SQLITE], ids=["rocksdb", "sqlite"])
def test_engines_keep_what_they_synced_and_lose_the_rest(disk: Disk, engine: str) -> None:
    """Proof also that their calls pass through the layer: else what they did not sync would survive."""
    done = run(
        disk,
        engine
        + """
for number in range(50): put(b"sure %d" % number, True)
for number in range(50): put(b"lost %d" % number, False)
assert count() == 100
"""
        + KILL,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert disk.told("fsyncs") >= 50
    assert [path for path in disk.reconcile() if not path.endswith("-shm")] == []
    lost_power(disk)
    done = run(disk, engine + "print(count())")
    assert done.stdout.strip() == "50", done.stderr


def test_a_directory_is_there_when_its_own_directory_was_synced(disk: Disk) -> None:
    make = 'os.mkdir("data/d"); create("data/d/a", b"1", directory=False); sync_directory("data/d")'
    run(disk, WRITER + make + KILL)
    assert lost_power(disk) == {}
    run(disk, WRITER + make + "; sync_directory()" + KILL)
    assert lost_power(disk) == {"d/a": b"1"}


def test_a_descriptor_that_stdio_has_closed_is_not_mistaken(disk: Disk) -> None:
    """RocksDB reads through fdopen() and fclose(), which closes without close()."""
    done = run(
        disk,
        WRITER
        + """
import ctypes
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.fclose.argtypes = [ctypes.c_void_p]
create("data/a", b"1")
fd = os.open("data/a", os.O_RDONLY)
libc.fclose(libc.fdopen(fd, b"r"))
again = os.open("data", os.O_RDONLY)
assert again == fd
create("data/b", b"2", directory=False)
os.fsync(again)
"""
        + KILL,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert lost_power(disk) == {"a": b"1", "b": b"2"}
