"""Topic aliases, from clients and towards them."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import CONNACK, PUBLISH, Packet, connect, publish
from conftest import RunningBroker


def alias_max(broker: RunningBroker) -> int:
    """What the broker announces."""
    client = Client(broker.port)
    found: int = int(client.connect().get("topic_alias_max", 0))
    return found


def test_every_alias_up_to_the_maximum(broker: RunningBroker) -> None:
    """Each one can be set and used; the receiver sees topics, not the sender's aliases.
    [MQTT-3.3.2-12]"""
    most = alias_max(broker)
    assert most > 0
    topic, receiver, sender = unique("t/"), connected(broker), connected(broker)
    receiver.subscribe(f"{topic}/#")
    for alias in range(1, most + 1):
        sender.send(publish(f"{topic}/{alias}", b"set", topic_alias=alias))
    for alias in range(most, 0, -1):
        sender.send(publish("", b"used", topic_alias=alias))
    for alias in range(1, most + 1):
        receiver.expect_bytes(publish(f"{topic}/{alias}", b"set"))
    for alias in range(most, 0, -1):
        receiver.expect_bytes(publish(f"{topic}/{alias}", b"used"))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_alias_with_every_qos(broker: RunningBroker, qos: int) -> None:
    """[MQTT-3.3.2-12]"""
    topic, receiver, sender = unique("t/"), connected(broker), connected(broker)
    receiver.subscribe(topic, qos)
    for name in (topic, "", ""):
        sender.publish(name, b"x", qos, topic_alias=1)
        assert receiver.expect_message(topic, b"x", qos).get("topic_alias") is None


def test_alias_can_be_given_to_another_topic(broker: RunningBroker) -> None:
    """The newest mapping holds. [MQTT-3.3.2-12]"""
    topic, receiver, sender = unique("t/"), connected(broker), connected(broker)
    receiver.subscribe(f"{topic}/#")
    for name, expected in (("a", "a"), ("", "a"), ("b", "b"), ("", "b"), ("a", "a"), ("", "a")):
        sender.send(publish(f"{topic}/{name}" if name else "", b"x", topic_alias=1))
        receiver.expect_message(f"{topic}/{expected}", b"x")


def test_aliases_belong_to_a_connection(broker: RunningBroker) -> None:
    """Neither another client nor the same client later can use them. [MQTT-3.3.2-7]"""
    topic, client = unique("t/"), connected(broker, **kept(5))
    client.publish(topic, b"x", 1, topic_alias=1)
    other = connected(broker)
    other.send(publish("", b"x", topic_alias=1))
    other.expect_closed(0x82)
    client.drop()
    client = connected(broker, client_id=client.client_id, **kept(5))
    client.send(publish("", b"x", topic_alias=1))
    client.expect_closed(0x82)


def test_mapping_survives_a_message_nobody_gets(broker: RunningBroker) -> None:
    """An alias set by a message without receivers is set. [MQTT-3.3.2-12]"""
    topic, sender = unique("t/"), connected(broker)
    sender.publish(topic, b"x", 1, topic_alias=2)
    receiver = connected(broker)
    receiver.subscribe(topic)
    sender.publish("", b"y", topic_alias=2)
    receiver.expect_message(topic, b"y")


def test_alias_0(broker: RunningBroker) -> None:
    """[MQTT-3.3.2-8] [MQTT-4.13.1-1]"""
    client = connected(broker)
    client.send(publish("t", b"x", topic_alias=0))
    client.expect_closed(0x94, 0x82, 0x81)


def test_alias_above_the_maximum(broker: RunningBroker) -> None:
    """[MQTT-4.13.1-1] [MQTT-3.14.4-2]"""
    client = connected(broker)
    client.send(publish("t", b"x", topic_alias=alias_max(broker) + 1))
    client.expect_closed(0x94)


def test_no_topic_and_no_alias(broker: RunningBroker) -> None:
    """[MQTT-4.13.1-1] [MQTT-4.7.3-1]"""
    client = connected(broker)
    client.send(publish("", b"x"))
    client.expect_closed(0x82, 0x81, 0x90)


def test_no_aliases_for_a_client_without_maximum(broker: RunningBroker) -> None:
    """Absent and 0 mean none. [MQTT-3.1.2-27]"""
    choices: list[dict[str, Any]] = [{}, {"topic_alias_max": 0}]
    for settings in choices:
        topic, receiver, sender = unique("t/"), connected(broker, **settings), connected(broker)
        receiver.subscribe(topic)
        for _ in range(5):
            sender.publish(topic, b"x")
            receiver.expect_bytes(publish(topic, b"x"))


def resolved(message: Packet, aliases: dict[int, str]) -> str:
    """The message's topic, by the aliases that the broker has set on this connection."""
    alias = message.get("topic_alias")
    if alias is None:
        return str(message.topic)
    if message.topic:
        aliases[alias] = message.topic
    return aliases[alias]


@pytest.mark.parametrize("most", [1, 3, 65535])
def test_aliases_towards_a_client(broker: RunningBroker, most: int) -> None:
    """Those that the broker uses are set before they are used, and none is above the client's maximum.
    [MQTT-3.1.2-26] [MQTT-3.3.2-11] [MQTT-3.3.2-8]"""
    topic, sender = unique("t/"), connected(broker)
    receiver = connected(broker, topic_alias_max=most)
    aliases: dict[int, str] = {}
    receiver.subscribe(f"{topic}/#", 1)
    names = [f"{topic}/{number % 7}" for number in range(70)]
    for number, name in enumerate(names):
        sender.publish(name, b"x", number % 2)
    for name in names:
        message = receiver.expect(PUBLISH)
        assert 1 <= message.get("topic_alias", 1) <= most
        assert resolved(message, aliases) == name
        receiver.acknowledge(message)


def test_messages_sent_again_can_be_understood(broker: RunningBroker) -> None:
    """After a reconnection no alias of the old connection is used. [MQTT-3.3.2-7]"""
    topic, sender = unique("t/"), connected(broker)
    receiver = connected(broker, topic_alias_max=10, **kept(5))
    aliases: dict[int, str] = {}
    receiver.subscribe(topic, 1)
    for number in range(5):
        sender.publish(topic, b"%d" % number, 1)
    for _ in range(5):
        assert resolved(receiver.expect(PUBLISH), aliases) == topic
    receiver.drop()
    receiver = connected(broker, client_id=receiver.client_id, topic_alias_max=10, **kept(5))
    aliases.clear()
    for number in range(5):
        message = receiver.expect(PUBLISH, payload=b"%d" % number)
        assert resolved(message, aliases) == topic
        receiver.acknowledge(message)


def test_takeover_forgets_aliases(broker: RunningBroker) -> None:
    """[MQTT-3.3.2-7]"""
    topic, sender = unique("t/"), connected(broker)
    old = connected(broker, topic_alias_max=10, **kept(5))
    old.subscribe(topic, 1)
    for _ in range(3):
        sender.publish(topic, b"x", 1)
        old.acknowledge(old.expect(PUBLISH))
    new = Client(broker.port)
    new.send(connect(old.client_id, topic_alias_max=10, **kept(5)))
    new.expect(CONNACK, session_present=True)
    sender.publish(topic, b"y", 1)
    assert new.expect(PUBLISH, payload=b"y").topic == topic
