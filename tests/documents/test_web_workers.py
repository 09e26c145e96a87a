"""examples/fastapi_workers.py: two workers of uvicorn share a subscription, and no reading is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psutil
import pytest
from conftest import RunningBroker, StartBroker
from waiting import WAIT_S, until

from tidemq.client import Client
from tidemq.testing.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
MESSAGES = 200


class Site:
    """The application in two workers, and its broker."""

    def __init__(self, start_broker: StartBroker, folder: Path) -> None:
        admin_port = free_port()
        self._broker: RunningBroker = start_broker(settings=f"admin_port = {admin_port}\nsys_interval_s = 0")
        self._counters = f"http://127.0.0.1:{admin_port}/counters"
        self._folder, self._port = folder, free_port()
        self._published = 0
        self.url = f"mqtt://127.0.0.1:{self._broker.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[subprocess.Popen[bytes]]:
        """Until both workers have subscribed; they must end well."""
        process = self._start()
        try:
            await until(lambda: self.connected() == 2 and self.answers(), "two workers", poll_s=0.05)
            yield process
            process.terminate()
            status = await asyncio.to_thread(process.wait, WAIT_S)
            assert status in (0, -signal.SIGTERM), (self._folder / "log").read_text()
        finally:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        options = ["--workers", "2", "--port", str(self._port), "--app-dir", str(EXAMPLES)]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "uvicorn", *options, "fastapi_workers:app"],
                cwd=self._folder,
                env=os.environ | {"MQTT_URL": self.url, "DATABASE": str(self._folder / "readings.db")},
                stdout=log,
                stderr=log,
            )

    def connected(self) -> int:
        with urllib.request.urlopen(self._counters, timeout=WAIT_S) as answer:
            counts = json.load(answer)
        assert counts["subscriptions"] <= 3  # the workers', and a test's own
        return int(counts["live_connections"])

    def answers(self) -> bool:
        try:
            return isinstance(self.asked("workers"), dict)
        except OSError:
            return False

    def asked(self, path: str, method: str = "GET") -> object:
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/{path}", method=method)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)

    async def publish(self) -> None:
        """So many readings more, each different."""
        numbers = range(self._published, self._published + MESSAGES)
        async with Client(self.url) as client:
            await client.publish_many([(f"sensors/{each % 7}", str(each)) for each in numbers], qos=1)
        self._published += MESSAGES

    async def all_kept(self) -> None:
        """Waits until the database has each reading that was published."""

        def kept() -> set[int]:
            with closing(sqlite3.connect(self._folder / "readings.db")) as database:
                return {int(payload) for (payload,) in database.execute("SELECT payload FROM readings")}

        await until(lambda: kept() == set(range(self._published)), "all readings", poll_s=0.05)


@pytest.fixture
def site(start_broker: StartBroker, tmp_path: Path) -> Site:
    return Site(start_broker, tmp_path)


def workers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


async def test_workers_share_the_readings_and_publish(site: Site) -> None:
    async with site.running():
        await site.publish()
        await site.all_kept()
        by_worker = site.asked("workers")
        assert isinstance(by_worker, dict)
        assert by_worker.keys() == {"0", "1"}
        assert sum(by_worker.values()) == MESSAGES  # nobody died: each came once
        newest = site.asked("readings/sensors/3")  # in the order in which workers kept them
        assert isinstance(newest, list)
        assert sorted(map(int, newest)) == list(range(3, MESSAGES, 7))
        async with Client(site.url) as device:
            await device.subscribe("commands/+", qos=1)
            await asyncio.to_thread(site.asked, "commands/pump-7?command=on", "POST")
            message = await anext(device.messages)
            assert (message.topic, bytes(message.payload)) == ("commands/pump-7", b"on")


@pytest.mark.long
async def test_no_reading_is_lost_when_a_worker_dies_or_all_restart(site: Site) -> None:
    async with site.running() as process:
        await site.publish()
        first, _second = workers_of(process)
        first.kill()
        await site.publish()
        await site.all_kept()
        await until(lambda: site.connected() == 2, "a worker in the place of the dead one", poll_s=0.05)
    await until(lambda: site.connected() == 0, "all workers are gone")
    await site.publish()
    async with site.running():
        await site.all_kept()
