"""The stores by themselves on a bad disk: what a synced write has returned for is there, come what may."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.disk import Disk, compile_layer
from waiting import WAIT_S

WRITER = """
import sys, time
from pathlib import Path
from tidemq.config import Config
from tidemq.errors import StoreError
from tidemq.store.rocksdb import make_rocksdb_store
from tidemq.store.sqlite import make_sqlite_store

make = {"rocksdb": make_rocksdb_store, "sqlite": make_sqlite_store}[sys.argv[1]]
store = make(Config(data=Path(sys.argv[2]), store=sys.argv[1]), {})
print("aside", *store.open(), flush=True)
keys = [int.from_bytes(key, "big") for key, _ in store.scan("queue")]
wholes = [store.get("payload", key.to_bytes(4, "big")) == bytes([key % 251]) * (key % 3000) for key in keys]
print("whole", keys == list(range(len(keys))) and all(wholes), len(keys), flush=True)
number = len(keys)
while len(sys.argv) == 3:
    key = number.to_bytes(4, "big")
    batch = [("queue", key, b""), ("payload", key, bytes([number % 251]) * (number % 3000))]
    try:
        store.write(batch, sync=True)
    except StoreError as error:
        print("error", error, flush=True)
        time.sleep(0.02)
        continue
    print("wrote", number, flush=True)
    number += 1
store.close()
"""
# waits for a line before it opens the file again
WAITING_WRITER = WRITER.replace(
    "number = len(keys)",
    """
mend = store._open_mending
def wait():
    print("closed", flush=True)
    sys.stdin.readline()
    return mend()
store._open_mending = wait
number = len(keys)""",
)
WORK_S = 0.25


class Writer:
    """A process that writes numbered batches, each of two rows, and says so when one is durable."""

    def __init__(self, engine: str, disk: Disk, *, only_look: bool = False, script: str = WRITER) -> None:
        arguments = [sys.executable, "-c", script, engine, str(disk.data), *["look"] * only_look]
        environment = os.environ | disk.environment
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.said: list[list[str]] = []
        self._disk = disk

    def hear_until(self, *words: str) -> list[str]:
        """The first line that begins so; nothing where the process ends before."""
        assert self.process.stdout
        deadline = time.monotonic() + WAIT_S
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return []  # killed within it
            self.said.append(line.split())
            assert time.monotonic() < deadline, self.said[-5:]
            if self.said[-1][: len(words)] == list(words):
                return self.said[-1]
        return []

    def work(self) -> None:
        """Reads what it says for a while."""
        end = time.monotonic() + WORK_S
        while time.monotonic() < end and self.hear_until("wrote"):
            pass

    def kill(self) -> None:
        self.process.kill()
        self.hear_until("the end")
        self.process.wait()

    @property
    def wrote(self) -> int:
        """How many batches have been durable by its word."""
        return max((int(words[1]) + 1 for words in self.said if words[0] == "wrote"), default=0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("the disk layer needs gcc")
    return compile_layer(tmp_path_factory.mktemp("layer"))


@pytest.fixture
def disk(library: Path, tmp_path: Path) -> Iterator[Disk]:
    made = Disk(library, tmp_path / "data", tmp_path / "disk", power=True)
    yield made
    made.close()


def held(engine: str, disk: Disk) -> int:
    """How many batches the store holds, all whole and without a gap."""
    look = Writer(engine, disk, only_look=True)
    whole = look.hear_until("whole", "True")
    assert whole, look.said
    look.hear_until("the end")
    assert look.process.wait() == 0
    assert ["aside"] in look.said
    return int(whole[2])


ENGINES = pytest.mark.parametrize("engine", ["rocksdb", "sqlite"])


@ENGINES
@pytest.mark.parametrize("kept", [False, True], ids=["all-lost", "some-kept"])
def test_power_loss(engine: str, disk: Disk, kept: bool) -> None:
    for seed in range(2):
        writer = Writer(engine, disk)
        writer.work()
        writer.kill()
        disk.lose_power(random.Random(seed), kept=kept)
        assert held(engine, disk) >= writer.wrote > 0


@ENGINES
def test_a_torn_write(engine: str, disk: Disk) -> None:
    for place in (1, 40):
        writer = Writer(engine, disk)
        writer.hear_until("whole", "True")
        disk.tell(torn_write=place)
        writer.hear_until("the end")
        writer.process.wait()
        disk.heal()
        assert held(engine, disk) >= writer.wrote


@ENGINES
@pytest.mark.parametrize("fault", [{"full": 1}, {"fsync_failures": -1}, {"fsync_failures": 1}], ids=str)
def test_a_disk_that_fails_for_a_while(engine: str, disk: Disk, fault: dict[str, int]) -> None:
    writer = Writer(engine, disk)
    writer.work()
    disk.tell(**fault)
    assert writer.hear_until("error")
    before = writer.wrote
    if disk.told("fsync_failures") < 0 or disk.told("full"):
        for _ in range(5):
            assert writer.hear_until("error")
        assert writer.wrote == before
    disk.heal()
    assert writer.hear_until("wrote")  # without a restart
    writer.work()
    writer.kill()
    disk.lose_power(random.Random(1), kept=False)
    assert held(engine, disk) >= writer.wrote > before


def test_a_disk_that_works_again_while_the_file_is_opened(disk: Disk) -> None:
    """What the failed write left in the system's memory looks as if it were on the disk, and is not."""
    writer = Writer("sqlite", disk, script=WAITING_WRITER)
    writer.work()
    disk.tell(fsync_failures=-1)
    assert writer.hear_until("error")
    assert writer.hear_until("closed")
    disk.heal()
    assert writer.process.stdin is not None
    writer.process.stdin.write("\n")
    writer.process.stdin.flush()
    for _ in range(3):  # few: a checkpoint would bring all of the log into the file
        assert writer.hear_until("wrote")
    writer.kill()
    disk.lose_power(random.Random(1), kept=False)
    assert held("sqlite", disk) >= writer.wrote
