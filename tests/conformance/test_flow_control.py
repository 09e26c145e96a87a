"""Flow control: the receive maximum of both sides."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    acknowledge,
    publish,
    subscribe,
)
from conftest import RunningBroker


@pytest.mark.parametrize("most", [1, 3, 20])
@pytest.mark.parametrize("qos", [1, 2])
def test_towards_a_client(broker: RunningBroker, most: int, qos: int) -> None:
    """Never more than the client's receive maximum under way; each finished one lets one more through.
    [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]"""
    topic, count = unique("t/"), most * 3
    receiver, sender = connected(broker, receive_max=most), connected(broker)
    receiver.subscribe(topic, qos)
    for number in range(count):
        sender.publish(topic, b"%d" % number, qos)
    under_way = [receiver.expect(PUBLISH, payload=b"%d" % number) for number in range(most)]
    receiver.expect_nothing()
    for number in range(most, count):
        receiver.acknowledge(under_way.pop(0))
        under_way.append(receiver.expect(PUBLISH, payload=b"%d" % number))
        receiver.expect_nothing(0.01)


def test_pubrec_does_not_free_the_quota(broker: RunningBroker) -> None:
    """QoS 2 counts until PUBCOMP. [MQTT-3.3.4-9] [MQTT-4.9.0-2]"""
    topic = unique("t/")
    receiver, sender = connected(broker, receive_max=1), connected(broker)
    receiver.subscribe(topic, 2)
    for payload in (b"first", b"second"):
        sender.publish(topic, payload, 2)
    message = receiver.expect(PUBLISH, payload=b"first")
    receiver.send(acknowledge(PUBREC, message.packet_id))
    receiver.expect(PUBREL)
    receiver.expect_nothing()
    receiver.send(acknowledge(PUBCOMP, message.packet_id))
    receiver.expect(PUBLISH, payload=b"second")


def test_everything_else_goes_on(broker: RunningBroker) -> None:
    """With the quota used up: QoS 0, PINGRESP, SUBACK, and the client's own messages with their answers.
    [MQTT-3.3.4-10] [MQTT-4.9.0-3]"""
    topic = unique("t/")
    client, sender = connected(broker, receive_max=1), connected(broker)
    client.subscribe(f"{topic}/#", 1)
    for _ in range(3):
        sender.publish(f"{topic}/1", b"blocked", 1)
    client.expect(PUBLISH)
    client.ping()
    sender.publish(f"{topic}/0", b"passes", 0)
    client.expect_message(f"{topic}/0", b"passes", 0)
    client.send(subscribe(7, (unique("t/"), 0)))
    client.expect(SUBACK, packet_id=7)
    client.publish(unique("t/"), b"x", 1)
    client.publish(unique("t/"), b"x", 2)
    client.unsubscribe(f"{topic}/#")


def test_resumed_with_a_smaller_maximum(broker: RunningBroker) -> None:
    """What is sent again after a reconnection keeps to the new connection's receive maximum.
    [MQTT-3.3.4-9]"""
    topic = unique("t/")
    receiver, sender = connected(broker, receive_max=10, **kept(5)), connected(broker)
    receiver.subscribe(topic, 1)
    for number in range(10):
        sender.publish(topic, b"%d" % number, 1)
    for _ in range(10):
        receiver.expect(PUBLISH)
    receiver.drop()
    receiver = connected(broker, client_id=receiver.client_id, receive_max=2, **kept(5))
    under_way = [receiver.expect(PUBLISH, payload=b"%d" % number, dup=True) for number in range(2)]
    receiver.expect_nothing()
    for number in range(2, 10):
        receiver.acknowledge(under_way.pop(0))
        under_way.append(receiver.expect(PUBLISH, payload=b"%d" % number))


@pytest.mark.parametrize("version", [3, 4])
def test_old_clients_have_a_window_too(broker: RunningBroker, version: int) -> None:
    """Many messages for a 3.x client that acknowledges late all come, in order."""
    topic, count = unique("t/"), 2500
    receiver, sender = connected(broker, version), connected(broker, version)
    receiver.subscribe(topic, 1)
    for start in range(0, count, 100):
        numbers = range(start, start + 100)
        sender.send(*(publish(topic, b"%d" % number, 1, 1 + number, version) for number in numbers))
        for _ in numbers:
            sender.expect(PUBACK)
    for number in range(count):
        message = receiver.expect(PUBLISH, payload=b"%d" % number)
        receiver.send(acknowledge(PUBACK, message.packet_id))


def receive_max(broker: RunningBroker) -> int:
    client = Client(broker.port)
    found: int = int(client.connect().get("receive_max", 65535))
    return found


def test_towards_the_broker(broker: RunningBroker) -> None:
    """As many QoS 2 messages as announced may wait for PUBREL; one more is DISCONNECT 0x93.
    [MQTT-4.9.0-3] [MQTT-4.13.1-1] [MQTT-3.14.4-2]"""
    most, topic = receive_max(broker), unique("t/")
    if most == 65535:
        pytest.skip("the broker announces the largest receive maximum, which can't be exceeded")
    client = connected(broker)
    client.send(*(publish(topic, b"x", 2, packet_id) for packet_id in range(1, most + 1)))
    for packet_id in range(1, most + 1):
        assert client.expect(PUBREC, packet_id=packet_id).reason in (0, 0x10)
    client.ping()
    client.send(publish(topic, b"x", 2, most + 1))
    client.expect_closed(0x93)


def test_finished_ones_do_not_count(broker: RunningBroker) -> None:
    """[MQTT-4.9.0-3]"""
    most, topic, client = min(receive_max(broker), 2000), unique("t/"), connected(broker)
    for packet_id in range(1, most + 11):
        client.send(publish(topic, b"x", 2, packet_id), acknowledge(PUBREL, packet_id))
    for packet_id in range(1, most + 11):
        assert client.expect(PUBREC, packet_id=packet_id).reason in (0, 0x10)
        client.expect(PUBCOMP, packet_id=packet_id)


def test_qos_1_does_not_count_once_acknowledged(broker: RunningBroker) -> None:
    """QoS 1 is acknowledged at once, so that any number may come in one piece. [MQTT-4.9.0-3]"""
    topic, client = unique("t/"), connected(broker)
    count = min(receive_max(broker), 1000)
    for _ in range(3):
        client.send(*(publish(topic, b"x", 1, packet_id) for packet_id in range(1, count + 1)))
        for packet_id in range(1, count + 1):
            client.expect(PUBACK, packet_id=packet_id)


def test_resumed_with_handshakes_beyond_the_maximum(broker: RunningBroker) -> None:
    """PUBRELs that are due go out on a connection whose receive maximum is smaller than their number, and
    everything comes in the end. [MQTT-4.4.0-1] [MQTT-3.3.4-10]"""
    topic = unique("t/")
    receiver, sender = connected(broker, receive_max=4, **kept(5)), connected(broker)
    receiver.subscribe(topic, 2)
    for number in range(6):
        sender.publish(topic, b"%d" % number, 2)
    first = [receiver.expect(PUBLISH, payload=b"%d" % number) for number in range(4)]
    for message in first[1:3]:
        receiver.send(acknowledge(PUBREC, message.packet_id))
        receiver.expect(PUBREL, packet_id=message.packet_id)
    receiver.drop()
    receiver = connected(broker, client_id=receiver.client_id, receive_max=1, **kept(5))
    payloads: list[Any] = []
    released: list[Any] = []
    while len(payloads) < 4 or len(released) < 6:
        packet = receiver.receive()
        if packet.kind == PUBLISH:
            payloads.append(packet.payload)
            receiver.send(acknowledge(PUBREC, packet.packet_id))
        else:
            assert packet.kind == PUBREL
            released.append(packet.packet_id)
            receiver.send(acknowledge(PUBCOMP, packet.packet_id))
    assert payloads == [b"0", b"3", b"4", b"5"]
    receiver.expect_nothing()


def test_ended_with_handshakes_beyond_the_maximum(broker: RunningBroker) -> None:
    """A session may end while a PUBREL that is due waits behind messages for which there is no room."""
    topic = unique("t/")
    receiver, sender = connected(broker, receive_max=4, **kept(5)), connected(broker)
    receiver.subscribe(topic, 2)
    for number in range(4):
        sender.publish(topic, b"%d" % number, 2)
    last = [receiver.expect(PUBLISH, payload=b"%d" % number) for number in range(4)][3]
    receiver.send(acknowledge(PUBREC, last.packet_id))
    receiver.expect(PUBREL, packet_id=last.packet_id)
    receiver.drop()
    receiver = connected(broker, client_id=receiver.client_id, receive_max=1, **kept(5))
    receiver.expect(PUBLISH, payload=b"0", dup=True)
    receiver.expect_nothing()
    receiver.drop()
    connected(broker, client_id=receiver.client_id).expect_nothing()
