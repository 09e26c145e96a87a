"""A random mixed load, the same for the same seed: sessions that come, go, acknowledge some and end;
publishers of every QoS; messages that fan out, expire, are retained; restarts in between.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from conformance.kit import Client, ConnectionEnded, Silence, connected, unique
from conformance.packets import (
    CONNACK,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    Packet,
    Will,
    acknowledge,
    publish,
    subscribe,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable.server import Server

TOPICS = ("a", "b", "a/b", "c")
FILTERS = ("a", "b", "#", "a/#", "+", "$share/g/#", "$share/g/a", "$share/h/b")
SETTLE_S = 10.0


class Session:
    """A durable client, connected or not; it acknowledges what it feels like."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self.server = server
        self.chance = chance
        self.client_id = unique("load")
        self.client: Client | None = None
        self.ids = 0

    def come(self) -> None:
        if self.client is None:
            will = Will("a", b"will", self.chance.randrange(3)) if self.chance.random() < 0.3 else None
            receive_max = self.chance.choice([1, 3, 100])
            self.client = self.server.back_or_new(self.client_id, will=will, receive_max=receive_max)

    def go(self) -> None:
        if self.client is not None:
            if self.chance.random() < 0.5:
                self.client.drop()
            else:
                self.client.send(b"\xe0\x00")
                self.client.drop()
            self.client = None

    def end(self) -> None:
        """The session goes, with all that it had."""
        self.go()
        client = Client(self.server.port)
        client.connect(self.client_id, clean=True)
        client.disconnect()

    def subscribe(self) -> None:
        self.come()
        assert self.client is not None
        options = self.chance.choice([0, 1, 2, 2, 8 | 2])
        named: dict[str, Any] = (
            {"subscription_id": self.chance.randrange(1, 1000)} if self.chance.random() < 0.5 else {}
        )
        self.ids += 1
        self.client.send(subscribe(self.ids, (self.chance.choice(FILTERS), options), **named))
        self.handle_until(lambda packet: packet.kind == SUBACK)

    def publish(self) -> None:
        """A message of any kind, whose handshake may end in the middle."""
        self.come()
        assert self.client is not None
        qos = self.chance.choice([0, 1, 1, 2, 2])
        named: dict[str, Any] = (
            {"message_expiry": self.chance.choice([1000, 2000])} if self.chance.random() < 0.4 else {}
        )
        payload = self.chance.randbytes(self.chance.choice([0, 1, 10, 100, 5000]))
        self.ids += 1
        retain = self.chance.random() < 0.15
        topic = self.chance.choice(TOPICS)
        self.client.send(publish(topic, payload, qos, self.ids, retain=retain, **named))
        if qos and self.chance.random() < 0.9:
            self.handle_until(lambda packet: packet.kind in (PUBACK, PUBREC))
        if qos == 2 and self.chance.random() < 0.9:
            self.client.send(acknowledge(PUBREL, self.ids))

    def receive(self) -> None:
        """Some of what waits."""
        self.come()
        assert self.client is not None
        for _ in range(self.chance.randrange(20)):
            try:
                self.handle(self.client.receive(0.002), self.chance.random() < 0.8)
            except Silence:
                return

    def handle_until(self, wanted: Callable[[Packet], bool]) -> None:
        assert self.client is not None
        while not wanted(packet := self.client.receive()):
            self.handle(packet, self.chance.random() < 0.8)

    def handle(self, packet: Packet, acknowledged: bool = True) -> None:
        """What a client does with a packet; `acknowledged`: unless it does not care."""
        assert self.client is not None
        assert packet.kind not in (CONNACK, SUBACK)
        if packet.kind == PUBLISH and packet.qos and acknowledged:
            self.client.send(acknowledge(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
        elif packet.kind == PUBREL and acknowledged:
            self.client.send(acknowledge(PUBCOMP, packet.packet_id))

    def settle(self) -> None:
        """Comes anew, so that all that was not acknowledged is sent again, and acknowledges everything that
        comes at once."""
        self.go()
        self.client = self.server.back_or_new(self.client_id)


def run_load(servers: Callable[..., Server], server: Server, seed: int, steps: int, restarts: bool) -> Server:
    """Runs so many random steps; the server that runs in the end, with its sessions connected or not."""
    chance = random.Random(seed)
    sessions = [Session(server, chance) for _ in range(5)]
    for session in sessions:
        session.subscribe()
    acts = (Session.publish, Session.receive, Session.come, Session.go, Session.subscribe, Session.end)
    weights = (60, 20, 10, 10, 5, 2)
    for _ in range(steps):
        session = chance.choice(sessions)
        try:
            chance.choices(acts, weights)[0](session)
        except ConnectionEnded:
            session.client = None  # by a restart
        if restarts and chance.random() < 0.02:
            server = servers.restart(server, chance.random() < 0.5)  # type: ignore[attr-defined]
            for each in sessions:
                each.server, each.client = server, None
    settle_all(server, sessions)
    end_all(server, sessions)
    return server


def settle_all(server: Server, sessions: list[Session]) -> None:
    """Every message is delivered and acknowledged, of every session."""
    for session in sessions:
        session.settle()
    deadline = time.monotonic() + SETTLE_S
    while left := {name for name in server.left() if name != "received"}:
        assert time.monotonic() < deadline, f"still there: {server.left()} {left}"
        for session in sessions:
            try:
                while session.client is not None:
                    session.handle(session.client.receive(0.005))
            except Silence:
                continue


def end_all(server: Server, sessions: list[Session]) -> None:
    """Every session ends, and nothing stays retained."""
    for session in sessions:
        session.end()
    cleaner = connected(server)
    for topic in TOPICS:
        cleaner.publish(topic, b"", 1, retain=True)
    cleaner.disconnect()
