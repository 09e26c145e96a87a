"""The other side's disk is full, and there is room again: nothing that was acknowledged is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bridge.kit import bridge_to, broker_with, config_with, connected, figures, mosquitto, take_until, url_of
from client.servers import Server
from small_disk import small_disk
from waiting import WAIT_S, until

from tidemq import Broker
from tidemq.client import Client

DISK_MIB = 64
FREE_BYTES = 1 << 20  # that are left for the broker
PAYLOADS = [b"%d " % number + os.urandom(50_000) for number in range(60)]  # three times as much


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    with small_disk(tmp_path / "disk", DISK_MIB) as path:
        yield path


def fill(disk: Path, free_bytes: int) -> Path:
    """A file that leaves so much room on it."""
    ballast = disk / "ballast"
    status = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - free_bytes)
    return ballast


async def subscribe(url: str) -> None:
    """Somebody who is away when the messages come."""
    async with Client(url, client_id="away", clean_start=False, session_expiry_s=1000) as away:
        await away.subscribe("a", qos=1)


async def take_what_waited(url: str) -> list[bytes]:
    """All of it, those that came twice once."""
    async with Client(url, client_id="away", clean_start=False, session_expiry_s=1000) as away:
        found = await take_until(away, lambda found: set(found) >= set(PAYLOADS))
    return list(dict.fromkeys(found))


async def test_messages_wait_for_a_tidemq_whose_disk_is_full(disk: Path, place: str) -> None:
    async with Broker(config_with(store="rocksdb", data=disk / "data")) as far:
        await subscribe(url_of(far))
        ballast = fill(disk, FREE_BYTES)
        bridge = bridge_to(url_of(far), {"filter": "a", "qos": 1}, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await here.publish_many([("a", each) for each in PAYLOADS], qos=1)
            await until(lambda: "implementation specific" in figures(broker).status.last_error, "it refuses")
            await until(lambda: figures(broker).queued_messages > 0, "they wait")
            ballast.unlink()
            await until(lambda: figures(broker).queued_messages == 0, "all have crossed")
            assert broker.counters()["dropped_bridge_refused"] == 0
        assert set(await take_what_waited(url_of(far))) == set(PAYLOADS)


@pytest.mark.long
@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_wait_for_a_tidemq_that_is_killed_with_its_disk_full(
    disk: Path, place: str, qos: int
) -> None:
    far = Server("tidemq", disk, store="rocksdb").start()
    try:
        await subscribe(far.url)
        ballast = fill(disk, FREE_BYTES)
        bridge = bridge_to(far.url, {"filter": "a", "qos": 2}, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await here.publish_many([("a", each) for each in PAYLOADS], qos=qos)
            await until(lambda: "implementation specific" in figures(broker).status.last_error, "it refuses")
            # the figure is as of the last second: 0 before messages were seen to wait means nothing
            await until(lambda: figures(broker).queued_messages > 0, "they wait")
            far.kill()
            ballast.unlink()
            far.start()
            await until(lambda: figures(broker).queued_messages == 0, "all have crossed")
            assert broker.counters()["dropped_bridge_refused"] == 0
        assert set(await take_what_waited(far.url)) == set(PAYLOADS)
    finally:
        far.kill()


async def test_a_mosquitto_with_a_full_disk_takes_messages_and_has_them_later(
    disk: Path, tmp_path: Path, install: object, place: str
) -> None:
    """It keeps them in memory, and writes all when there is room and it ends in order."""
    settings = f"persistence true\npersistence_location {disk}/\nautosave_interval 1\n"
    far = mosquitto(tmp_path, settings).start()
    try:
        await subscribe(far.url)
        ballast = fill(disk, 0)
        bridge = bridge_to(far.url, {"filter": "a", "qos": 1}, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await here.publish_many([("a", each) for each in PAYLOADS], qos=1)
            await until(lambda: figures(broker).counts["messages_out"] >= len(PAYLOADS), "all go out")
            await until(lambda: figures(broker).queued_messages == 0, "all have crossed")
            log = tmp_path / "mosquitto.log"
            await until(lambda: "No space left" in log.read_text(), "it has no room for them")
            ballast.unlink()
        assert far.process is not None
        far.process.terminate()
        far.process.wait(WAIT_S)
        far.start()
        assert set(await take_what_waited(far.url)) == set(PAYLOADS)
    finally:
        far.kill()
