"""A publisher without subscriptions moves to the reactor of its receivers; only a counter shows it."""

from __future__ import annotations

import pytest
from adversity.conftest import StartEngine
from conformance.kit import Client
from conformance.packets import PUBACK, PUBLISH, publish

MESSAGES = 3000


@pytest.mark.parametrize("qos", [0, 1])
def test_a_publisher_moves_and_keeps_its_order(start_engine: StartEngine, qos: int) -> None:
    """Order is kept over the move, on both reactors, and the session is found where it has gone to."""
    engine = start_engine(2)
    receiver = engine.connected_on(1)
    receiver.subscribe("far", 0)
    publisher = engine.connected_on(0, client_id="mover", clean=False, session_expiry=100)
    for number in range(0, MESSAGES, 100):
        publisher.send(
            *(publish("far", b"%d" % n, qos, n + 1 if qos else 0) for n in range(number, number + 100))
        )
        for n in range(number, number + 100):
            receiver.expect(PUBLISH, payload=b"%d" % n)
            if qos:
                publisher.expect(PUBACK, packet_id=n + 1)
    assert engine.count("publishers_moved") == 1
    again = Client(engine.port)
    assert again.connect("mover", clean=False).session_present
    assert publisher.receive().reason == 0x8E
    again.publish("far", b"back", 1)
    receiver.expect_message("far", b"back")


def test_a_subscriber_stays(start_engine: StartEngine) -> None:
    """Others have mail on its way to a client with a subscription: it stays where it is."""
    engine = start_engine(2)
    receiver = engine.connected_on(1)
    receiver.subscribe("far")
    publisher = engine.connected_on(0)
    publisher.subscribe("elsewhere")
    publisher.send(*(publish("far", b"%d" % n, 0, 0) for n in range(MESSAGES)))
    for n in range(MESSAGES):
        receiver.expect(PUBLISH, payload=b"%d" % n)
    assert engine.count("publishers_moved") == 0
