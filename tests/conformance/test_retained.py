"""Retained messages: storing, replacing, removing, and who gets them when."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from conformance.kit import Silence, connected, kept, unique
from conformance.packets import PUBACK, PUBLISH, SUBACK, acknowledge, options, publish, subscribe
from conftest import RunningBroker, StartBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_stored(broker: RunningBroker, version: int, qos: int) -> None:
    """Later subscribers get the message, with its QoS and retain 1; those of before got it with retain 0.
    [MQTT-3.3.1-5] [MQTT-3.3.1-9] [MQTT-3.3.1-12] [3.1.1 MQTT-3.3.1-5] [3.1.1 MQTT-3.3.1-6]
    [3.1.1 MQTT-3.3.1-8] [3.1.1 MQTT-3.3.1-9]"""
    topic = unique("t/")
    sender, before, later = (connected(broker, version) for _ in range(3))
    before.subscribe(topic, 2)
    sender.publish(topic, b"x", qos, retain=True)
    before.expect_message(topic, b"x", qos, retain=False)
    later.subscribe(topic, 2)
    later.expect_message(topic, b"x", qos, retain=True, dup=False)
    later.expect_nothing()


@every_version
def test_last_one_only(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.3.1-5] [3.1.1 MQTT-3.3.1-6] [3.1.1 MQTT-3.3.1-7]"""
    topic = unique("t/")
    sender, later = connected(broker, version), connected(broker, version)
    for number, qos in enumerate((1, 2, 0)):
        sender.publish(topic, b"%d" % number, qos, retain=True)
    later.subscribe(topic, 2)
    later.expect_message(topic, b"2", 0, retain=True)
    later.expect_nothing()


@every_version
def test_empty_payload_removes(broker: RunningBroker, version: int) -> None:
    """The empty message is delivered to those who are subscribed, and nothing is left for later ones.
    [MQTT-3.3.1-6] [MQTT-3.3.1-7] [3.1.1 MQTT-3.3.1-10] [3.1.1 MQTT-3.3.1-11]"""
    topic = unique("t/")
    sender, before, later = (connected(broker, version) for _ in range(3))
    sender.publish(topic, b"x", 1, retain=True)
    before.subscribe(topic, 1)
    before.expect_message(topic, b"x", 1, retain=True)
    sender.publish(topic, b"", 1, retain=True)
    before.expect_message(topic, b"", 1, retain=False)
    later.subscribe(topic, 1)
    later.expect_nothing()


@every_version
def test_not_retained_changes_nothing(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.3.1-8] [3.1.1 MQTT-3.3.1-12]"""
    stored, empty = unique("t/"), unique("t/")
    sender, later = connected(broker, version), connected(broker, version)
    sender.publish(stored, b"kept", 1, retain=True)
    for topic in (stored, empty):
        sender.publish(topic, b"passing", 1)
    sender.publish(stored, b"", 1)
    later.subscribe(empty, 1)
    later.expect_nothing()
    later.subscribe(stored, 1)
    later.expect_message(stored, b"kept", 1, retain=True)


@every_version
def test_stays_without_its_sender(broker: RunningBroker, version: int) -> None:
    """[3.1.1 MQTT-3.1.2-7]"""
    topic = unique("t/")
    sender = connected(broker, version)
    sender.publish(topic, b"x", 1, retain=True)
    sender.disconnect()
    later = connected(broker, version)
    later.subscribe(topic, 1)
    later.expect_message(topic, b"x", 1, retain=True)


@every_version
def test_wildcards(broker: RunningBroker, version: int) -> None:
    """Each filter finds exactly the retained messages that it matches.
    [MQTT-3.3.1-9] [MQTT-3.3.2-3] [3.1.1 MQTT-3.3.1-6] [3.1.1 MQTT-3.3.2-3]"""
    root = unique("t")
    topics = [f"{root}{rest}" for rest in ("", "/", "/a", "/a/b", "/b/b", "/a/b/c", "//b", "/$x/b")]
    sender = connected(broker, version)
    for topic in topics:
        sender.publish(topic, topic.encode(), 1, retain=True)
    expected = {
        f"{root}/#": topics,
        f"{root}/+": [f"{root}/", f"{root}/a"],
        f"{root}/+/b": [f"{root}{rest}" for rest in ("/a/b", "/b/b", "//b", "/$x/b")],
        f"{root}/a/#": [f"{root}{rest}" for rest in ("/a", "/a/b", "/a/b/c")],
        f"{root}/+/+/#": [f"{root}{rest}" for rest in ("/a/b", "/b/b", "/a/b/c", "//b", "/$x/b")],
        f"{root}//b": [f"{root}//b"],
        f"{root}/+/b/c/d": [],
    }
    for name, matching in expected.items():
        later = connected(broker, version)
        later.subscribe(name)
        found = [later.expect(PUBLISH, retain=True).topic for _ in matching]
        assert sorted(found) == sorted(matching), name
        later.expect_nothing(0.02)


@every_version
def test_sent_again_for_the_same_filter(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.8.4-4] [MQTT-3.8.4-3] [3.1.1 MQTT-3.8.4-3]"""
    topic = unique("t/")
    client = connected(broker, version)
    client.publish(topic, b"x", 1, retain=True)
    for _ in range(3):
        client.subscribe(topic, 1)
        client.expect_message(topic, b"x", 1, retain=True)


