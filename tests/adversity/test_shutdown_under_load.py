"""SIGTERM under load: what was accepted is delivered, everybody hears goodbye, and the status is 0."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, ConnectionEnded, connected
from conformance.packets import DISCONNECT, PUBACK, PUBLISH, acknowledge, publish
from waiting import WAIT_S

if TYPE_CHECKING:
    from adversity.conftest import StartEngine

PAYLOAD = bytes(300)


class Talker(threading.Thread):
    """A 5.0 client that publishes and receives until the broker ends; what came last is kept."""

    def __init__(self, broker: Any, publishes: bool) -> None:
        super().__init__()
        self.client = connected(broker)
        self.publishes = publishes
        self.last: Any = None
        self.acknowledged = self.received = 0
        if not publishes:
            self.client.subscribe("load", 1)

    def run(self) -> None:
        with pytest.raises(ConnectionEnded, match="rest ''"):  # not cut within a packet
            self.talk()

    def talk(self) -> None:
        number = 1
        while True:
            if self.publishes:
                try_to(self.client, *(publish("load", PAYLOAD, 1, number + each) for each in range(20)))
                number = number % 60_000 + 20
            for _ in range(20 if self.publishes else 1):
                self.last = self.client.receive()
                self.acknowledged += self.last.kind == PUBACK
                if self.last.kind == PUBLISH:
                    self.received += 1
                    try_to(self.client, acknowledge(PUBACK, self.last.packet_id))


def try_to(client: Client, *packets: bytes) -> None:
    """Sends to a broker that may have gone; what it said before is still to be read."""
    with contextlib.suppress(OSError):
        client.send(*packets)


@pytest.mark.parametrize("reactors", [1, 2])
def test_sigterm_under_load(start_broker: Callable[..., Any], reactors: int) -> None:
    broker = start_broker(reactors=reactors)
    talkers = [Talker(broker, publishes=index % 2 == 0) for index in range(8)]
    for talker in talkers:
        talker.start()
    deadline = time.monotonic() + 10
    while min(talker.acknowledged + talker.received for talker in talkers) < 500:
        assert time.monotonic() < deadline, "the load does not run"
        time.sleep(0.005)
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(WAIT_S) == 0
    for talker in talkers:
        talker.join()
        assert talker.last.kind == DISCONNECT, f"the last packet was {talker.last}"
        assert talker.last.reason == 0x8B


@pytest.mark.parametrize("version", [4, 5])
def test_what_was_written_is_sent_before_the_end(start_broker: Callable[..., Any], version: int) -> None:
    """A receiver that reads only after SIGTERM gets all: copied payloads and those sent from the message."""
    settings = "[limits]\noutput_high_bytes = 100_000_000\noutput_bytes_max = 200_000_000\n"
    broker = start_broker(settings, reactors=2)
    receiver, publisher = connected(broker, version), connected(broker)
    receiver.subscribe("t", 1)
    sizes = [100, 40_000, 900_000] * 8
    for number, size in enumerate(sizes):
        publisher.send(publish("t", bytes(size), 1, number + 1))
        publisher.expect(PUBACK, packet_id=number + 1)
    broker.process.send_signal(signal.SIGTERM)
    got = [len(receiver.expect(PUBLISH).payload) for _ in sizes]
    assert got == sizes
    if version == 5:
        assert receiver.receive().reason == 0x8B
    with pytest.raises(ConnectionEnded):
        receiver.receive()
    assert broker.process.wait(WAIT_S) == 0


def test_the_end_may_come_while_retained_messages_are_looked_through(start_engine: StartEngine) -> None:
    """For expired ones: some of very many a tick, the first time after five seconds."""
    engine = start_engine(1)
    began = time.monotonic()
    publisher = connected(engine)
    for first in range(0, 60_000, 500):
        numbers = range(first, first + 500)
        publisher.send(*(publish(f"retained/{number}", b"x", 0, retain=True) for number in numbers))
    publisher.ping()
    time.sleep(max(0.0, began + 6 - time.monotonic()))
    engine.close()
