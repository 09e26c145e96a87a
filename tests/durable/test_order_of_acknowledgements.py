"""Acknowledgements stand in one line for each publisher, and in no other: who waits for nothing is not held
up by who does.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import PING, PINGRESP, PUBACK, PUBREC, publish
from waiting import WAIT_S, wait_until

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server


class SlowAnswers:
    """The keeper's access to the engine, which keeps back its answers about all works up to `let_go`."""

    def __init__(self, access: Any) -> None:
        self._access = access
        self._lock = threading.Lock()  # what was kept back goes before what comes meanwhile
        self.holds = False
        self.held: list[tuple[Any, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._access, name)

    def answer(self, work: Any, reason: int = 0) -> None:
        with self._lock:
            if self.holds:
                self.held.append((work, reason))
            else:
                self._access.answer(work, reason)

    def let_go(self) -> None:
        with self._lock:
            self.holds = False
            for work, reason in self.held:
                self._access.answer(work, reason)
            self.held.clear()


@pytest.fixture
def server(servers: Servers) -> Server:
    return servers("memory", 2)


def slow_down(server: Server) -> SlowAnswers:
    """From now on the second reactor, as it were, is slow to answer the first. What the first has recorded
    before is in the store by then: a reactor's sections are answered in their order.
    """
    server.connected_on(0).publish("settled", b"", 1, retain=True)
    server.keeper._access = slow = SlowAnswers(server.keeper._access)  # type: ignore[assignment]
    return slow


def wait_for_held(server: Server, rows: int) -> None:
    """Waits until the store has so many rows of queues, and the keeper has said so, as it thinks."""
    server.wait_for_rows("queue", rows)
    server.keeper.ask(lambda: None).result(WAIT_S)


def leave_session(server: Server, reactor: int, topic: str) -> None:
    """At QoS 1, for then its own reactor writes the row, of a message of QoS 2 too."""
    client = server.connected_on(reactor, **kept(5))
    client.subscribe(topic, 1)
    client.disconnect()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_waits_for_its_own_receivers_alone(server: Server, qos: int) -> None:
    """The one's receiver is on a reactor that does not get round to it, the other's is here."""
    leave_session(server, 0, "here")
    leave_session(server, 1, "there")
    waiting, other = server.connected_on(0, **kept(5)), server.connected_on(0, **kept(5))
    slow = slow_down(server)
    slow.holds = True
    waiting.send(publish("there", b"", qos, 1), PING)
    waiting.expect(PINGRESP)
    wait_for_held(server, 1)
    slow.holds = False
    answer = PUBACK if qos == 1 else PUBREC
    other.send(publish("nobody", b"", qos, 6), publish("here", b"", qos, 7))
    other.expect(answer, packet_id=6)
    other.expect(answer, packet_id=7)
    waiting.expect_nothing()
    slow.let_go()
    waiting.expect(answer, packet_id=1)


def test_each_publisher_keeps_its_own_order(server: Server) -> None:
    """What it is owed for a message that is kept stays behind what it is owed for one that is not
    [MQTT-4.6.0-2].
    """
    leave_session(server, 0, "here")
    leave_session(server, 1, "there")
    publishers = [server.connected_on(0) for _ in range(3)]
    slow = slow_down(server)
    slow.holds = True
    for publisher in publishers:
        publisher.send(publish("there", b"", 1, 1), PING)
        publisher.expect(PINGRESP)
    wait_for_held(server, 3)
    slow.holds = False
    for publisher in publishers:
        publisher.send(publish("here", b"", 1, 2), publish("nobody", b"", 1, 3))
    other = server.connected_on(0)
    other.publish("here", b"", 1)
    publishers[0].drop()
    for publisher in publishers[1:]:
        publisher.expect_nothing()
    slow.let_go()
    for publisher in publishers[1:]:
        for packet_id in (1, 2, 3):
            publisher.expect(PUBACK, packet_id=packet_id)
        publisher.ping()


def test_many_publishers_come_and_go(server: Server) -> None:
    """Whoever has gone, its place serves others, and all that is left gets what it is owed, in order."""
    leave_session(server, 0, "here")
    leave_session(server, 1, "there")
    slow = slow_down(server)
    for round_ in range(6):
        clients: list[Client] = [connected(server) for _ in range(12)]
        slow.holds = True
        for at, client in enumerate(clients):
            topics = ("there", "here", "nobody") if at % 2 else ("here", "there", "nobody")
            client.send(*(publish(topic, b"", 1, 1 + i) for i, topic in enumerate(topics * 5)), PING)
            client.expect(PINGRESP)
        wait_until(lambda: slow.held, "the work is done, of which nobody is told")
        for client in clients[round_ % 3 :: 3]:
            client.drop()
        slow.let_go()
        for at, client in enumerate(clients):
            if at % 3 != round_ % 3:
                for packet_id in range(1, 16):
                    client.expect(PUBACK, packet_id=packet_id)
                client.disconnect()
