"""Sessions: kept, resumed, discarded, and what is queued for those who are away."""

from __future__ import annotations

import time

import pytest
from conformance.kit import Client, SideBySide, connected, kept, unique
from conformance.packets import CONNACK, PUBACK, PUBLISH, SUBACK, acknowledge, connect, publish, subscribe
from conftest import RunningBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])
new_versions = pytest.mark.parametrize("version", [4, 5])
side_by_side = SideBySide()


def again(broker: RunningBroker, client: Client, **settings: int) -> tuple[Client, bool]:
    """The client on a new connection, and session present."""
    new = Client(broker.port, client.version)
    return new, new.connect(client.client_id, **settings).session_present


@new_versions
def test_session_present(broker: RunningBroker, version: int) -> None:
    """New, resumed, thrown away.
    [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.1.2-23] [MQTT-3.1.4-4]
    [3.1.1 MQTT-3.2.2-1] [3.1.1 MQTT-3.2.2-2] [3.1.1 MQTT-3.2.2-3] [3.1.1 MQTT-3.1.2-4] [3.1.1 MQTT-3.1.2-6]
    [3.1.1 MQTT-3.1.4-3]"""
    client = Client(broker.port, version)
    assert not client.connect(**kept(version)).session_present
    for _ in range(2):
        client.disconnect()
        client, present = again(broker, client, **kept(version))
        assert present
    client.disconnect()
    client, present = again(broker, client, **kept(version) | {"clean": True})
    assert not present


def test_connack_of_3_1_has_no_session_present(broker: RunningBroker) -> None:
    """In MQTT 3.1 that byte is reserved: a resumed session shows in the subscription only."""
    topic, name = unique("t/"), unique("c")
    client = connected(broker, 3, name, clean=False)
    client.subscribe(topic, 1)
    client.disconnect()
    client = Client(broker.port, 3)
    client.send(connect(name, 3, clean=False))
    client.expect_bytes(b"\x20\x02\x00\x00")
    connected(broker, 3).publish(topic, b"x", 1)
    client.expect_message(topic, b"x", 1)


@every_version
def test_subscriptions_are_kept(broker: RunningBroker, version: int) -> None:
    """With their QoS and, in 5.0, their options and identifier.
    [MQTT-3.1.2-5] [MQTT-3.1.2-23] [MQTT-3.1.3-2] [3.1.1 MQTT-3.1.2-4] [3.1.1 MQTT-3.1.3-2]"""
    topic = unique("t/")
    client = connected(broker, version, **kept(version))
    client.send(subscribe(1, (topic, 1 if version < 5 else 0x0D), version=version, subscription_id=5))
    client.receive()
    client.drop()
    client, _ = again(broker, client, **kept(version))
    client.publish(topic + "/other", b"", 1)
    if version == 5:  # no local
        client.publish(topic, b"own", 1)
    connected(broker, version).publish(topic, b"x", 2, retain=True)
    message = client.expect_message(topic, b"x", 1, retain=version == 5)
    assert version < 5 or message.get("subscription_id") == 5


@every_version
def test_clean_start_forgets_all(broker: RunningBroker, version: int) -> None:
    """Subscriptions, queue and unacknowledged messages.
    [MQTT-3.1.2-4] [MQTT-3.1.4-4] [3.1.1 MQTT-3.1.2-6] [3.1.1 MQTT-3.1.4-3]"""
    topic = unique("t/")
    client, sender = connected(broker, version, **kept(version)), connected(broker, version)
    client.subscribe(topic, 1)
    sender.publish(topic, b"in flight", 1)
    client.expect(PUBLISH)
    client.drop()
    sender.publish(topic, b"queued", 1)
    client, present = again(broker, client, clean=True)
    assert not present
    sender.publish(topic, b"later", 1)
    client.expect_nothing()


@new_versions
def test_clean_session_is_not_kept(broker: RunningBroker, version: int) -> None:
    """A session that began clean (5.0: without expiry) ends with its connection.
    [MQTT-3.1.2-4] [MQTT-4.1.0-2] [MQTT-3.2.2-3] [3.1.1 MQTT-3.1.2-6] [3.1.1 MQTT-3.2.2-3]"""
    topic = unique("t/")
    client = connected(broker, version)
    client.subscribe(topic, 1)
    client.disconnect()
    connected(broker, version).publish(topic, b"missed", 1)
    client, present = again(broker, client, clean=False)
    assert not present
    client.expect_nothing()


