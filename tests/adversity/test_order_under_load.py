"""Messages of one publisher on one topic keep their order for every receiver, whatever happens meanwhile."""

from __future__ import annotations

import collections
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, connected
from conformance.packets import CONNACK, DISCONNECT, PUBACK, PUBLISH, acknowledge, connect, publish
from waiting import WAIT_S

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine

PUBLISHERS = 4
TOPICS = ("room/heat", "room/light", "hall/heat")
COUNT = 600  # messages of one publisher on one topic
PAYLOAD = bytes(400)
KEPT: dict[str, Any] = {"clean": False, "session_expiry": 100}

Seen = dict[tuple[int, str], list[int]]  # numbers in the order of arrival, by publisher and topic


def publish_numbers(publisher: Client, name: int, qos: int) -> None:
    """Publishes in bursts, every topic in turn."""
    publisher.socket.settimeout(WAIT_S)
    identifiers = itertools.count(1)
    for start in range(0, COUNT, 20):
        burst = [
            publish(topic, b"%d %d " % (name, number) + PAYLOAD, qos, next(identifiers) if qos else 0)
            for number in range(start, start + 20)
            for topic in TOPICS
        ]
        publisher.send(*burst)
        for _ in burst if qos else ():
            publisher.expect(PUBACK, reason=0)


def keep(seen: Seen, message: object) -> None:
    name, number, _ = message.payload.split(b" ", 2)  # type: ignore[attr-defined]
    seen.setdefault((int(name), message.topic), []).append(int(number))  # type: ignore[attr-defined]


class Receiver(threading.Thread):
    """Receives until it has everything at QoS 1, or until silence at QoS 0."""

    def __init__(self, engine: EngineUnderTest, index: int, qos: int) -> None:
        super().__init__()
        self.engine, self.qos = engine, qos
        self.name = f"receiver{index}"
        # on both reactors, or more: whatever the publishers' is, messages must be mailed
        self.client = engine.connected_on(index % 2, client_id=self.name, **KEPT)
        self.client.subscribe("+/heat", qos)
        self.client.subscribe("room/#", qos)  # overlaps: still one copy
        self.takeover_every = 300 if index == 0 and qos else 0
        self.pause_at = 500 if index == 1 else 0
        self.seen: Seen = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.receive_all()
        except BaseException as error:  # noqa: BLE001 (raised by who joins the thread)
            self.error = error

    def receive_all(self) -> None:
        received = 0
        while not self.complete():
            message = self.client.receive()
            assert message.kind == PUBLISH, message
            received += 1
            keep(self.seen, message)
            if message.qos:
                self.client.send(acknowledge(PUBACK, message.packet_id))
            if received == self.pause_at:
                self.engine.wait_for("publishers_paused")
            if self.takeover_every and received % self.takeover_every == 0:
                self.take_over()

    def complete(self) -> bool:
        last = [numbers[-1] for numbers in self.seen.values()]
        return len(last) == PUBLISHERS * len(TOPICS) and min(last) == COUNT - 1

    def take_over(self) -> None:
        """The same client on another connection; what the old one still got belongs in front."""
        newer = Client(self.engine.port)
        newer.send(connect(self.name, **KEPT))
        while (message := self.client.receive()).kind != DISCONNECT:
            keep(self.seen, message)
        newer.expect(CONNACK, reason=0, session_present=True)
        self.client = newer


@pytest.mark.parametrize("reactors", [2, 4])
@pytest.mark.parametrize("qos", [0, 1])
def test_order_per_publisher_and_topic(start_engine: StartEngine, reactors: int, qos: int) -> None:
    engine = start_engine(reactors, output_high_bytes=30_000, backpressure_s=30)
    receivers = [Receiver(engine, index, qos) for index in range(4)]
    publishers = [
        threading.Thread(target=publish_numbers, args=(connected(engine), name, qos))
        for name in range(PUBLISHERS)
    ]
    for thread in [*receivers, *publishers]:
        thread.start()
    for thread in [*publishers, *receivers]:
        thread.join()
    for receiver in receivers:
        if receiver.error:
            raise receiver.error
        for (name, topic), numbers in receiver.seen.items():
            first = list(dict.fromkeys(numbers))
            assert first == list(range(COUNT)), f"{receiver.name}: publisher {name} on {topic}"
            repeated = collections.Counter(numbers).most_common(1)[0][1] - 1
            assert repeated == 0 or receiver.takeover_every, f"{receiver.name}: {topic} came twice"
    assert engine.count("publishers_paused")
    assert engine.count("messages_mailed")
