"""examples/pingmq pings hosts, publishes which answer, and prints what changes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunningBroker
from waiting import WAIT_S

from tidemq.client import Client

PROGRAM = Path(__file__).parents[2] / "examples" / "pingmq"


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def name() -> str:
    return f"watcher-{os.getpid()}-{os.urandom(4).hex()}"


async def test_hosts_that_answer_are_up_and_others_down(broker: RunningBroker, name: str) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}"
    came: list[tuple[str, str]] = []
    async with asyncio.timeout(WAIT_S), Client(url) as client:
        await client.subscribe(f"ping/{name}/#", qos=1)
        hosts = ("127.0.0.8/30", "127.0.0.1", "nobody.invalid")
        pace = ("--rounds", "2", "--every", "0.1", "--timeout", "1")
        watching = start("watch", "--url", url, "--name", name, *pace, *hosts)
        async for message in client.messages:
            came.append((message.topic.removeprefix(f"ping/{name}/"), bytes(message.payload).decode()))
            if came[-1] == ("status", "offline"):
                break
    printed, complained = watching.communicate(timeout=WAIT_S)
    if "may not ping" in complained:
        pytest.skip("the user of the tests may not open a socket for ICMP")
    assert (watching.returncode, complained) == (0, "")
    assert [line.split(" ", 1)[1] for line in printed.splitlines()] == [
        "3 of 4 up, 4 changed",
        "3 of 4 up, 0 changed",
    ]
    up = ["127.0.0.9", "127.0.0.10", "127.0.0.1"]
    statuses = [("status", "online"), *((f"{host}/status", "up") for host in up)]
    statuses += [("nobody.invalid/status", "down"), ("status", "offline")]
    assert [each for each in came if each[0].endswith("status")] == statuses
    echoes = [(topic, json.loads(payload)) for topic, payload in came if topic.endswith("/echo")]
    assert [topic for topic, _ in echoes] == [f"{host}/echo" for host in [*up, "nobody.invalid"]] * 2
    assert all(0 < values["rtt_ms"] < 1000 for topic, values in echoes if "invalid" not in topic)
    assert echoes[-1][1]["error"] == "the name is unknown"


async def test_show_prints_what_is_known_and_what_changes(broker: RunningBroker, name: str) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}"
    async with Client(url) as client:
        await client.publish(f"ping/{name}/10.0.0.1/status", "up", qos=1, retain=True)
        showing = start("show", "--url", url)
        assert showing.stdout is not None
        try:
            lines = iter(showing.stdout.readline, "")
            first = await asyncio.to_thread(next, (line for line in lines if name in line), "")
            await client.publish(f"ping/{name}/10.0.0.1/status", "down", qos=1, retain=True)
            second = await asyncio.to_thread(next, (line for line in lines if name in line), "")
        finally:
            showing.kill()
            showing.communicate(timeout=WAIT_S)
    assert first.split(" ", 1)[1] == f"{name}/10.0.0.1 up (known before)\n"
    assert second.split(" ", 1)[1] == f"{name}/10.0.0.1 down\n"


@pytest.mark.parametrize(
    ("hosts", "sentence"),
    [("10.0.0.0/8", "10.0.0.0/8 has 16777216 addresses; at most 4096"), ("127.0.0.1", "127.0.0.1:{port}")],
)
def test_what_cannot_be_done_is_said_in_one_sentence(unused_tcp_port: int, hosts: str, sentence: str) -> None:
    url = f"mqtt://127.0.0.1:{unused_tcp_port}"
    printed, complained = start("watch", "--url", url, hosts).communicate(timeout=WAIT_S)
    assert printed == ""
    assert complained.startswith("pingmq: ")
    assert sentence.format(port=unused_tcp_port) in complained
    assert len(complained.splitlines()) == 1