def test_one_with_many_subscriptions_ends(broker: RunningBroker) -> None:
    """More than leave the index at once."""
    topic, count = unique("t/"), 700
    client = connected(broker)
    client.send(subscribe(1, *((f"{topic}/{number}", 1) for number in range(count))))
    client.expect(SUBACK)
    client.disconnect()
    client, present = again(broker, client, clean=False)
    assert not present
    client.subscribe(f"{topic}/{count - 1}", 1)
    connected(broker).publish(f"{topic}/{count - 1}", b"x", 1)
    client.expect_message(f"{topic}/{count - 1}", b"x", 1)
    client.expect_nothing()


def test_without_expiry_clean_start_0_is_not_kept_either(broker: RunningBroker) -> None:
    """In 5.0 an absent session expiry interval is 0: the session ends with the connection. [MQTT-4.1.0-2]"""
    client = connected(broker, clean=False)
    client.disconnect()
    assert not again(broker, client, clean=False)[1]


def test_clean_start_with_expiry_is_kept(broker: RunningBroker) -> None:
    """Clean Start is about the old session only. [MQTT-3.1.2-23]"""
    client = connected(broker, clean=True, session_expiry=60)
    client.drop()
    assert again(broker, client, clean=False)[1]


@every_version
def test_queued_while_away(broker: RunningBroker, version: int) -> None:
    """QoS 1 and 2 messages wait, in order and each once, with DUP 0.
    [MQTT-4.5.0-1] [MQTT-4.6.0-5] [3.1.1 MQTT-3.1.2-5] [3.1.1 MQTT-4.5.0-1] [3.1.1 MQTT-4.1.0-1]"""
    topic = unique("t/")
    client, sender = connected(broker, version, **kept(version)), connected(broker, version)
    client.subscribe(topic + "/#", 2)
    client.disconnect()
    for number in range(30):
        sender.publish(f"{topic}/{number % 3}", b"%d" % number, 1 + number % 2)
    client, _ = again(broker, client, **kept(version))
    for number in range(30):
        client.expect_message(f"{topic}/{number % 3}", b"%d" % number, 1 + number % 2, dup=False)
    client.expect_nothing()


@every_version
def test_queued_by_granted_qos(broker: RunningBroker, version: int) -> None:
    """A message that a subscription lowers to QoS 0 need not wait; what waits has the lowered QoS.
    [MQTT-3.8.4-8] [3.1.1 MQTT-3.8.4-6] [3.1.1 MQTT-3.1.2-5]"""
    topic = unique("t/")
    client, sender = connected(broker, version, **kept(version)), connected(broker, version)
    client.subscribe(topic, 1)
    client.disconnect()
    sender.publish(topic, b"two", 2)
    client, _ = again(broker, client, **kept(version))
    client.expect_message(topic, b"two", 1)


@every_version
def test_session_of_an_open_connection(broker: RunningBroker, version: int) -> None:
    """While the connection is open nothing of the session is lost, expiry or not. [MQTT-4.1.0-1]
    [3.1.1 MQTT-4.1.0-2] [3.1.1 MQTT-4.1.0-1]"""
    topic = unique("t/")
    client = connected(broker, version)
    client.subscribe(topic, 1)
    for number in range(3):
        connected(broker, version).publish(topic, b"%d" % number, 1)
    for number in range(3):
        client.expect_message(topic, b"%d" % number, 1)


@new_versions
def test_version_may_change(broker: RunningBroker, version: int) -> None:
    """A session of 3.1.1 can be resumed by 5.0 and the other way round."""
    topic = unique("t/")
    client = connected(broker, version, **kept(version))
    client.subscribe(topic, 1)
    client.disconnect()
    connected(broker, version).publish(topic, b"x", 1)
    other = Client(broker.port, 9 - version)
    assert other.connect(client.client_id, **kept(9 - version)).session_present
    other.expect_message(topic, b"x", 1)


def test_disconnect_shortens_the_session(broker: RunningBroker) -> None:
    """A session expiry interval of 0 in DISCONNECT ends the session at once. [MQTT-4.1.0-2]"""
    client = connected(broker, session_expiry=60)
    client.disconnect(session_expiry=0)
    assert not again(broker, client, clean=False)[1]


def test_disconnect_can_not_begin_an_expiry(broker: RunningBroker) -> None:
    """From 0 in CONNECT to more in DISCONNECT is a protocol error. [MQTT-4.13.1-1]"""
    client = connected(broker)
    client.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x3c")
    client.expect_closed(0x82)
    assert not again(broker, client, clean=False)[1]


def test_connect_replaces_the_expiry(broker: RunningBroker) -> None:
    """Each CONNECT sets the interval anew. [MQTT-4.1.0-2]"""
    client = connected(broker, session_expiry=60)
    client.drop()
    client, present = again(broker, client, clean=False, session_expiry=0)
    assert present
    client.drop()
    time.sleep(0.05)
    assert not again(broker, client, clean=False)[1]


