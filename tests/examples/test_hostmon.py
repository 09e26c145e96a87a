"""examples/hostmon publishes this machine's readings, and whether it is there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import RunningBroker
from waiting import WAIT_S

from tidemq.client import Client

PROGRAM = Path(__file__).parents[2] / "examples" / "hostmon"
OFFLINE = ("status", '{"online": 0}')


def start(url: str, name: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), "--url", url, "--name", name, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def name() -> str:
    return f"host-{os.getpid()}-{os.urandom(4).hex()}"


async def collect(client: Client, root: str) -> list[tuple[str, str]]:
    """Topics below `root` with their payloads, until the host is offline."""
    came = []
    async with asyncio.timeout(WAIT_S):
        async for message in client.messages:
            came.append((message.topic.removeprefix(f"{root}/"), bytes(message.payload).decode()))
            if came[-1] == OFFLINE:
                break
    return came


async def test_readings_are_those_of_this_machine(broker: RunningBroker, name: str) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}"
    async with Client(url) as client:
        await client.subscribe(f"hosts/{name}/#", qos=1)
        process = start(url, name, "--rounds", "2", "--every", "0.3")
        came = await collect(client, f"hosts/{name}")
        printed, complained = process.communicate(timeout=WAIT_S)
    assert (process.returncode, complained) == (0, "")
    assert len(printed.splitlines()) == 2
    assert came[0] == ("status", '{"online": 1}')
    readings = [(topic, json.loads(payload)) for topic, payload in came if topic != "status"]
    first, second = readings[: len(readings) // 2], readings[len(readings) // 2 :]
    assert [topic for topic, _values in first] == [topic for topic, _values in second]
    values = dict(second)
    assert values["memory"]["total_bytes"] == psutil.virtual_memory().total
    assert values["load"]["cores"] == os.cpu_count()
    assert 0 <= values["load"]["cpu_percent"] <= 100
    assert "cpu_percent" not in dict(first)["load"]
    loopback = values["network/lo"]  # over which the readings went
    assert loopback["sent_bytes_per_s"] > 0
    assert loopback["sent_bytes"] > dict(first)["network/lo"]["sent_bytes"]
    disks = {topic for topic in values if topic.startswith("disk/")}
    assert len(disks) == len({partition.mountpoint for partition in psutil.disk_partitions()})


async def test_a_host_that_dies_is_offline_for_those_who_come_later(broker: RunningBroker, name: str) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}"
    async with Client(url) as client:
        await client.subscribe(f"hosts/{name}/status", qos=1)
        process = start(url, name)
        async with asyncio.timeout(WAIT_S):
            online = await anext(client.messages)
        process.kill()
        process.communicate(timeout=WAIT_S)
        came = await collect(client, f"hosts/{name}")
    assert bytes(online.payload) == b'{"online": 1}'
    assert came == [OFFLINE]
    async with Client(url) as late:
        await late.subscribe(f"hosts/{name}/#", qos=1)
        assert await collect(late, f"hosts/{name}") == [OFFLINE]


def test_a_broker_that_is_not_there_is_named_in_one_sentence(unused_tcp_port: int) -> None:
    printed, complained = start(f"mqtt://127.0.0.1:{unused_tcp_port}", "x").communicate(timeout=WAIT_S)
    assert printed == ""
    assert complained.startswith("hostmon: ")
    assert str(unused_tcp_port) in complained
    assert len(complained.splitlines()) == 1
