"""SUBSCRIBE and UNSUBSCRIBE: answers, options, identifiers, overlapping and replaced subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.kit import connected, kept, unique
from conformance.packets import (
    PINGRESP,
    PUBACK,
    PUBLISH,
    PUBREL,
    SUBACK,
    UNSUBACK,
    acknowledge,
    options,
    publish,
    subscribe,
    unsubscribe,
)
from conftest import RunningBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])


@every_version
def test_suback(broker: RunningBroker, version: int) -> None:
    """Exact bytes: the packet identifier, and a code for each filter in their order.
    [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-3.9.3-2]
    [MQTT-2.2.1-6] [MQTT-3.2.2-10] [3.1.1 MQTT-3.8.4-1] [3.1.1 MQTT-3.8.4-2] [3.1.1 MQTT-3.8.4-4]
    [3.1.1 MQTT-3.8.4-5] [3.1.1 MQTT-3.9.3-1] [3.1.1 MQTT-3.9.3-2] [3.1.1 MQTT-2.3.1-7]"""
    client, topic = connected(broker, version), unique("t/")
    filters = [(f"{topic}/a", 1), (f"{topic}/b", 0), (f"{topic}/+", 2), (f"{topic}/#", 0), (f"{topic}/a", 2)]
    client.send(subscribe(0xABCD, *filters, version=version))
    codes = bytes([1, 0, 2, 0, 2])
    client.expect_bytes(b"\x90\x08\xab\xcd\x00" + codes if version == 5 else b"\x90\x07\xab\xcd" + codes)


@every_version
def test_unsuback(broker: RunningBroker, version: int) -> None:
    """Exact bytes, whether there were such subscriptions or not; 5.0 has a code for each filter.
    [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT-3.11.3-2] [MQTT-2.2.1-6]
    [3.1.1 MQTT-3.10.4-4] [3.1.1 MQTT-3.10.4-5] [3.1.1 MQTT-3.10.4-6] [3.1.1 MQTT-2.3.1-7]"""
    client, topic = connected(broker, version), unique("t/")
    client.subscribe(topic)
    client.send(unsubscribe(0xABCD, f"{topic}/x", topic, f"{topic}/y", topic, version=version))
    client.expect_bytes(b"\xb0\x07\xab\xcd\x00\x11\x00\x11\x11" if version == 5 else b"\xb0\x02\xab\xcd")
    client.publish(topic, b"x", 1)
    client.expect_nothing()


@every_version
def test_unsubscribe_compares_exactly(broker: RunningBroker, version: int) -> None:
    """A filter that only matches another is not this filter.
    [MQTT-3.10.4-1] [MQTT-3.10.4-2] [3.1.1 MQTT-3.10.4-1] [3.1.1 MQTT-3.10.4-2]"""
    client, topic = connected(broker, version), unique("t/")
    client.subscribe(f"{topic}/+", 1)
    client.unsubscribe(f"{topic}/#", f"{topic}/a", "#", f"{topic}/+/", f"{topic.upper()}/+")
    sender = connected(broker, version)
    sender.publish(f"{topic}/a", b"still", 1)
    client.expect_message(f"{topic}/a", b"still", 1)
    client.unsubscribe(f"{topic}/+")
    sender.publish(f"{topic}/a", b"no more", 1)
    client.expect_nothing()


@every_version
def test_unsubscribe_finishes_what_has_begun(broker: RunningBroker, version: int) -> None:
    """Deliveries under way go on, also over a reconnection; new messages don't come.
    [MQTT-3.10.4-3] [MQTT-3.10.4-2] [3.1.1 MQTT-3.10.4-3] [3.1.1 MQTT-3.10.4-2]"""
    topic = unique("t/")
    client, sender = connected(broker, version, **kept(version)), connected(broker, version)
    client.subscribe(topic, 2)
    sender.publish(topic, b"one", 1)
    sender.publish(topic, b"two", 2)
    one, two = client.expect(PUBLISH, payload=b"one"), client.expect(PUBLISH, payload=b"two")
    client.unsubscribe(topic)
    sender.publish(topic, b"three", 2)
    client.send(acknowledge(5, two.packet_id))
    client.expect(PUBREL, packet_id=two.packet_id)
    client.drop()
    client = connected(broker, version, client.client_id, **kept(version))
    client.expect(PUBLISH, packet_id=one.packet_id, payload=b"one", dup=True)
    client.expect(PUBREL, packet_id=two.packet_id)
    client.expect_nothing()


@every_version
def test_replaced(broker: RunningBroker, version: int) -> None:
    """The same filter again is one subscription, with the new QoS.
    [MQTT-3.8.4-3] [3.1.1 MQTT-3.8.4-3]"""
    client, topic = connected(broker, version), unique("t/")
    sender = connected(broker, version)
    for qos in (0, 2, 1):
        client.subscribe(topic, qos)
        sender.publish(topic, b"x", 2)
        client.expect_message(topic, b"x", qos)
        client.expect_nothing(0.05)


@every_version
def test_replacing_loses_nothing(broker: RunningBroker, version: int) -> None:
    """Messages keep flowing while the subscription is replaced again and again.
    [MQTT-3.8.4-4] [3.1.1 MQTT-3.8.4-3]"""
    client, topic, count = connected(broker, version), unique("t/"), 200
    client.subscribe(topic, 1)
    sender = connected(broker, version)
    for number in range(count):
        sender.send(publish(topic, b"%d" % number, 1, number + 1, version))
        if number % 5 == 0:
            client.send(subscribe(number + 1, (topic, 1), version=version))
    received: list[Any] = []
    while len(received) < count:
        packet = client.receive()
        if packet.kind == PUBLISH:
            received.append(int(packet.payload))
            client.acknowledge(packet)
    assert received == list(range(count))


@every_version
def test_overlapping(broker: RunningBroker, version: int) -> None:
    """Several subscriptions that match: the highest granted QoS, limited by the message's own.
    [MQTT-3.3.4-2] [3.1.1 MQTT-3.3.5-1]"""
    client, topic = connected(broker, version), unique("t/")
    for name, qos in ((f"{topic}/#", 0), (f"{topic}/+", 2), (f"{topic}/a", 1)):
        client.subscribe(name, qos)
    sender = connected(broker, version)
    for sent in (2, 1, 0):
        sender.publish(f"{topic}/a", b"%d" % sent, sent)
        client.expect_message(f"{topic}/a", b"%d" % sent, sent)
    client.expect_nothing()


def test_overlapping_with_identifiers(broker: RunningBroker) -> None:
    """One copy, with the identifiers of all subscriptions that match and have one.
    [MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    client, topic = connected(broker), unique("t/")
    client.subscribe(f"{topic}/#", 1, subscription_id=1)
    client.subscribe(f"{topic}/+", 1, subscription_id=268_435_455)
    client.subscribe(f"{topic}/a", 1, subscription_id=300)
    client.subscribe(f"+/{topic[2:]}/a", 1)
    client.subscribe(f"{topic}/b", 1, subscription_id=4)
    connected(broker).publish(f"{topic}/a", b"x", 1)
    message = client.expect_message(f"{topic}/a", b"x", 1)
    assert sorted(message.all("subscription_id")) == [1, 300, 268_435_455]
    client.expect_nothing()


def test_identifier_of_several_filters(broker: RunningBroker) -> None:
    """One SUBSCRIBE gives all its filters the same identifier. [MQTT-3.3.4-3] [MQTT-3.8.4-5]"""
    client, topic = connected(broker), unique("t/")
    client.send(subscribe(1, (f"{topic}/a", 1), (f"{topic}/b", 1), subscription_id=7))
    client.expect(SUBACK, reasons=[1, 1])
    sender = connected(broker)
    for level in "ab":
        sender.publish(f"{topic}/{level}", b"x", 1)
        assert client.expect_message(f"{topic}/{level}", b"x", 1).get("subscription_id") == 7


def test_replaced_identifier(broker: RunningBroker) -> None:
    """A subscription made again has the new identifier, or none. [MQTT-3.8.4-3] [MQTT-3.3.4-3]"""
    client, topic = connected(broker), unique("t/")
    sender = connected(broker)
    for identifier in (5, 6, None):
        client.subscribe(topic, 1, **({"subscription_id": identifier} if identifier else {}))
        sender.publish(topic, b"x", 1)
        assert client.expect_message(topic, b"x", 1).get("subscription_id") == identifier


def test_identifiers_are_each_client_s_own(broker: RunningBroker) -> None:
    """[MQTT-3.3.4-3]"""
    topic, clients = unique("t/"), [connected(broker) for _ in range(3)]
    for number, client in enumerate(clients):
        client.subscribe(topic, 1, **({"subscription_id": number} if number else {}))
    connected(broker).publish(topic, b"x", 1)
    for number, client in enumerate(clients):
        assert client.expect_message(topic, b"x", 1).get("subscription_id", 0) == number


def test_no_local(broker: RunningBroker) -> None:
    """A client's own messages don't come back to it; others' do, and its own reach others.
    [MQTT-3.8.3-3]"""
    client, other, topic = connected(broker), connected(broker), unique("t/")
    for each in (client, other):
        each.subscribe(topic, 1, options(no_local=True))
    client.publish(topic, b"own", 1)
    other.expect_message(topic, b"own", 1)
    other.publish(topic, b"other's", 1)
    client.expect_message(topic, b"other's", 1)
    for each in (client, other):
        each.expect_nothing()


def test_no_local_is_of_one_subscription(broker: RunningBroker) -> None:
    """Another subscription without it that matches still gets the message, with its identifier only.
    [MQTT-3.8.3-3]"""
    client, topic = connected(broker), unique("t/")
    client.subscribe(f"{topic}/+", 1, options(no_local=True), subscription_id=1)
    client.subscribe(f"{topic}/a", 1, subscription_id=2)
    client.send(publish(f"{topic}/a", b"x", 1, 1))
    packets = {packet.kind: packet for packet in (client.receive(), client.receive())}
    assert packets.keys() == {PUBLISH, PUBACK}
    assert packets[PUBLISH].all("subscription_id") == [2]


def test_no_local_after_reconnection(broker: RunningBroker) -> None:
    """It goes by the client identifier, not by the connection. [MQTT-3.8.3-3]"""
    client, topic = connected(broker, **kept(5)), unique("t/")
    client.subscribe(topic, 1, options(no_local=True))
    client.drop()
    client = connected(broker, client_id=client.client_id, **kept(5))
    client.publish(topic, b"own", 1)
    client.expect_nothing()


def test_options_are_replaced(broker: RunningBroker) -> None:
    """[MQTT-3.8.4-3]"""
    client, topic = connected(broker), unique("t/")
    client.subscribe(topic, 1, options(no_local=True))
    client.publish(topic, b"", 1)
    client.subscribe(topic, 1)
    client.send(publish(topic, b"x", 1, 1))
    assert {client.receive().kind, client.receive().kind} == {PUBLISH, PUBACK}


@every_version
def test_ping(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.12.4-1] [3.1.1 MQTT-3.12.4-1]"""
    client = connected(broker, version)
    client.send(*[b"\xc0\x00"] * 50)
    for _ in range(50):
        assert client.expect(PINGRESP).raw == b"\xd0\x00"


@every_version
def test_answers_are_in_order(broker: RunningBroker, version: int) -> None:
    """Requests of several kinds in one piece are answered one after the other, each with its own identifier.
    [MQTT-2.2.1-6] [3.1.1 MQTT-2.3.1-7]"""
    client, topic = connected(broker, version), unique("t/")
    client.send(
        subscribe(9, (topic + "/x", 0), version=version),
        unsubscribe(8, topic, version=version),
        publish(topic, b"", 1, 7, version),
        subscribe(6, (topic + "/y", 1), version=version),
        b"\xc0\x00",
    )
    answers = [client.receive() for _ in range(5)]
    assert [(answer.kind, answer.packet_id) for answer in answers] == [
        (SUBACK, 9),
        (UNSUBACK, 8),
        (PUBACK, 7),
        (SUBACK, 6),
        (PINGRESP, 0),
    ]


@every_version
def test_many_filters_in_one_packet(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.8.4-5] [3.1.1 MQTT-3.8.4-4] [MQTT-3.10.4-6] [3.1.1 MQTT-3.10.4-6]"""
    client, topic = connected(broker, version), unique("t/")
    filters = [(f"{topic}/{number}", number % 3) for number in range(1000)]
    client.send(subscribe(1, *filters, version=version))
    client.expect(SUBACK, reasons=[qos for _, qos in filters])
    sender = connected(broker, version)
    sender.publish(f"{topic}/998", b"x", 2)
    client.expect_message(f"{topic}/998", b"x", 2)
    client.unsubscribe(*(name for name, _ in filters))
    sender.publish(f"{topic}/998", b"x", 2)
    client.expect_nothing()


def test_no_local_and_the_qos_of_others(broker: RunningBroker) -> None:
    """For a client's own message only the subscriptions that want it count: its QoS is theirs. [MQTT-3.8.3-3]
    [MQTT-3.3.4-2]"""
    client, topic = connected(broker), unique("t/")
    client.subscribe(f"{topic}/+", 2, options(no_local=True))
    client.subscribe(f"{topic}/a", 0)
    client.send(publish(f"{topic}/a", b"x", 1, 1))
    packets = {packet.kind: packet for packet in (client.receive(), client.receive())}
    assert packets[PUBLISH].qos == 0


@every_version
def test_unsubscribe_stops_retained_messages(broker: RunningBroker, version: int) -> None:
    """After UNSUBACK no more of the retained messages that SUBSCRIBE has called up come.
    [MQTT-3.10.4-2] [3.1.1 MQTT-3.10.4-2]"""
    topic, client = unique("t/"), connected(broker, version)
    count = 1000
    client.send(*(publish(f"{topic}/{n}", bytes(100), version=version, retain=True) for n in range(count)))
    client.ping()
    client.send(
        subscribe(1, (f"{topic}/#", 0), version=version), unsubscribe(2, f"{topic}/#", version=version)
    )
    client.expect(SUBACK, packet_id=1)
    while (packet := client.receive()).kind == PUBLISH:
        count -= 1
    assert packet.kind == UNSUBACK
    assert count >= 0
    client.expect_nothing()
