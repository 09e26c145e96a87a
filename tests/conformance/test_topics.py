"""Topic names and filters: what matches what, and what is no topic at all."""

from __future__ import annotations

import contextlib

import pytest
from conformance.kit import ConnectionEnded, connected, unique
from conformance.packets import DISCONNECT, PUBLISH, SUBACK, publish, subscribe
from conftest import RunningBroker, StartBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])


@pytest.fixture(scope="module")
def quiet_broker(start_broker: StartBroker) -> RunningBroker:
    """A broker without other tests' messages, for filters that match everybody's."""
    return start_broker()


# filter, topics that match, topics that don't; all get a prefix of their own
MATCHES = [
    ("a/b", ["a/b"], ["a", "a/b/", "/a/b", "a/B", "a/b/c", "a//b", "A/b"]),
    ("#", ["a", "/", "/a", "a/b/c", "a/$x"], []),
    ("a/#", ["a", "a/", "a/b", "a/b/c", "a//"], ["b", "/a", "ab", "a b"]),
    ("+", ["a", " "], ["a/b", "a/", "/a", "/"]),
    ("/+", ["/a", "/"], ["a", "a/", "/a/"]),
    ("+/+", ["a/b", "/b", "a/", "/"], ["a", "a/b/c", "a/b/", "//"]),
    ("a/+/c", ["a/b/c", "a//c", "a/+b/c".replace("+", ""), "a/$x/c"], ["a/c", "a/b/b/c", "a/b/c/"]),
    ("+/b/#", ["a/b", "a/b/c", "/b", "/b/"], ["b", "a/c/b"]),
    ("+/+/#", ["a/b", "a/b/c", "/"], ["a"]),
    ("a//b", ["a//b"], ["a/b", "a/x/b", "a///b"]),
    ("//", ["//"], ["/", "///"]),
    ("\u00e4", ["\u00e4"], ["a\u0308", "\u00c4"]),
]


@every_version
def test_matching(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.3.2-3] [MQTT-4.7.3-4] [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-3.8.4-1] [3.1.1 MQTT-3.3.2-3]
    [3.1.1 MQTT-4.7.3-4] [3.1.1 MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-3]"""
    sender = connected(broker, version)
    for name, matching, others in MATCHES:
        prefix, client = unique("t"), connected(broker, version)
        client.subscribe(f"{prefix}/{name}", 1)
        for topic in others:
            sender.publish(f"{prefix}/{topic}", b"no", 1)
        for topic in matching:
            sender.publish(f"{prefix}/{topic}", topic.encode(), 1)
        for topic in matching:
            client.expect_message(f"{prefix}/{topic}", topic.encode(), 1)
        client.expect_nothing(0.01)


@every_version
def test_filters_without_prefix(quiet_broker: RunningBroker, version: int) -> None:
    """Wildcards at the first level; a topic that begins with a slash has an empty first level.
    [MQTT-4.7.1-1] [MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-3]"""
    topic = unique("t")
    for name, sent in (
        (f"+/{topic}", f"/{topic}"),
        (f"+/{topic}", f"x/{topic}"),
        (f"/{topic}", f"/{topic}"),
        (f"+/{topic}/#", f"/{topic}"),
        ("+", topic),
    ):
        client = connected(quiet_broker, version)
        client.subscribe(name)
        connected(quiet_broker, version).publish(sent, b"x")
        client.expect_message(sent, b"x")


@pytest.fixture(scope="module")
def telling_broker(start_broker: StartBroker) -> RunningBroker:
    """One that publishes below $SYS often: no client may."""
    return start_broker("sys_interval_s = 0.05\n")


@every_version
def test_dollar(telling_broker: RunningBroker, version: int) -> None:
    """A wildcard at the first level does not match topics that begin with $, retained or not; the level by
    name does. [MQTT-4.7.2-1] [3.1.1 MQTT-4.7.2-1]"""
    wild, named = connected(telling_broker, version), connected(telling_broker, version)
    for name in ("#", "+", "+/broker/uptime", "+/#", "+/broker/#"):
        wild.subscribe(name)
    for retain in (False, True):  # what has come to a subscription once is retained for the next
        named.send(subscribe(1, ("$SYS/broker/#", 0), version=version))
        packet = named.receive()
        while packet.kind != PUBLISH or packet.retain != retain:
            packet = named.receive()
        assert packet.topic.startswith("$SYS/broker/")
    for packet in wild.rest():
        assert not packet.topic.startswith("$")


def test_sys_is_not_matched_by_wildcards(quiet_broker: RunningBroker) -> None:
    """The broker's own topics come to those only who ask for $SYS. [MQTT-4.7.2-1]"""
    wild = connected(quiet_broker)
    wild.subscribe("#")
    wild.subscribe("+/broker/#")
    for packet in wild.rest():
        assert not packet.topic.startswith("$SYS")


