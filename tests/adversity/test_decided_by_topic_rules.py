"""Authorisers decide about the topics that rules mean."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from conformance.kit import Client, connected, kept, refused, unique
from conformance.packets import PUBACK, Will, connect, publish

from tidemq import Access, Broker, Config

RULES = """\
[[rewrite]]
filter = "harmless/#"
to = "denied/$1"

[[rewrite]]
filter = "denied/old/#"
to = "harmless/$1"

[delayed]
"""


class Authoriser:
    """Denies topics under "denied/", once it is let."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def authorise(self, access: Access) -> bool:
        if access.action == "publish":
            self.published.append(access.topic)
            await self.open.wait()
        return not access.topic.startswith("denied/")


def config_of(folder: Path) -> Config:
    rules = folder / "topics.toml"
    rules.write_text(RULES)
    return Config(
        host="127.0.0.1",
        port=0,
        reactors=2,
        sys_interval_s=0,
        store="memory",
        topic_rules_file=rules,
        decision_s=60.0,
    )


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_nobody_gets_past_an_authoriser_by_another_name(tmp_path: Path, version: int) -> None:
    """Neither with messages nor with wills; nor is somebody refused for a name that is not meant."""
    authoriser = Authoriser()

    def act() -> None:
        receiver = connected(broker)
        receiver.subscribe("+/x", 1)
        client = Client(broker.port, version)
        client.send(connect(unique("c"), version, will=Will("harmless/x", b"gone", 1)))
        refused(client, 0x87 if version == 5 else 5)
        client = connected(broker, version)
        client.send(publish("harmless/x", b"x", 1, 7, version))
        assert client.expect(PUBACK, packet_id=7).reason == (0x87 if version == 5 else 0)
        name = unique("c")
        for number in range(4):  # on whichever reactor it arrives, its session stays where it is
            will = Will("denied/old/x", b"%d" % number, 1)
            client = connected(broker, version, name, will=will, **kept(version))
            client.publish("denied/old/x", b"message", 1)
            receiver.expect_message("harmless/x", b"message", 1)
            client.drop()
            receiver.expect_message("harmless/x", b"%d" % number, 1)
        receiver.expect_nothing()

    async with Broker(config_of(tmp_path), authoriser=authoriser) as broker:
        await asyncio.to_thread(act)
        assert authoriser.published == ["denied/x"] * 2 + ["harmless/x"] * 8
        assert broker.counters()["messages_rewritten"] == 10
