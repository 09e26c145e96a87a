"""Above the memory ceiling publishers are held; they go on when there is room, and are refused when there is
none.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, Silence, connected
from conformance.packets import PUBACK, PUBLISH, acknowledge, publish

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine

CEILING = 3_000_000
PAYLOAD = bytes(10_000)


def fill(engine: EngineUnderTest, publisher: Client) -> tuple[int, int]:
    """Publishes until the ceiling holds it; returns how many messages were sent and acknowledged."""
    sent = acknowledged = 0
    while not engine.count("publishers_paused"):
        sent += 1
        assert sent < 5000, "nobody holds the publisher"
        publisher.send(publish("t", b"%d " % sent + PAYLOAD, 1, sent))
        while acknowledged < sent and not engine.count("publishers_paused"):
            with contextlib.suppress(Silence):
                acknowledged = publisher.receive(0.05).packet_id
    return sent, acknowledged


@pytest.mark.parametrize("place", [0, 1])
def test_publishers_are_held_and_go_on(start_engine: StartEngine, place: int) -> None:
    engine = start_engine(2, memory_bytes_max=CEILING, output_high_bytes=1 << 30, backpressure_s=30)
    receiver = engine.connected_on(place)
    receiver.subscribe("t", 1)
    publisher = engine.connected_on(0)
    sent, acknowledged = fill(engine, publisher)
    assert engine.count("memory_messages") + engine.count("memory_buffers") > CEILING
    for number in range(sent + 1, sent + 11):
        publisher.send(publish("t", b"%d " % number + PAYLOAD, 1, number))
    with contextlib.suppress(Silence):
        while True:
            acknowledged = publisher.receive(0.3).packet_id
    assert acknowledged <= sent
    for number in range(1, sent + 11):
        message = receiver.expect(PUBLISH)
        assert int(message.payload.split()[0]) == number
        receiver.send(acknowledge(PUBACK, message.packet_id))
    for number in range(acknowledged + 1, sent + 11):
        publisher.expect(PUBACK, packet_id=number, reason=0)
    assert engine.count("dropped_memory") == 0


def test_what_there_is_no_room_for_is_refused_after_the_pause(start_engine: StartEngine) -> None:
    engine = start_engine(1, memory_bytes_max=CEILING, output_high_bytes=1 << 30, backpressure_s=1)
    receiver, publisher, old = connected(engine), connected(engine), connected(engine, 4)
    receiver.subscribe("t", 1)
    sent, acknowledged = fill(engine, publisher)
    publisher.send(publish("t", PAYLOAD, 1, sent + 1))
    while (puback := publisher.expect(PUBACK)).reason == 0:
        acknowledged = puback.packet_id
    assert puback.reason == 0x97
    old.send(publish("t", PAYLOAD, 1, 1, version=4), publish("t", PAYLOAD, 1, 2, version=4))
    old.expect(PUBACK, packet_id=1)  # it was held only then
    old.expect_closed()  # 3.1.1 has no reason code: the message stays the client's
    assert engine.count("dropped_memory") == sent + 2 - acknowledged
    for _ in range(acknowledged + 1):
        message = receiver.expect(PUBLISH)
        receiver.send(acknowledge(PUBACK, message.packet_id))
    receiver.expect_nothing(0.3)  # for longer than it takes until the room is noticed
    while puback.packet_id < sent + 1:
        puback = publisher.expect(PUBACK, reason=0x97)
    publisher.send(publish("t", b"there is room again", 1, 1))
    publisher.expect(PUBACK, packet_id=1, reason=0)
    receiver.expect_message("t", b"there is room again", 1)
