"""Thousands of delayed messages in a broker that is killed again and again: each comes once, and on time."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from crash.history import History
from crash.server import Server
from waiting import WAIT_S

from tidemq.client import Client

DELAYS_S = (2, 4, 6)  # some fall due while the broker is there, some while it is not
KILLS = 3
COUNT = 10_000

pytestmark = pytest.mark.timeout(600)


async def test_delayed_messages_come_once_whenever_the_broker_is_killed(tmp_path: Path) -> None:
    choose = random.Random(COUNT)
    rules = tmp_path / "topics.toml"
    rules.write_text("[delayed]\nmessages_max = 10_000\n")
    settings = {"reactors": 2, "store": "rocksdb", "topic_rules_file": str(rules)}
    server = Server(tmp_path, tmp_path / "data", settings, History())
    await server.start()

    def client(name: str) -> Client:
        url = f"mqtt://127.0.0.1:{server.port}"
        return Client(url, client_id=name, clean_start=False, session_expiry_s=3600)

    async with client("reader") as reader:
        await reader.subscribe("late/#", qos=2)
    began_s = time.monotonic()
    async with client("sender") as sender:
        await sender.publish_many(
            [(f"$delayed/{DELAYS_S[n % 3]}/late/{n % 3}", b"%d" % n) for n in range(COUNT)], qos=2
        )
    for _ in range(KILLS):
        await asyncio.sleep(choose.uniform(0.1, 1.0))
        server.kill()
        await server.start()
    found: Counter[bytes] = Counter()
    async with client("reader") as reader:
        while len(found) < COUNT:
            message = await asyncio.wait_for(anext(reader.messages), WAIT_S)
            early_s = DELAYS_S[int(message.topic[-1])] - (time.monotonic() - began_s)
            assert early_s <= 0, f"{message.topic} comes {early_s} s too early"
            found[message.payload] += 1
        await reader.subscribe("end", qos=1)
        await reader.publish("end", b"end", qos=1)
        while (message := await asyncio.wait_for(anext(reader.messages), WAIT_S)).topic != "end":
            found[message.payload] += 1
    assert set(found) == {b"%d" % n for n in range(COUNT)}
    assert set(found.values()) == {1}
    await server.stop()
