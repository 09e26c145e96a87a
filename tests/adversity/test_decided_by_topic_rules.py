"""Authorisers decide about the topics that rules mean, and what they have decided about is what happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from conformance.kit import Client, connected, kept, refused, unique
from conformance.packets import PUBACK, Will, connect, publish
from waiting import until

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


@pytest.mark.parametrize("text", ["", '[[rewrite]]\nfilter = "#"\nto = "denied/other"\n'])
async def test_rules_that_change_while_it_is_decided_on_change_nothing_for_a_message(
    tmp_path: Path, text: str
) -> None:
    """What was allowed is published, to the topic that was asked about."""
    config, authoriser = config_of(tmp_path), Authoriser()
    assert config.topic_rules_file is not None
    authoriser.open.clear()

    def ask() -> tuple[Client, list[Client]]:
        receiver = connected(broker)
        for topics in ("#", "$delayed/#"):
            receiver.subscribe(topics, 1)
        packets = [
            publish("denied/old/x", b"renamed", 1, 7),
            publish("$delayed/900/y", b"late", 1, 7),
            publish("$delayed/0/y", b"now", 1, 7),
        ]
        senders = [connected(broker) for _ in packets]
        for sender, packet in zip(senders, packets, strict=True):
            sender.send(packet)
        return receiver, senders

    def see(receiver: Client, senders: list[Client]) -> None:
        # nothing may be delayed any more: it is refused as one that is too much
        for sender, reason in zip(senders, (0, 0x97, 0), strict=True):
            sender.expect(PUBACK, packet_id=7, reason=reason)
        found = {(message.topic, message.payload) for message in receiver.rest()}
        assert found == {("harmless/x", b"renamed"), ("y", b"now")}

    async with Broker(config, authoriser=authoriser) as broker:
        receiver, senders = await asyncio.to_thread(ask)
        await until(lambda: len(authoriser.published) == 3, "it is asked")
        assert sorted(authoriser.published) == ["harmless/x", "y", "y"]
        config.topic_rules_file.write_text(text)
        await broker.reload()
        authoriser.open.set()
        await asyncio.to_thread(see, receiver, senders)
        assert broker.counters()["messages_rewritten"] == 1
