"""The wall clock is set while the broker runs, and between two runs: sessions keep the time that they have
left, ids and the order of queues never go back. By libfaketime, which lets the monotonic clock go on.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from durable.server import StoreDouble
from waiting import WAIT_S

from tidemq.client import Client

DAY_S = 86_400
YEARS_S = 30 * 365 * DAY_S


@pytest.fixture
def library(install: Callable[[str, str], None]) -> Path:
    install("faketime", "faketime")
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert found, "the package faketime has no libfaketimeMT.so.1"
    return found[0]


class FakedBroker:
    """`tidemq serve` whose wall clock is so many seconds from the real one; `set_clock` while it runs."""

    def __init__(self, folder: Path, library: Path, *, reactors: int = 2) -> None:
        self.log = folder / "log"
        self._stamp = folder / "clock"
        self._command = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve", "--port", "0"]
        self._command += ["--data", str(folder / "data"), "--reactors", str(reactors)]
        self._environment = os.environ | {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._stamp),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def set_clock(self, offset_s: float) -> None:
        new = self._stamp.with_suffix(".new")
        new.write_text(f"{offset_s:+.0f}\n")
        new.rename(self._stamp)

    def start(self, offset_s: float = 0) -> None:
        self.set_clock(offset_s)
        with self.log.open("ab") as log:
            at = log.tell()
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, cwd=self.log.parent
            )
        deadline = time.monotonic() + WAIT_S
        while not (found := re.search(r"is ready on \S*:(\d+)", self.log.read_text()[at:])):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        self.port = int(found[1])

    def end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(WAIT_S)
            self.process = None

    def wait_said(self, text: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not re.search(text, self.log.read_text()):
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def broker(tmp_path: Path, library: Path) -> Iterator[FakedBroker]:
    made = FakedBroker(tmp_path, library)
    yield made
    made.end(signal.SIGKILL)
    print(made.log.read_text())  # with a test that failed


async def leave(broker: FakedBroker, expiry_s: int) -> None:
    """A session with a subscription, whose client is away."""
    settings: dict[str, Any] = {"client_id": "away", "clean_start": False, "session_expiry_s": expiry_s}
    async with Client(f"mqtt://127.0.0.1:{broker.port}", **settings) as client:
        await client.subscribe("a", qos=1)


async def publish(broker: FakedBroker, *payloads: bytes) -> None:
    async with Client(f"mqtt://127.0.0.1:{broker.port}") as client:
        for payload in payloads:
            await client.publish("a", payload, qos=1)


async def come_back(broker: FakedBroker, count: int) -> list[bytes]:
    """What was queued for it; none where the session is gone."""
    settings: dict[str, Any] = {"client_id": "away", "clean_start": False, "session_expiry_s": DAY_S}
    async with Client(f"mqtt://127.0.0.1:{broker.port}", **settings) as client:
        if client.connack is None or not client.connack.session_present:
            return []
        return [(await asyncio.wait_for(anext(client.messages), WAIT_S)).payload for _ in range(count)]


STEPS: list[Callable[[], tuple[float, float]]] = [
    lambda: (-YEARS_S, 0),  # a gateway without a clock of its own, set by NTP
    lambda: (YEARS_S, 0),
    lambda: (-time.time() + 1000, 0),  # 1970
]


@pytest.mark.parametrize(
    ("step", "how"),
    [
        *((step, signal.SIGKILL) for step in STEPS),
        (STEPS[0], signal.SIGTERM),
        *(pytest.param(step, signal.SIGTERM, marks=pytest.mark.long) for step in STEPS[1:]),
    ],
)
async def test_a_session_of_a_day_outlives_a_step_of_years_and_a_restart(
    broker: FakedBroker, step: Callable[..., Any], how: signal.Signals
) -> None:
    before, after = step()
    broker.start(before)
    await leave(broker, DAY_S)
    await publish(broker, b"1")
    broker.set_clock(after)
    broker.wait_said("the clock was set " + ("forward" if after > before else "back"))
    await publish(broker, b"2")
    await asyncio.sleep(0.3)  # the rows of sessions are written again
    broker.end(how)
    broker.start(after)
    assert await come_back(broker, 2) == [b"1", b"2"]


@pytest.mark.parametrize("offsets", [(0, -YEARS_S), (-time.time() + 1000, 0)])
async def test_a_session_outlives_a_restart_with_a_clock_that_was_or_is_wrong(
    broker: FakedBroker, offsets: tuple[Any, ...]
) -> None:
    before, after = offsets
    broker.start(before)
    await leave(broker, DAY_S)
    await publish(broker, b"1", b"2")
    broker.end(signal.SIGKILL)
    broker.start(after)
    assert "what is stored goes on from there" in broker.log.read_text()
    await publish(broker, b"3")
    assert await come_back(broker, 3) == [b"1", b"2", b"3"]


async def test_a_session_whose_time_is_over_by_the_clock_is_gone(broker: FakedBroker) -> None:
    broker.start()
    await leave(broker, DAY_S)
    broker.end(signal.SIGTERM)
    broker.start(2 * DAY_S)
    assert await come_back(broker, 0) == []


async def test_the_order_of_a_queue_survives_a_clock_that_goes_back_and_forth(broker: FakedBroker) -> None:
    broker.start()
    await leave(broker, DAY_S)
    numbers = [b"%d" % number for number in range(40)]
    for index, offset in enumerate((0, YEARS_S, -DAY_S, 3600)):
        broker.set_clock(offset)
        await asyncio.sleep(0.3)
        await publish(broker, *numbers[10 * index : 10 * index + 10])
        if index == 2:
            broker.end(signal.SIGKILL)
            broker.start(offset)
    assert await come_back(broker, 40) == numbers


async def test_a_step_is_a_line_with_the_date(broker: FakedBroker) -> None:
    broker.start()
    broker.set_clock(DAY_S)
    broker.wait_said(r"the clock was set forward by 86[34]\d\d")
    tomorrow = datetime.fromtimestamp(time.time() + DAY_S, UTC)
    assert f", to {tomorrow:%Y-%m-%d}" in broker.log.read_text()


def size_of(folder: Path) -> int:
    """Bytes that RocksDB has written to its log there."""
    return sum(path.stat().st_size for path in folder.glob("*.log"))


async def test_very_many_sessions_have_new_dates(broker: FakedBroker, tmp_path: Path) -> None:
    """Over turns that are short, as the build that counts steps finds out: it would end."""
    count = 100_000
    broker.start()
    await leave(broker, DAY_S)
    broker.end(signal.SIGTERM)
    store = StoreDouble("rocksdb", tmp_path / "data")
    assert store.open() == []
    (row,) = store.rows("session").values()
    copies = [("session", b"c%d" % n, (1_000_000 + n).to_bytes(8) + row[8:]) for n in range(count)]
    store.write(copies, sync=True)
    store.close()
    broker.start()
    before = size_of(tmp_path / "data" / "rocksdb")
    broker.set_clock(YEARS_S)
    deadline = time.monotonic() + WAIT_S
    size = 0
    while size != (size := size_of(tmp_path / "data" / "rocksdb")) or size < before + count * len(row):
        assert broker.process.poll() is None, broker.log.read_text()  # type: ignore[union-attr]
        assert time.monotonic() < deadline, "not all rows are written again"
        await asyncio.sleep(0.5)  # until nothing more is written: a row takes more than its bytes
    broker.end(signal.SIGTERM)
    store = store.reopened()
    assert store.open() == []
    ends_ms = [int.from_bytes(row[12:20]) for row in store.rows("session").values()]
    store.close()
    assert len(ends_ms) == count + 1
    assert min(ends_ms) > (time.time() + YEARS_S) * 1000
