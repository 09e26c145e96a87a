"""`tidemq store`: what each command prints and exits with, on directories of both engines."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from pathlib import Path

import forks
import pytest
from unit.test_store_inspection import GOOD, make_id, message

from tidemq.broker import Broker
from tidemq.client import Client
from tidemq.config import Config, StreamConfig
from tidemq.store import Store
from tidemq.store.engines import open_empty, open_existing
from tidemq.store.interface import FAMILIES
from tidemq.store.portable import read_store

ENGINES = ("rocksdb", "sqlite")
COUNT = len(GOOD) + 1  # the row with the format


def matched(pattern: str, text: str) -> re.Match[str]:
    found = re.fullmatch(pattern, text)
    assert found, text
    return found


def run(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return forks.run("store", *arguments, input=stdin)


def fill(path: Path, engine: str, *more: tuple[str, bytes, bytes]) -> Path:
    store = open_empty(path, engine)
    store.write([*GOOD, *more], sync=True)
    store.close()
    return path


def content(path: Path) -> list[tuple[str, bytes, bytes]]:
    store: Store = open_existing(path)
    rows = list(read_store(store))
    store.close()
    return rows


@pytest.fixture(params=ENGINES)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return fill(tmp_path / "data", request.param)


def test_check_of_a_clean_store(data: Path) -> None:
    done = run("check", "--data", data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"{COUNT} rows, 0 corrupt, 0 leftovers\n"


def test_check_names_leftovers_and_corrupt_rows(tmp_path: Path) -> None:
    leftover = ("payload", make_id(4), message())
    done = run("check", "--data", fill(tmp_path / "a", "rocksdb", leftover))
    assert done.returncode == 0
    assert done.stdout.decode().splitlines() == [
        "leftover: payload without entry: 1", f"{COUNT + 1} rows, 0 corrupt, 1 leftovers"
    ]  # fmt: skip
    done = run("check", "--data", fill(tmp_path / "b", "sqlite", leftover, ("shared", b"x", b"")))
    assert done.returncode == 1
    assert b"corrupt: shared 78: its key has 1 bytes, not 8\n" in done.stdout


def test_check_finds_a_damaged_block(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", "rocksdb")
    table = max((data / "rocksdb").glob("*.sst"), key=lambda path: path.stat().st_size)
    text = bytearray(table.read_bytes())
    text[5] ^= 0xFF
    table.write_bytes(text)
    done = run("check", "--data", data)
    assert done.returncode == 1
    assert re.search(rb"corrupt: \w+: the store cannot be read: Corruption: .*\.sst", done.stdout)
    assert table.read_bytes() == text


def test_check_reads_the_messages_of_streams_to_their_beginning(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def fill_stream() -> None:
        config = Config(port=0, data=data, store="sqlite", streams=(StreamConfig(name="s", filters=("#",)),))
        async with Broker(config) as broker, Client(f"mqtt://127.0.0.1:{broker.port}") as client:
            for number in range(20):
                await client.publish("t", b"%d" % number, qos=1)

    asyncio.run(fill_stream())
    done = run("check", "--data", data)
    assert done.returncode == 0, done.stdout
    assert re.search(rb"^20 messages of streams, \d+ bytes$", done.stdout, re.MULTILINE)
    [segment] = (data / "streams").glob("s.*/*.arrow")
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    done = run("check", "--data", data)
    assert done.returncode == 1
    assert re.search(rb"^corrupt: the stream s has lost \d+ messages, the first of offset \d+:", done.stdout)
    store = open_existing(data)
    store.write([("stream", b"s\x00", b"{}")], sync=True)
    store.close()
    done = run("check", "--data", data)
    assert done.returncode == 1
    assert b"the messages of streams are not checked: the store's row b'{}' does not declare a" in done.stdout


@pytest.mark.parametrize("command", [["check"], ["stats"], ["dump", "-"]])
def test_what_cannot_be_opened_exits_with_2_and_is_not_made(tmp_path: Path, command: list[str]) -> None:
    done = run(*command, "--data", tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"there is no store in {tmp_path}/none" in done.stderr.decode()
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    assert run(*command, "--data", tmp_path / "empty").returncode == 2
    assert not list((tmp_path / "empty").iterdir())


def test_a_directory_in_use_is_refused(data: Path, tmp_path: Path) -> None:
    store = open_existing(data)
    (tmp_path / "file").write_bytes(b"")
    new = tmp_path / "new"
    for command in (["check"], ["stats"], ["dump", "-"], ["migrate", "--to", new, "--store", "sqlite"]):
        done = run(*command, "--data", data)
        assert done.returncode == 2
        assert b"in use by process" in done.stderr
    assert not new.exists()
    store.close()


def test_stats(data: Path) -> None:
    done = run("stats", "--data", data, "--queues", 1)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert re.fullmatch(r"family +rows +bytes", lines[0])
    found = [matched(r"(\w+) +(\d+) +\d+", line) for line in lines[1 : 1 + len(FAMILIES)]]
    sizes = {each[1]: each[2] for each in found}
    assert (sizes["queue"], sizes["payload"], sizes["stream"]) == ("3", "2", "0")
    on_disk, queues, longest, oldest = lines[1 + len(FAMILIES) :]
    assert int(matched(r"on disk +(\d+)", on_disk)[1]) > 0
    assert queues == "queues: 2"
    assert longest.split() == ["1", "idle", "1", "in", "flight", "200", "bytes", "client"]
    age_s = matched(r"oldest message: 1970-01-01 00:00:02 UTC, (\d+) s ago", oldest)[1]
    assert 0 <= time.time() - int(age_s) < 60


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dump_is_restored_by_either_engine(data: Path, tmp_path: Path, engine: str) -> None:
    file = tmp_path / "file"
    done = run("dump", file, "--data", data)
    assert (done.returncode, done.stderr.decode()) == (0, f"{COUNT} rows\n")
    done = run("restore", file, "--data", tmp_path / "new", "--store", engine)
    assert (done.returncode, done.stderr.decode()) == (0, f"{COUNT} rows\n")
    assert (tmp_path / "new/engine").read_text() == engine
    assert content(tmp_path / "new") == content(data)
    assert run("dump", file, "--data", data).returncode == 2  # it is there already


def test_a_dump_goes_through_a_pipe(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", "rocksdb")
    done = run("dump", "-", "--data", data)
    assert run("restore", "-", "--data", tmp_path / "new", stdin=done.stdout).returncode == 0
    assert content(tmp_path / "new") == content(data)


def test_restore_refuses_directories_with_something_in_them_and_broken_files(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", "sqlite")
    text = run("dump", "-", "--data", data).stdout
    before = content(data)
    done = run("restore", "-", "--data", data, stdin=text)
    assert (done.returncode, content(data)) == (2, before)
    assert b"not an empty directory" in done.stderr
    done = run("restore", "-", "--data", tmp_path / "new", stdin=b"nonsense")
    assert (done.returncode, (tmp_path / "new").exists()) == (2, False)
    done = run("restore", "-", "--data", tmp_path / "new", stdin=text[:-3])
    assert done.returncode == 2
    assert b"cut off" in done.stderr
    done = run("check", "--data", tmp_path / "new")
    assert done.returncode == 2
    assert b"is incomplete: what made it has not ended" in done.stderr
    done = run("restore", "-", "--data", tmp_path / "other", "--store", "mysql", stdin=text)
    assert (done.returncode, (tmp_path / "other").exists()) == (2, False)
    assert b"accepted: rocksdb, sqlite" in done.stderr


def test_migrate_copies_to_the_other_engine(data: Path, tmp_path: Path) -> None:
    engine = ENGINES[1 - ENGINES.index((data / "engine").read_text())]
    before = content(data)
    done = run("migrate", "--data", data, "--to", tmp_path / "new", "--store", engine)
    assert done.returncode == 0
    first, *progress, last = done.stderr.decode().splitlines()
    assert re.fullmatch(rf"{COUNT} rows of format 2, up to \d+ bytes of \d+ that are free", first)
    assert progress[-1] == f"{COUNT} of {COUNT} rows, 100 %"
    assert last == f"{COUNT} rows"
    assert (tmp_path / "new/engine").read_text() == engine
    assert content(tmp_path / "new") == content(data) == before
