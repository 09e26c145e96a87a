"""The largest packet that is allowed goes whole to many; one byte more ends the connection that sends it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from conformance.kit import connected
from conformance.packets import PUBACK, PUBLISH, acknowledge, publish

if TYPE_CHECKING:
    from adversity.conftest import StartEngine

PACKET_MAX = 1 << 20
RECEIVERS = 50


@pytest.mark.parametrize("reactors", [1, 2])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_largest_payload_to_fifty_subscribers(start_engine: StartEngine, reactors: int, qos: int) -> None:
    engine = start_engine(reactors, packet_bytes_max=PACKET_MAX)
    receivers = [connected(engine, 4 + index % 2) for index in range(RECEIVERS)]
    for receiver in receivers:
        receiver.subscribe("large", 1)
    publisher = connected(engine)
    block = hashlib.sha256(b"large").digest()
    payload = (block * (PACKET_MAX // 32))[: PACKET_MAX - len(publish("large", b"", qos, 1)) - 2]
    data = publish("large", payload, qos, 1)
    assert len(data) == PACKET_MAX
    publisher.send(data)
    for receiver in receivers:
        message = receiver.expect(PUBLISH, topic="large", qos=qos)
        assert message.payload == payload
        if qos:
            receiver.send(acknowledge(PUBACK, message.packet_id))
        receiver.ping()
    if qos:
        publisher.expect(PUBACK, packet_id=1, reason=0)
    assert engine.count("dropped_slow_consumer") == 0
    assert engine.count("memory_messages") == 0


def test_one_byte_more_is_too_large(start_engine: StartEngine) -> None:
    engine = start_engine(1, packet_bytes_max=PACKET_MAX)
    publisher = connected(engine)
    size = PACKET_MAX - len(publish("large", b"")) - 2
    publisher.send(publish("large", bytes(size + 1))[:1000])  # its header says enough
    publisher.expect_closed(0x95)
