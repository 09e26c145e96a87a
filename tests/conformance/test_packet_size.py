"""Maximum packet size, of clients and of the broker."""

from __future__ import annotations

import contextlib

import pytest
from conformance.kit import Client, ConnectionEnded, connected, kept, unique
from conformance.packets import PING, PUBLISH, publish, subscribe, varint
from conftest import RunningBroker


def exact(topic: str, size: int, qos: int = 0) -> bytes:
    """A payload that makes the outgoing PUBLISH exactly `size` bytes long."""
    payload = size - len(publish(topic, b"", qos, 1))
    while len(publish(topic, bytes(payload), qos, 1)) > size:
        payload -= 1
    assert len(publish(topic, bytes(payload), qos, 1)) == size
    return bytes(payload)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [100, 1000])
def test_too_large_for_the_client(broker: RunningBroker, qos: int, size: int) -> None:
    """The largest packet that fits comes; one byte more doesn't, and doesn't block what follows.
    [MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    topic, sender = unique("t/"), connected(broker)
    small, large = connected(broker, packet_max=size), connected(broker)
    for receiver in (small, large):
        receiver.subscribe(topic, qos)
    fits, too_large = exact(topic, size, qos), exact(topic, size + 1, qos)
    for payload in (too_large, fits, too_large, b"last"):
        sender.publish(topic, payload, qos)
    for payload in (fits, b"last"):
        small.expect_message(topic, payload, qos)
    small.expect_nothing(0.05)
    for payload in (too_large, fits, too_large, b"last"):
        large.expect_message(topic, payload, qos)


def test_dropped_ones_leave_no_trace(broker: RunningBroker) -> None:
    """They take none of the receive maximum, and don't come to a later connection that could take them.
    [MQTT-3.1.2-25]"""
    topic, sender = unique("t/"), connected(broker)
    client = connected(broker, packet_max=100, receive_max=2, **kept(5))
    client.subscribe(topic, 1)
    for _ in range(5):
        sender.publish(topic, bytes(200), 1)
    for number in range(5):
        sender.publish(topic, b"%d" % number, 1)
    for number in range(5):
        client.expect_message(topic, b"%d" % number, 1)
    client.ping()
    client.drop()
    connected(broker, client_id=client.client_id, **kept(5)).expect_nothing()


def test_queued_ones_are_measured_when_sent(broker: RunningBroker) -> None:
    """The limit is that of the connection on which a message is sent. [MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    topic, sender = unique("t/"), connected(broker)
    client = connected(broker, **kept(5))
    client.subscribe(topic, 1)
    client.disconnect()
    sender.publish(topic, bytes(200), 1)
    sender.publish(topic, b"small", 1)
    client = connected(broker, client_id=client.client_id, packet_max=100, **kept(5))
    client.expect_message(topic, b"small", 1)
    client.expect_nothing()


def test_properties_count(broker: RunningBroker) -> None:
    """[MQTT-3.1.2-24]"""
    topic, sender = unique("t/"), connected(broker)
    client = connected(broker, packet_max=100)
    client.subscribe(topic, 1, subscription_id=1)
    sender.publish(topic, b"x", 1, user=[("k" * 50, "v" * 50)])
    sender.publish(topic, b"y", 1)
    client.expect_message(topic, b"y", 1)


def test_retained_one_too_large(broker: RunningBroker) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    topic, sender = unique("t/"), connected(broker)
    sender.publish(f"{topic}/large", bytes(500), 1, retain=True)
    sender.publish(f"{topic}/small", b"x", 1, retain=True)
    client = connected(broker, packet_max=200)
    client.subscribe(f"{topic}/#", 1)
    client.expect_message(f"{topic}/small", b"x", 1, retain=True)
    client.expect_nothing()


def announced(broker: RunningBroker) -> int:
    client = Client(broker.port)
    most = client.connect().get("packet_max")
    if most is None:
        pytest.skip("this broker announces no maximum packet size")
    found: int = int(most)
    return found


@pytest.mark.parametrize("version", [4, 5])
def test_largest_for_the_broker(broker: RunningBroker, version: int) -> None:
    """Exactly the announced size is accepted. [MQTT-3.2.2-8]"""
    most, topic = announced(broker), unique("t/")
    payload = bytes(most - len(publish(topic, bytes(most - 100), 1, 1, version)) + most - 100)
    assert len(publish(topic, payload, 1, 1, version)) == most
    client = connected(broker, version)
    client.publish(topic, payload, 1)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_too_large_for_the_broker(broker: RunningBroker, version: int) -> None:
    """Refused by its header, before the rest is there: DISCONNECT 0x95. [MQTT-4.13.1-1] [MQTT-3.14.4-2]
    [3.1.1 MQTT-4.8.0-1]"""
    most = announced(broker)
    for size in (most + 1 - 4, 268_435_455):
        client = connected(broker, version)
        client.send(b"\x30" + varint(size) + b"\x00\x01t")
        client.expect_closed(0x95)


def test_too_large_first_packet(broker: RunningBroker) -> None:
    """A first packet as large as can be is not waited for. [MQTT-3.1.0-1]"""
    client = Client(broker.port)
    client.send(b"\x10" + varint(268_435_455) + b"\x00\x04MQTT")
    client.expect_closed()


def test_messages_that_fit(broker: RunningBroker) -> None:
    """A client with a large maximum gets large messages whole."""
    topic, client = unique("t/"), connected(broker, packet_max=0xFFFFFFFF)
    client.subscribe(topic)
    connected(broker).publish(topic, bytes(500_000))
    assert len(client.expect(PUBLISH, topic=topic).payload) == 500_000


def test_large_packets_behind_each_other(broker: RunningBroker) -> None:
    """Where one ends and the next begins makes no difference."""
    topic, receiver, sender = unique("t/"), connected(broker), connected(broker)
    receiver.subscribe(topic, 1)
    payloads = [bytes([number]) * 300_000 for number in range(4)]
    sender.send(*(publish(topic, payload, 1, 1 + number) for number, payload in enumerate(payloads)))
    for payload in payloads:
        receiver.expect_message(topic, payload, 1)


def test_topic_aliases_count(broker: RunningBroker) -> None:
    """A message that fits only without a topic alias comes without one, or not at all. [MQTT-3.1.2-24]"""
    topic, sender = unique("t/"), connected(broker)
    client = connected(broker, packet_max=100, topic_alias_max=10)
    client.subscribe(f"{topic}/#")
    for number in range(10):
        sender.publish(f"{topic}/{number}", exact(f"{topic}/{number}", 91 + number))
    sender.publish(f"{topic}/end", b"end")
    while (message := client.expect(PUBLISH)).payload != b"end":
        assert len(message.raw) <= 100


def test_acknowledgements_count(broker: RunningBroker) -> None:
    """A SUBACK that the client does not want to take is not sent to it. [MQTT-3.1.2-24]"""
    client = connected(broker, packet_max=20)
    client.send(subscribe(1, *((f"t/{number}", 0) for number in range(50))), PING)
    with contextlib.suppress(ConnectionEnded):
        while (packet := client.receive()).raw != b"\xd0\x00":
            assert len(packet.raw) <= 20
