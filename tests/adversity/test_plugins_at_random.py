"""Clients, plugins and topic rules that do anything at any time: each message becomes what a model says.

Publishers of every version send on free topics, on those that plugins decide about and by old names, also
delayed and by aliases; they break off, and are taken over. Plugins pass, change, refuse, drop, move and
route; some fail, or are late. Others come and go, and the file of topic rules changes, without changing what
any message means.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from conformance.kit import connected
from conformance.packets import PING, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet, acknowledge, publish
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config, Decision, HeldMessage, Plugin, Route, hookimpl
from tidemq.config import PluginConfig

RULES = """\
[delayed]
[[rewrite]]
filter = "old/#"
to = "judge/$1"
"""
OTHER_RULES = """\
[[rewrite]]
filter = "nowhere/{}"
to = "somewhere"
[[retained]]
filter = "#"
ttl_s = 1000
"""
TOPICS = ("free/a", "free/a/flaky", "judge/x", "judge/flaky", "old/x", "flaky/y", "wall/z")
REASONS = {"pass": 0, "change": 0, "move": 0, "route": 0, "drop": 0x10, "refuse": 0x87, "wall": 0x83}


class Judge:
    """Decides as the payload says."""

    filters = ("judge/#",)

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose

    @hookimpl
    async def publish(self, messages: list[HeldMessage]) -> list[Decision | None]:
        await asyncio.sleep(self.choose.choice([0, 0, 0.001, 0.02]))
        return [self.decide(each) for each in messages]

    def decide(self, message: HeldMessage) -> Decision | None:
        verdict = message.payload.decode().split(":")[2]
        if verdict in ("refuse", "drop"):
            return Decision(reason=REASONS[verdict]) if verdict == "refuse" else Decision(drop=True)
        if verdict == "change":
            return Decision(payload=message.payload + b"!")
        if verdict == "move":
            return Decision(topic="moved/" + message.topic)
        if verdict == "route":
            return Decision(routes=(Route("routed", message.payload, qos=1),))
        return None


class Flaky:
    """Passes all, or fails in some way."""

    filters = ("flaky/#", "judge/flaky", "free/+/flaky")

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose

    @hookimpl
    async def publish(self, messages: list[HeldMessage]) -> object:
        way = self.choose.randrange(10)
        if way < 3:
            raise RuntimeError("flaky")
        if way == 3:
            await asyncio.sleep(1)
        if way == 4:
            raise asyncio.CancelledError
        return [None] * (len(messages) + (way == 5))


class Wall:
    """Never answers in time."""

    filters = ("wall/#",)

    @hookimpl
    async def publish(self, messages: list[HeldMessage]) -> None:
        await asyncio.sleep(1)


class Extra:
    """Comes and goes, and looks at nearly everything."""

    filters = ("judge/#", "free/#", "moved/#")

    @hookimpl
    async def publish(self, messages: list[HeldMessage]) -> None:
        await asyncio.sleep(0.002)


@dataclass
class Sent:
    """A message, and what is to become of it."""

    payload: bytes
    topic: str  # that it has in the end
    verdict: str
    qos: int
    delayed: bool
    sure: bool = False  # its connection was there until it was answered
    answered: bool = False

    @property
    def arrives(self) -> tuple[str, bytes] | None:
        if REASONS[self.verdict]:
            return None
        topic = "moved/" + self.topic if self.verdict == "move" else self.topic
        return topic, self.payload + (b"!" if self.verdict == "change" else b"")


class Publisher:
    """One client, one connection after the other."""

    def __init__(self, broker: Broker, number: int, seed: int) -> None:
        self.broker, self.name = broker, f"p{number}"
        self.choose = random.Random(f"{seed} {number}")
        self.sent: list[Sent] = []
        self.connect()

    def connect(self) -> None:
        self.version = self.choose.choice((3, 4, 5, 5))
        self.client = connected(self.broker, self.version, self.name)
        self.aliases: dict[str, int] = {}
        self.waiting: dict[int, Sent] = {}
        self.open: list[Sent] = []
        self.pings = 0

    def act(self, rounds: int) -> None:
        for _ in range(rounds):
            self.client.send(*(self.packet() for _ in range(self.choose.choice((1, 3, 10, 40)))))
            how = self.choose.randrange(10)
            if how < 5:
                self.settle()
            elif how == 5:
                self.settle()
                self.client.disconnect()
                self.connect()
            elif how == 6:
                self.client.drop()
                self.connect()
            elif how == 7:  # a takeover
                old = self.client
                self.connect()
                old.drop()
        self.settle()
        self.client.disconnect()

    def packet(self) -> bytes:
        choose = self.choose
        if choose.random() < 0.1:
            self.pings += 1
            return PING
        name = choose.choice(TOPICS)
        topic = name.replace("old/", "judge/")
        verdict = "wall" if name == "wall/z" else "pass"
        if topic.startswith("judge/"):
            verdict = choose.choice(["pass", "pass", "change", "move", "route", "drop", "refuse"])
        delayed = choose.random() < 0.1
        payload = f"{self.name}:{len(self.sent)}:{verdict}".encode()
        qos = choose.randrange(3)
        message = Sent(payload, topic, verdict, qos, delayed)
        self.sent.append(message)
        self.open.append(message)
        packet_id = self.client.next_id() if qos else 0
        if qos:
            self.waiting[packet_id] = message
        name = "$delayed/1/" + name if delayed else name
        retain = choose.random() < 0.1
        if self.version == 5 and choose.random() < 0.3:
            known = name in self.aliases
            alias = self.aliases.setdefault(name, len(self.aliases) + 1)
            name = "" if known else name
            return publish(name, payload, qos, packet_id, 5, retain=retain, topic_alias=alias)
        return publish(name, payload, qos, packet_id, self.version, retain=retain)

    def settle(self) -> None:
        """Until all is answered, as it must be."""
        self.client.send(PING)
        self.pings += 1
        while self.pings or self.waiting:
            packet = self.client.receive()
            if packet.kind in (PUBACK, PUBREC):
                self.answered(packet)
            elif packet.kind == PUBCOMP:
                assert packet.reason == 0
                del self.waiting[packet.packet_id]
            else:
                assert packet.raw == b"\xd0\x00"
                self.pings -= 1
        for message in self.open:
            message.sure = True
        self.open.clear()

    def answered(self, packet: Packet) -> None:
        message = self.waiting[packet.packet_id]
        assert packet.kind == (PUBACK if message.qos == 1 else PUBREC)
        assert packet.reason == (REASONS[message.verdict] if self.version == 5 else 0), (packet, message)
        message.answered = True
        if packet.kind == PUBREC and packet.reason < 0x80:
            self.client.send(acknowledge(PUBREL, packet.packet_id))
        else:
            del self.waiting[packet.packet_id]


class Receiver:
    """Gets everything, until it gets the end."""

    def __init__(self, broker: Broker) -> None:
        self.client = connected(broker)
        self.client.subscribe("#", 2)
        self.came: list[tuple[str, bytes]] = []

    def act(self) -> None:
        while not self.came or self.came[-1][0] != "end":
            packet = self.client.receive()
            assert packet.kind == PUBLISH, packet
            self.client.acknowledge(packet)
            self.came.append((packet.topic, packet.payload))


def check(publishers: list[Publisher], came: list[tuple[str, bytes]]) -> None:
    """What came against what was sent."""
    routed = [payload for topic, payload in came if topic == "routed"]
    by_sender: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    for topic, payload in came:
        if topic not in ("routed", "end"):
            by_sender[payload.decode().split(":")[0]].append((topic, payload))
    for each in publishers:
        found = by_sender[each.name]
        assert len(set(found)) == len(found), "none comes twice"
        possible = [message.arrives for message in each.sent if message.arrives]
        assert set(found) <= set(possible), set(found) - set(possible)
        owed = {message.arrives for message in each.sent if message.sure} - {None}
        assert owed <= set(found), owed - set(found)
        late = {message.arrives for message in each.sent if message.delayed}
        places = {message.arrives: place for place, message in enumerate(each.sent) if message.arrives}
        order = [places[message] for message in found if message not in late]
        assert order == sorted(order), "they come in their order"
        wanted = [message.payload for message in each.sent if message.verdict == "route" and message.sure]
        mine = [payload for payload in routed if payload.startswith(each.name.encode() + b":")]
        assert set(wanted) <= set(mine)


def others(choose: random.Random, config: Config, rules: Path) -> Iterator[Config]:
    """Configurations that mean the same; the file of rules changes as well."""
    while True:
        count = choose.randrange(3)
        plugins = tuple(PluginConfig(name="extra", batch_max=1 + number) for number in range(count))
        fresh = rules.with_suffix(".new")  # so that nobody reads half of it
        fresh.write_text(RULES + (OTHER_RULES.format(choose.random()) if choose.random() < 0.5 else ""))
        fresh.rename(rules)
        yield config.model_copy(update={"plugins": plugins})


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
async def test_what_becomes_of_each_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    rules, choose = tmp_path / "topics.toml", random.Random(seed)
    rules.write_text(RULES)
    config = Config(
        host="127.0.0.1",
        port=0,
        reactors=2,
        sys_interval_s=0,
        store=choose.choice(["memory", "sqlite"]),
        data=tmp_path / "data",
        topic_rules_file=rules,
        fault_lines_max=1,
    )
    monkeypatch.setattr("tidemq.broker.own_plugins.find_provider", lambda *_: Extra())
    plugins = [
        Plugin(Judge(choose)),
        Plugin(Flaky(choose), timeout_s=0.05, on_failure="pass", failures_max=3, open_s=0.1),
        Plugin(Wall(), timeout_s=0.05, failures_max=2, open_s=0.2),
    ]
    found = config

    def make() -> tuple[Receiver, list[Publisher]]:
        return Receiver(broker), [Publisher(broker, number, seed) for number in range(4)]

    async with Broker(config, plugins=plugins, reread=lambda: found) as broker:
        receiver, publishers = await asyncio.to_thread(make)
        with ThreadPoolExecutor(len(publishers) + 1) as pool:
            loop = asyncio.get_running_loop()
            receiving = loop.run_in_executor(pool, receiver.act)
            acting = [loop.run_in_executor(pool, each.act, 12) for each in publishers]
            changes = others(choose, config, rules)
            while not all(each.done() for each in acting):
                found = next(changes)
                assert (await broker.reload())["plugins"] == ""
                await asyncio.wait(acting, timeout=choose.uniform(0.01, 0.2))
            await asyncio.gather(*acting)
            owed = {each.arrives for one in publishers for each in one.sent if each.sure} - {None}
            await asyncio.to_thread(wait_until, lambda: owed <= set(receiver.came), "what is owed has come")
            await broker.publish("end", b"", qos=1)
            await asyncio.wait_for(receiving, WAIT_S)
        check(publishers, receiver.came)
        counters = broker.counters()
        assert counters["faults"] == 0
    assert "left objects behind" not in caplog.text
