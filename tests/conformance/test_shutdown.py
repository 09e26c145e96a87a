"""SIGTERM: the broker says goodbye, finishes its writes and ends with status 0."""

from __future__ import annotations

import time

from conformance.kit import connected, unique
from conformance.packets import PUBLISH, publish
from conftest import StartBroker
from waiting import LATE_S


def test_goodbye(start_broker: StartBroker) -> None:
    """5.0 clients get DISCONNECT 0x8B, 3.x clients a closed connection; messages sent before come first.
    [MQTT-3.14.4-1] [MQTT-3.14.4-2] [MQTT-3.14.2-1] [MQTT-3.14.2-2]"""
    broker = start_broker(reactors=2)
    topic, sender = unique("t/"), connected(broker)
    receivers = [connected(broker, version) for version in (3, 4, 5)]
    for receiver in receivers:
        receiver.subscribe(topic)
    count = 2000
    sender.send(*(publish(topic, b"%d" % number) for number in range(count)))
    sender.ping()
    since = time.monotonic()
    assert broker.stop() == 0
    assert time.monotonic() - since < LATE_S
    sender.expect_closed(0x8B)
    for receiver in receivers:
        for number in range(count):
            receiver.expect(PUBLISH, payload=b"%d" % number)
        receiver.expect_closed(0x8B)


def test_restart(start_broker: StartBroker) -> None:
    """It serves and ends well, also the second time."""
    for _ in range(2):
        broker = start_broker()
        connected(broker).ping()
        assert broker.stop() == 0