@every_version
def test_several_filters_in_one_packet(broker: RunningBroker, version: int) -> None:
    """Each filter brings its retained messages, with the QoS that it was granted. [MQTT-3.8.4-5]
    [3.1.1 MQTT-3.8.4-4]"""
    topic = unique("t/")
    client = connected(broker, version)
    client.publish(topic, b"x", 2, retain=True)
    client.send(subscribe(1, (topic, 0), (topic + "/#", 1), version=version))
    client.expect(SUBACK, reasons=[0, 1])
    assert sorted(client.expect(PUBLISH, payload=b"x").qos for _ in range(2)) == [0, 1]


@pytest.mark.parametrize("handling", [0, 1, 2])
def test_retain_handling(broker: RunningBroker, handling: int) -> None:
    """0 sends always, 1 for a new subscription only, 2 never.
    [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]"""
    topic = unique("t/")
    client = connected(broker)
    client.publish(topic, b"x", 1, retain=True)
    for time in range(4):
        if time == 3:
            client.unsubscribe(topic)
        client.subscribe(topic, 1, options(handling=handling))
        if handling == 0 or (handling == 1 and time in (0, 3)):
            client.expect_message(topic, b"x", 1, retain=True)
        client.expect_nothing(0.05)


def test_retain_handling_in_a_resumed_session(broker: RunningBroker) -> None:
    """A subscription of the stored session did exist. [MQTT-3.3.1-10]"""
    topic, name = unique("t/"), unique("c")
    client = connected(broker, client_id=name, **kept(5))
    client.subscribe(topic, 1)
    client.disconnect()
    connected(broker).publish(topic + "/x", b"x", 1, retain=True)
    client = connected(broker, client_id=name, **kept(5))
    client.subscribe(topic, 1, options(handling=1))
    client.expect_nothing(0.05)
    client.subscribe(topic + "/#", 1, options(handling=1))
    client.expect_message(topic + "/x", b"x", 1, retain=True)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("as_published", [False, True])
def test_retain_as_published(broker: RunningBroker, as_published: bool, retain: bool) -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    topic = unique("t/")
    client = connected(broker)
    client.subscribe(topic, 1, options(as_published=as_published))
    connected(broker).publish(topic, b"x", 1, retain=retain)
    client.expect_message(topic, b"x", 1, retain=retain and as_published)


@pytest.mark.parametrize("as_published", [False, True])
def test_stored_ones_always_have_the_flag(broker: RunningBroker, as_published: bool) -> None:
    """Messages sent because of the subscription have retain 1, whatever the option says. [MQTT-3.3.1-9]"""
    topic = unique("t/")
    client = connected(broker)
    client.publish(topic, b"x", 1, retain=True)
    client.subscribe(topic, 1, options(as_published=as_published))
    client.expect_message(topic, b"x", 1, retain=True)