@side_by_side
def test_expiry(broker: RunningBroker) -> None:
    """After the interval the session is gone, with its queue. [MQTT-4.1.0-2] [MQTT-3.2.2-3]"""
    topic = unique("t/")
    client = connected(broker, session_expiry=1)
    client.subscribe(topic, 1)
    client.drop()
    connected(broker).publish(topic, b"x", 1)
    time.sleep(2.2)
    client, present = again(broker, client, clean=False)
    assert not present
    client.expect_nothing()


@side_by_side
def test_back_before_expiry(broker: RunningBroker) -> None:
    """The interval begins when the connection ends, and again at each end. [MQTT-3.1.2-23] [MQTT-3.1.2-5]"""
    client = connected(broker, session_expiry=2)
    for _ in range(2):
        time.sleep(1.2)  # connected: does not count
        client.drop()
        time.sleep(0.8)
        client, present = again(broker, client, clean=False, session_expiry=2)
        assert present


@side_by_side
def test_disconnect_changes_the_expiry(broker: RunningBroker) -> None:
    """[MQTT-4.1.0-2] [MQTT-3.1.2-23]"""
    shorter, longer = connected(broker, session_expiry=60), connected(broker, session_expiry=1)
    shorter.disconnect(session_expiry=1)
    longer.disconnect(session_expiry=60)
    time.sleep(2.2)
    assert not again(broker, shorter, clean=False)[1]
    assert again(broker, longer, clean=False)[1]


@side_by_side
def test_endless_session(broker: RunningBroker) -> None:
    """0xFFFFFFFF never expires; the largest finite interval doesn't soon. [MQTT-3.1.2-23]"""
    clients = [connected(broker, session_expiry=value) for value in (0xFFFFFFFF, 0xFFFFFFFE)]
    for client in clients:
        client.drop()
    time.sleep(1.5)
    assert all(again(broker, client, clean=False)[1] for client in clients)


@every_version
def test_many_are_queued_in_order(broker: RunningBroker, version: int) -> None:
    """More than fit into the receiver's window. [MQTT-4.6.0-5] [3.1.1 MQTT-4.6.0-6]"""
    topic, count = unique("t/"), 3000
    client, sender = connected(broker, version, **kept(version)), connected(broker, version)
    client.subscribe(topic, 1)
    client.disconnect()
    for start in range(0, count, 100):
        numbers = range(start, start + 100)
        sender.send(*(publish(topic, b"%d" % number, 1, 1 + number - start, version) for number in numbers))
        for _ in numbers:
            sender.expect(PUBACK)
    client, _ = again(broker, client, **kept(version))
    for number in range(count):
        client.send(acknowledge(PUBACK, client.expect(PUBLISH, payload=b"%d" % number).packet_id))
    client.expect_nothing()


@every_version
def test_messages_at_the_moment_of_return(broker: RunningBroker, version: int) -> None:
    """Publishing goes on while the receiver comes and goes: nothing is lost, nothing changes its order.
    [MQTT-4.4.0-1] [MQTT-4.5.0-1] [3.1.1 MQTT-4.5.0-1] [3.1.1 MQTT-4.4.0-1]"""
    topic, count = unique("t/"), 300
    client, sender = connected(broker, version, **kept(version)), connected(broker, version)
    client.subscribe(topic, 1)
    received: list[int] = []
    for number in range(count):
        sender.publish(topic, b"%d" % number, 1)
        if number % 10 == 9:
            for _ in range(5):
                message = client.expect(PUBLISH)
                client.send(acknowledge(PUBACK, message.packet_id))
                received.append(int(message.payload))
            client.drop()
            client, _ = again(broker, client, **kept(version))
    while len(set(received)) < count:
        message = client.expect(PUBLISH)
        client.send(acknowledge(PUBACK, message.packet_id))
        received.append(int(message.payload))
    firsts = list(dict.fromkeys(received))
    assert firsts == list(range(count))


def test_connack_before_the_queue(broker: RunningBroker) -> None:
    """The resumed session's messages follow CONNACK. [MQTT-3.2.0-1] [3.1.1 MQTT-3.2.0-1]"""
    topic = unique("t/")
    client = connected(broker, 4, clean=False)
    client.subscribe(topic, 1)
    client.disconnect()
    connected(broker).publish(topic, b"x", 1)
    new = Client(broker.port, 4)
    new.send(connect(client.client_id, 4, clean=False))
    new.expect(CONNACK, session_present=True)
    new.expect_message(topic, b"x", 1)
