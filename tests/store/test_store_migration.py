"""An older format is refused with the way out, and migrated: room first, and nothing lost however it ends."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tidemq.errors import StoreError, StoreFullError
from tidemq.store import FORMAT, interface, migration
from tidemq.store.engines import open_empty, open_existing
from tidemq.store.interface import Write
from tidemq.store.migration import STEPS, migrate_store
from tidemq.store.portable import Entry, read_store

ENGINES = ("rocksdb", "sqlite")
OLD: list[Write] = [
    ("retained", b"a", b"one"),
    ("subscription", b"\x00\x01ca/#", b"\x02"),  # as if a format had no subscription identifiers
    ("subscription", b"\x00\x01db/#", b"\x01"),
    ("meta", b"incarnation", bytes(8)),
    ("meta", b"format", b"1"),
]


def with_identifiers(rows: Iterator[Entry]) -> Iterator[Entry]:
    for family, key, value in rows:
        yield family, key, value + bytes(4) if family == "subscription" else value


@pytest.fixture
def old_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there had been a format 1."""
    monkeypatch.setattr(migration, "STEPS", {b"1": with_identifiers})
    monkeypatch.setattr(interface, "OLDER", (b"1",))


def fill(path: Path, engine: str, rows: list[Write]) -> Path:
    store = open_empty(path, engine)
    store.write(rows, sync=True)
    store.close()
    return path


def content(path: Path, *formats: bytes) -> list[Entry]:
    store = open_existing(path, formats or (FORMAT,))
    rows = list(read_store(store))
    store.close()
    return rows


def test_each_older_format_has_a_step() -> None:
    assert tuple(STEPS) == interface.OLDER
    assert [int(each) for each in (*STEPS, FORMAT)] == list(range(int(FORMAT) - len(STEPS), int(FORMAT) + 1))


@pytest.mark.usefixtures("old_format")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("to", ["", *ENGINES])
def test_an_older_format_is_named_and_migrated(engine: str, to: str, tmp_path: Path) -> None:
    data, new = fill(tmp_path / "data", engine, OLD), tmp_path / "new"
    with pytest.raises(
        StoreError, match=r"has format 1, this version reads 2: .*`tidemq store migrate --data"
    ):
        open_existing(data)
    before = content(data, b"1")
    assert len(before) == len(OLD)
    said: list[str] = []
    assert migrate_store(data, new, to, said.append) == len(OLD)
    assert said[0].startswith(f"{len(OLD)} rows of format 1, ")
    assert said[-1] == f"{len(OLD)} of {len(OLD)} rows, 100 %"
    assert content(data, b"1") == before  # the way back
    raised = {(family, key): value for family, key, value in content(new)}
    for family, key, value in before:
        more = {"subscription": bytes(4)}.get(family, b"")
        assert raised.pop((family, key)) == (FORMAT if key == b"format" else value + more)
    assert not raised
    assert (new / "engine").read_text() == (to or engine)


@pytest.mark.usefixtures("old_format")
def test_a_format_that_nobody_knows_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", "sqlite", [("meta", b"format", b"3")])
    with pytest.raises(StoreError, match=r"format 3, this version reads 2: start the version that wrote it"):
        migrate_store(data, tmp_path / "new", "", print)
    assert not (tmp_path / "new").exists()


class Usage(NamedTuple):
    """What the system says of a disk."""

    total: int
    used: int
    free: int


@pytest.mark.parametrize("engine", ENGINES)
def test_room_is_asked_for_before_anything_is_written(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, new = fill(tmp_path / "data", engine, [("retained", b"a", bytes(100_000))]), tmp_path / "a/new"
    (data / "streams/s.1").mkdir(parents=True)
    (data / "streams/s.1/1.arrow").write_bytes(bytes(300_000))
    said: list[str] = []
    asked: list[Path] = []

    def usage(path: Path) -> Usage:
        asked.append(path)
        return Usage(1 << 40, 0, migration.SPARE_BYTES + 400_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(StoreFullError, match=r"new needs up to \d+ bytes, and \d+ are free there"):
        migrate_store(data, new, "", said.append)
    assert asked == [tmp_path]  # the disk of the folder that is there
    assert not (tmp_path / "a").exists()
    [line] = said
    assert re.fullmatch(r"2 rows of format 2, up to \d+ bytes of \d+ that are free", line)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_store_takes_is_not_more_than_was_said(engine: str, tmp_path: Path) -> None:
    """With rows of the size for which SQLite takes most, and of small ones."""
    rows: list[Write] = [
        ("payload", bytes([9]) + n.to_bytes(15), random.randbytes(1000)) for n in range(2000)
    ]
    rows += [("queue", n.to_bytes(25), random.randbytes(20)) for n in range(10_000)]
    data, new = fill(tmp_path / "data", "sqlite", rows), tmp_path / "new"
    said: list[str] = []
    migrate_store(data, new, engine, said.append)
    [needed] = re.findall(r"up to (\d+) bytes", said[0])
    taken = sum(path.stat().st_blocks * 512 for path in new.rglob("*") if path.is_file())
    assert (int(needed) - migration.SPARE_BYTES) / 4 < taken <= int(needed)


STOPS = """
import sys, time
from pathlib import Path
from tidemq.store.migration import migrate_store

def say(line):
    print(line, flush=True)
    if line.endswith(", 50 %"):
        time.sleep(3600)

migrate_store(Path(sys.argv[1]), Path(sys.argv[2]), "", say)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_in_the_middle_the_old_one_is_whole_and_the_new_one_refused(
    engine: str, tmp_path: Path
) -> None:
    rows: list[Write] = [("retained", b"%05d" % number, bytes(200)) for number in range(3000)]
    data, new = fill(tmp_path / "data", engine, rows), tmp_path / "new"
    (data / "streams/s.1").mkdir(parents=True)
    (data / "streams/s.1/1.arrow").write_bytes(b"messages")
    before = content(data)
    with subprocess.Popen(
        [sys.executable, "-c", STOPS, data, new], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().endswith(", 50 %\n"):
            assert process.poll() is None
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert content(data) == before
    with pytest.raises(StoreError, match="is incomplete: what made it has not ended; remove it"):
        open_existing(new)
    with pytest.raises(StoreError, match="not an empty directory"):
        migrate_store(data, new, "", print)
    migrate_store(data, tmp_path / "again", "", print)
    assert content(tmp_path / "again") == before
    assert (tmp_path / "again/streams/s.1/1.arrow").read_bytes() == b"messages"