def test_properties_are_kept(broker: RunningBroker) -> None:
    """A retained message keeps its properties; the subscription's identifier is added.
    [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-20] [MQTT-3.3.4-3]"""
    topic = unique("t/")
    sent: dict[str, Any] = {
        "payload_format": 1,
        "content_type": "ü",
        "response_topic": "r",
        "correlation_data": b"\x00",
        "user": [("b", "1"), ("a", "2")],
    }
    client = connected(broker)
    client.publish(topic, b"x", 1, retain=True, **sent)
    client.subscribe(topic, 1, subscription_id=268_435_455)
    message = client.expect_message(topic, b"x", 1, retain=True)
    for name, value in {**sent, "subscription_id": 268_435_455}.items():
        assert message.all(name) == (value if isinstance(value, list) else [value])


def test_stored_under_the_whole_topic(broker: RunningBroker) -> None:
    """A retained message that came with a topic alias only is stored under the topic's name.
    [MQTT-3.3.2-12]"""
    topic = unique("t/")
    client = connected(broker)
    client.send(publish(topic, b"first", topic_alias=1), publish("", b"second", retain=True, topic_alias=1))
    client.ping()
    client.subscribe(topic)
    client.expect_message(topic, b"second", retain=True)


@pytest.mark.parametrize("version", [4, 5])
def test_across_versions(broker: RunningBroker, version: int) -> None:
    """What one version stores, the other gets."""
    topic = unique("t/")
    connected(broker, version).publish(topic, b"x", 1, retain=True)
    later = connected(broker, 9 - version)
    later.subscribe(topic, 2)
    later.expect_message(topic, b"x", 1, retain=True)


def test_queued_while_away(broker: RunningBroker) -> None:
    """For an absent client a retained PUBLISH is queued as any message: it comes with retain 0.
    [MQTT-3.3.1-12] [3.1.1 MQTT-3.3.1-9]"""
    for version in (4, 5):
        topic, name = unique("t/"), unique("c")
        client = connected(broker, version, name, **kept(version))
        client.subscribe(topic, 1)
        client.disconnect()
        connected(broker, version).publish(topic, b"x", 1, retain=True)
        client = connected(broker, version, name, **kept(version))
        client.expect_message(topic, b"x", 1, retain=False)


def test_more_than_an_outbox_holds_come_as_they_are_acknowledged(start_broker: StartBroker) -> None:
    """Though the client sends nothing but acknowledgements, and the broker nothing but these messages."""
    broker = start_broker("[limits]\noutput_high_bytes = 16384\n")
    sender, later = connected(broker), connected(broker, 4)
    topics = [f"many/{number:03d}" for number in range(200)]
    for topic in topics:
        sender.publish(topic, bytes(700), 1, retain=True)
    later.subscribe("many/#", 1)
    came: list[Any] = []
    while len(came) < len(topics):
        batch = [later.expect(PUBLISH, retain=True)]
        try:
            while len(came) + len(batch) < len(topics):
                batch.append(later.receive(0.2))
        except Silence:
            pass
        came += [message.topic for message in batch]
        later.send(*(acknowledge(PUBACK, message.packet_id) for message in batch))
    assert sorted(came) == topics


def test_one_subscription_after_the_other_gets_what_is_retained(start_broker: StartBroker) -> None:
    """Of each all, before the next begins, also where others have come while the first was under way."""
    broker = start_broker("[limits]\noutput_high_bytes = 16384\n")
    sender, later = connected(broker), connected(broker, 4)
    names = "abcdefgh"
    for name in names:
        for number in range(40):
            sender.publish(f"{name}/{number}", bytes(700), 1, retain=True)
    came: list[str] = []
    for name in names:
        later.send(subscribe(1 + names.index(name), (f"{name}/#", 1), version=4))
    while len(came) < 40 * len(names):
        packet = later.receive()
        if packet.kind == PUBLISH:
            came.append(packet.topic[0])
            later.send(acknowledge(PUBACK, packet.packet_id))
    assert came[0] == "a"
    assert len(list(itertools.groupby(came))) == len(names)
