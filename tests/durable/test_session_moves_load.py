"""Sessions move between nodes under load, in both directions, and nothing that was acknowledged is lost, and
nothing of QoS 2 comes twice.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, ConnectionEnded, Silence, kept
from conformance.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, acknowledge, publish
from waiting import WAIT_S, wait_until

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.nodes import Node

WINDOW = 10  # of a peer's messages that are not acknowledged


class Peer:
    """A client with a session: what it sends until it is acknowledged, what it has got, from connection to
    connection, on a thread of its own.
    """

    def __init__(self, name: str, topic: str = "", qos: int = 1) -> None:
        self.name = name
        self.topic = topic
        self.qos = qos
        self.got: Counter[bytes] = Counter()
        self.sent: dict[bytes, float] = {}
        self.acknowledged: dict[bytes, float] = {}
        self.sending = bool(topic)
        self.ending = threading.Event()
        self._out: dict[int, bytes | None] = {}  # by packet identifier; None: released
        self._held: set[int] = set()  # of messages of QoS 2 that came and are not released
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether all that it has sent is acknowledged, and it sends nothing more."""
        return not self.sending and not self._out

    def come(self, node: Node, *filters: str) -> None:
        """Connects to a node, and goes on where it was; returns with CONNACK."""
        self.wait()
        client = Client(node.port)
        client.connect(self.name, **kept(5))
        for name in filters:
            client.subscribe(name, 2)
        self._thread = threading.Thread(target=self._run, args=(client,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until its connection has ended."""
        if self._thread is not None:
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive(), f"{self.name} goes on"
            assert self.failure is None, self.failure

    def end(self) -> None:
        self.ending.set()
        self.wait()

    def _run(self, client: Client) -> None:
        try:
            with suppress(ConnectionEnded, OSError):
                for packet_id, payload in self._out.items():
                    self._send(client, packet_id, payload, dup=True)
                while not self.ending.is_set():
                    self._turn(client)
            client.socket.close()
        except BaseException as error:  # noqa: BLE001 - the test's thread says so
            self.failure = error

    def _turn(self, client: Client) -> None:
        while self.sending and len(self._out) < WINDOW:
            number = next(self._numbers)
            payload = b"%s-%d" % (self.name.encode(), number)
            packet_id = number % 60000 + 1
            self._out[packet_id] = payload
            self.sent[payload] = time.monotonic()
            self._send(client, packet_id, payload, dup=False)
        with suppress(Silence):
            packet = client.receive(0.02)
            if packet.kind == PUBLISH:
                self._take(client, packet.packet_id, packet.qos, packet.payload)
            elif packet.kind == PUBREL:
                self._held.discard(packet.packet_id)
                client.send(acknowledge(PUBCOMP, packet.packet_id))
            elif packet.kind == PUBREC:
                self._note(packet.packet_id)
                self._out[packet.packet_id] = None
                client.send(acknowledge(PUBREL, packet.packet_id))
            elif packet.kind in (PUBACK, PUBCOMP):
                self._note(packet.packet_id)
                self._out.pop(packet.packet_id, None)

    def _send(self, client: Client, packet_id: int, payload: bytes | None, *, dup: bool) -> None:
        if payload is None:
            client.send(acknowledge(PUBREL, packet_id))
        else:
            client.send(publish(self.topic, payload, self.qos, packet_id, dup=dup))

    def _note(self, packet_id: int) -> None:
        payload = self._out.get(packet_id)
        if payload is not None:
            self.acknowledged[payload] = time.monotonic()

    def _take(self, client: Client, packet_id: int, qos: int, payload: bytes) -> None:
        if qos == 1:
            self.got[payload] += 1
            client.send(acknowledge(PUBACK, packet_id))
        else:
            if packet_id not in self._held:
                self.got[payload] += 1
            self._held.add(packet_id)
            client.send(acknowledge(PUBREC, packet_id))


def missing(peer: Peer, publishers: list[Peer], since: float, until: float) -> set[bytes]:
    """What was sent and acknowledged within this time and has not come."""
    owed = {
        payload
        for publisher in publishers
        for payload, then in list(publisher.acknowledged.items())
        if publisher.sent[payload] > since and then < until
    }
    return owed - set(peer.got)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("reactors", [1, 2, 4])
def test_nothing_is_lost_or_comes_twice(servers: Servers, reactors: int, qos: int) -> None:
    nodes = [servers.node(reactors), servers.node(reactors)]
    publishers = [[Peer(f"p{at}-{each}", "t", 1 + each) for each in range(2)] for at in range(2)]
    collectors = [Peer(f"collector{at}") for at in range(2)]
    moving = Peer("moving", "u", qos)
    for at, node in enumerate(nodes):
        collectors[at].come(node, "u")
    moving.come(nodes[0], "t")
    windows = []
    for at, node in enumerate(nodes):
        for each in publishers[at]:
            each.come(node)
    since = time.monotonic()
    for turn in range(4):
        here, there = turn % 2, 1 - turn % 2
        before = moving.got.total() + 60
        wait_until(lambda before=before: moving.got.total() >= before, "messages have come")  # type: ignore[misc]
        windows.append((here, since, time.monotonic()))
        nodes[here].hand_over("moving", nodes[there])
        nodes[here].forget("moving")
        moving.come(nodes[there])
        since = time.monotonic()
    for each in [*publishers[0], *publishers[1], moving]:
        each.sending = False
    for at, begin, end in windows:
        wait_until(
            lambda at=at, begin=begin, end=end: not missing(moving, publishers[at], begin, end),  # type: ignore[misc]
            "all that was acknowledged has come",
        )
    wait_until(lambda: moving.is_done, "all that it sent is acknowledged")
    wait_until(
        lambda: not set(moving.sent) - set(collectors[0].got) - set(collectors[1].got), "others have it"
    )
    for peer in [moving, *collectors, *publishers[0], *publishers[1]]:
        peer.end()
    twice = [payload for payload, count in moving.got.items() if count > 1]
    assert not [payload for payload in twice if b"-1-" in payload]  # of the publishers at QoS 2
    if qos == 2:
        both = collectors[0].got + collectors[1].got
        assert not [payload for payload, count in both.items() if count > 1]
