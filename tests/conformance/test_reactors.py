"""Several reactors: clients that live on different ones see one broker."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import PUBACK, PUBLISH, PUBREC, PUBREL, Will, acknowledge, publish
from conftest import RunningBroker, StartBroker


@pytest.fixture(scope="module", params=[2, 3], ids=lambda count: f"{count} reactors")
def broker(request: pytest.FixtureRequest, start_broker: StartBroker) -> RunningBroker:
    """The tests below repeat, so that their connections land on every pair of reactors."""
    return start_broker(reactors=request.param)


REPEATED = range(12)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_cross(broker: RunningBroker, qos: int) -> None:
    """[MQTT-4.5.0-1] [MQTT-4.6.0-5] [3.1.1 MQTT-4.5.0-1]"""
    topic, clients = unique("t/"), [connected(broker) for _ in range(6)]
    for client in clients:
        client.subscribe(f"{topic}/+", qos)
    for index, client in enumerate(clients):
        client.send(publish(f"{topic}/{index}", b"x", qos, 1))
        if qos == 2:
            client.send(acknowledge(PUBREL, 1))
    for client in clients:
        found: set[Any] = set()
        while len(found) < len(clients):
            packet = client.receive()
            if packet.kind == PUBLISH:
                found.add(packet.topic)
                if packet.qos:
                    client.send(acknowledge(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
        assert found == {f"{topic}/{index}" for index in range(len(clients))}


def test_sessions_move(broker: RunningBroker) -> None:
    """A session resumed on another reactor is whole: subscriptions, queue, unacknowledged messages in
    order, and received QoS 2 identifiers.
    [MQTT-3.1.2-5] [MQTT-4.4.0-1] [MQTT-4.3.3-10] [3.1.1 MQTT-3.1.2-4]"""
    topic, name, sender = unique("t/"), unique("c"), connected(broker)
    client = connected(broker, client_id=name, **kept(5))
    client.subscribe(topic, 1, subscription_id=3)
    for number in REPEATED:
        sender.publish(topic, b"under way", 1)
        message = client.expect(PUBLISH, payload=b"under way")
        client.send(publish(topic + "/other", b"x", 2, 100 + number))
        client.expect(PUBREC, packet_id=100 + number)
        client.drop()
        sender.publish(topic, b"queued", 1)
        client = connected(broker, client_id=name, **kept(5))
        again = client.expect(PUBLISH, payload=b"under way", packet_id=message.packet_id, dup=True)
        client.acknowledge(again)
        assert client.expect_message(topic, b"queued", 1).get("subscription_id") == 3
        client.send(
            publish(topic + "/other", b"x", 2, 100 + number, dup=True), acknowledge(PUBREL, 100 + number)
        )
        client.expect(PUBREC, packet_id=100 + number)
        client.receive()


def test_takeovers(broker: RunningBroker) -> None:
    """[MQTT-3.1.4-3] [3.1.1 MQTT-3.1.4-2]"""
    name = unique("c")
    clients = [connected(broker, client_id=name, **kept(5))]
    for _ in REPEATED:
        clients.append(connected(broker, client_id=name, **kept(5)))
        clients[-2].expect_closed(0x8E)
    clients[-1].ping()


def test_a_clean_start_ends_a_session_wherever_it_is(broker: RunningBroker) -> None:
    """Though the client comes in on another reactor."""
    name = unique("c")
    for _ in REPEATED:
        connected(broker, client_id=name, **kept(5)).disconnect()
        client = Client(broker.port)
        assert not client.connect(name, **kept(5) | {"clean": True}).session_present
        client.disconnect()


def test_wills_cross(broker: RunningBroker) -> None:
    """[MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-8]"""
    watcher, topic = connected(broker), unique("will/")
    watcher.subscribe(f"{topic}/+", 1)
    for number in REPEATED:
        connected(broker, will=Will(f"{topic}/{number}", b"gone", 1)).drop()
        watcher.expect_message(f"{topic}/{number}", b"gone", 1)


def test_retained_messages_are_everyone_s(broker: RunningBroker) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6]"""
    topic = unique("t/")
    for number in REPEATED:
        connected(broker).publish(topic, b"%d" % number, 1, retain=True)
        client = connected(broker)
        client.subscribe(topic, 1)
        client.expect_message(topic, b"%d" % number, 1, retain=True)
    connected(broker).publish(topic, b"", 1, retain=True)
    for _ in range(4):
        client = connected(broker)
        client.subscribe(topic, 1)
        client.expect_nothing(0.03)


def test_shared_group_across_reactors(broker: RunningBroker) -> None:
    """Each message reaches one member, wherever the members live. [MQTT-4.8.2-3]"""
    topic, count = unique("t/"), 120
    members, senders = [connected(broker) for _ in range(6)], [connected(broker) for _ in range(4)]
    for member in members:
        member.subscribe(f"$share/g/{topic}", 1)
    for number in range(count):
        senders[number % 4].publish(topic, b"%d" % number, 1)
    found = []
    for member in members:
        member.send(b"\xc0\x00")
    for member in members:
        while (packet := member.receive()).kind == PUBLISH:
            member.send(acknowledge(PUBACK, packet.packet_id))
            found.append(int(packet.payload))
    assert sorted(found) == list(range(count))


def test_qos_2_once_across_reactors(broker: RunningBroker) -> None:
    """[MQTT-4.3.3-10]"""
    topic, receiver = unique("t/"), connected(broker)
    receiver.subscribe(topic, 2)
    for number in REPEATED:
        sender = connected(broker)
        for dup in (False, True):
            sender.send(publish(topic, b"%d" % number, 2, 7, dup=dup))
            sender.expect(PUBREC, packet_id=7)
        sender.send(acknowledge(PUBREL, 7))
        sender.receive()
        receiver.expect_message(topic, b"%d" % number, 2)
    receiver.expect_nothing()