@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+", "a#b", "+/"])
@every_version
def test_wildcards_in_topic_names(broker: RunningBroker, topic: str, version: int) -> None:
    """Nobody gets such a message; the connection is closed, in 5.0 with a reason.
    [MQTT-3.3.2-2] [MQTT-4.7.0-1] [3.1.1 MQTT-3.3.2-2] [3.1.1 MQTT-4.7.1-1]"""
    client = connected(broker, version)
    client.send(publish(topic, b"x", 1, 1, version))
    client.expect_closed(0x90, 0x81, 0x82)


@pytest.mark.parametrize("name", ["", "a#", "#/a", "a/#/b", "a/b#", "##", "a+", "+a", "a/+b", "a/b+/c", "++"])
@every_version
def test_wrong_filters(broker: RunningBroker, name: str, version: int) -> None:
    """The subscription fails, or the connection is closed; and others in the same packet are no worse for it.
    [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [3.1.1 MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-3]
    [3.1.1 MQTT-4.7.3-1]"""
    client = connected(broker, version)
    client.send(subscribe(1, (unique("t/"), 1), (name, 1), version=version))
    with contextlib.suppress(ConnectionEnded):
        packet = client.receive()
        if packet.kind == SUBACK:
            assert packet.reasons == [1, 0x8F if version == 5 else 0x80]
        else:
            assert packet.kind == DISCONNECT
            assert packet.reason in (0x8F, 0x81, 0x82)
            client.expect_closed()


@every_version
def test_long_topics(broker: RunningBroker, version: int) -> None:
    """Topics of the largest configured length arrive whole. [MQTT-4.7.3-3] [3.1.1 MQTT-4.7.3-3]"""
    topic, client = unique("t/"), connected(broker, version)
    topic += "/" + "x" * (4096 - len(topic) - 1)
    client.subscribe(topic, 1)
    connected(broker, version).publish(topic, b"x", 1)
    client.expect_message(topic, b"x", 1)


def test_longest_topics(start_broker: StartBroker) -> None:
    """65,535 bytes are possible where they are allowed. [MQTT-4.7.3-3] [3.1.1 MQTT-4.7.3-3]"""
    broker = start_broker("[limits]\ntopic_bytes_max = 65535\n")
    for version in (3, 4, 5):
        topic, client = "x" * 65_535, connected(broker, version)
        client.subscribe(topic, 1)
        connected(broker, version).publish(topic, b"x", 1)
        client.expect_message(topic, b"x", 1)


@every_version
def test_many_levels(quiet_broker: RunningBroker, version: int) -> None:
    """Up to the configured number of levels."""
    topic, client = unique("t") + "/a" * 63, connected(quiet_broker, version)
    client.subscribe(unique("none") + "/+" * 63, 1)
    client.subscribe("+/" * 63 + "a", 1)
    connected(quiet_broker, version).publish(topic, b"x", 1)
    client.expect_message(topic, b"x", 1)


@every_version
def test_many_subscriptions(broker: RunningBroker, version: int) -> None:
    """Each of many filters of many clients gets its own messages and no others. [MQTT-4.5.0-1]
    [3.1.1 MQTT-4.5.0-1]"""
    prefix, clients = unique("t"), [connected(broker, version) for _ in range(10)]
    for number, client in enumerate(clients):
        names = [f"{prefix}/{number}/{index}/+" for index in range(100)]
        client.send(subscribe(1, *((name, 1) for name in names), version=version))
        client.expect(SUBACK, reasons=[1] * 100)
    sender = connected(broker, version)
    for number, client in enumerate(clients):
        for index in (0, 50, 99):
            sender.publish(f"{prefix}/{number}/{index}/x", b"x", 1)
            client.expect_message(f"{prefix}/{number}/{index}/x", b"x", 1)
    for client in clients:
        client.expect_nothing(0.01)
