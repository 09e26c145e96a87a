"""Plugins are asked about the messages that topic rules mean, once; and then they are delayed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from conformance.kit import connected, kept
from conformance.packets import PUBLISH

from tidemq import Broker, Config, HeldMessage, hookimpl

RULES = """\
[delayed]
seconds_max = 1000
messages_max = 2
bytes_max = 1_000_000

[[rewrite]]
filter = "old/#"
to = "new/$1"
"""


class Notes:
    """Lets all pass, and keeps their topics."""

    filters = ("new/#",)

    def __init__(self) -> None:
        self.topics: list[str] = []

    @hookimpl
    def publish(self, messages: list[HeldMessage]) -> None:
        self.topics += [each.topic for each in messages]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_renamed_and_delayed_messages_are_asked_about_once(
    tmp_path: Path, qos: int, store: str
) -> None:
    rules = tmp_path / "topics.toml"
    rules.write_text(RULES)
    notes = Notes()
    config = Config(
        host="127.0.0.1",
        port=0,
        reactors=2,
        sys_interval_s=0,
        store=store,
        data=tmp_path / "data",
        topic_rules_file=rules,
    )

    def act() -> None:
        receiver = connected(broker, client_id="receiver", **kept(5))
        receiver.subscribe("#", 2)
        sender = connected(broker)
        began = time.monotonic()
        sender.publish("$delayed/1/old/late", b"1", qos)
        sender.publish("old/now", b"2", qos)
        came = {}
        for _ in range(2):
            message = receiver.expect(PUBLISH, qos=qos)
            came[message.topic, message.payload] = time.monotonic() - began
            receiver.acknowledge(message)
        assert set(came) == {("new/now", b"2"), ("new/late", b"1")}
        assert came["new/late", b"1"] >= 1

    async with Broker(config, plugins=[notes]) as broker:
        await asyncio.to_thread(act)
    assert notes.topics == ["new/late", "new/now"]


async def test_one_delay_too_many_is_refused_in_its_turn(tmp_path: Path) -> None:
    rules = tmp_path / "topics.toml"
    rules.write_text(RULES)
    config = Config(
        host="127.0.0.1", port=0, reactors=1, sys_interval_s=0, store="memory", topic_rules_file=rules
    )

    def act() -> None:
        sender = connected(broker)
        for number in range(3):
            sender.publish(f"$delayed/900/new/{number}", b"", 1, refused=number == 2)

    async with Broker(config, plugins=[Notes()]) as broker:
        await asyncio.to_thread(act)
