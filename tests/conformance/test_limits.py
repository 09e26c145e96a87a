"""Limits: what a broker with narrow limits does at each of them, and how it says so."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest
from conformance.kit import Client, ConnectionEnded, SideBySide, connected, kept, refused, unique
from conformance.packets import (
    PUBACK,
    PUBLISH,
    PUBREC,
    SUBACK,
    Packet,
    Will,
    connect,
    packet,
    publish,
    subscribe,
    text,
)
from conftest import RunningBroker, StartBroker
from waiting import LATE_S, WAIT_S, wait_until

NARROW = """
[limits]
packet_bytes_max = 2048
topic_bytes_max = 100
topic_levels_max = 5
client_id_bytes_max = 40
keep_alive_s_max = 4
topic_alias_max = 3
receive_max = 4
inflight_max = 3
subscriptions_max = 5
wildcard_ways_max = 3
session_expiry_s_max = 100
queued_messages_max = 10
connect_timeout_s = 1
"""


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> RunningBroker:
    """A broker with these limits."""
    return start_broker(NARROW)


side_by_side = SideBySide()


@pytest.fixture
def settings(broker: RunningBroker) -> Packet:
    """CONNACK of a client that asks for more than there is."""
    client = Client(broker.port)
    return client.connect(session_expiry=1000, keep_alive_s=60)


def test_announced(settings: Packet) -> None:
    """[MQTT-3.2.2-22] [MQTT-3.2.2-8]"""
    announced = {
        name: settings.get(name)
        for name in ("packet_max", "topic_alias_max", "receive_max", "session_expiry", "server_keep_alive")
    }
    assert announced == {
        "packet_max": 2048,
        "topic_alias_max": 3,
        "receive_max": 4,
        "session_expiry": 100,
        "server_keep_alive": 4,
    }


def test_the_largest_packet_is_not_announced(start_broker: StartBroker) -> None:
    """To say nothing means as large as MQTT allows; some clients refuse the number."""
    broker = start_broker("[limits]\npacket_bytes_max = 268435460\n")
    assert Client(broker.port).connect().get("packet_max") is None


def test_receive_max(broker: RunningBroker) -> None:
    """[MQTT-4.9.0-3] [MQTT-4.13.1-1]"""
    client = connected(broker)
    client.send(*(publish("t", b"x", 2, packet_id) for packet_id in range(1, 5)))
    for packet_id in range(1, 5):
        client.expect(PUBREC, packet_id=packet_id)
    client.send(publish("t", b"x", 2, 5))
    client.expect_closed(0x93)


@pytest.mark.parametrize("version", [4, 5])
def test_inflight_max(broker: RunningBroker, version: int) -> None:
    """Also a client that would take more has so many at a time. [MQTT-4.9.0-1]"""
    topic, receiver, sender = unique("t/"), connected(broker, version), connected(broker, version)
    receiver.subscribe(topic, 1)
    for number in range(5):
        sender.publish(topic, b"%d" % number, 1)
    first = [receiver.expect(PUBLISH, payload=b"%d" % number) for number in range(3)]
    receiver.expect_nothing()
    receiver.acknowledge(first[0])
    receiver.expect(PUBLISH, payload=b"3")


@pytest.mark.parametrize("version", [3, 4, 5])
def test_packet_bytes_max(broker: RunningBroker, version: int) -> None:
    """DISCONNECT 0x95. [MQTT-4.13.1-1]"""
    client = connected(broker, version)
    client.send(publish("t", bytes(2048), version=version))
    client.expect_closed(0x95)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("topic", ["x" * 101, "a/b/c/d/e/f"])
def test_topic_limits_of_publish(broker: RunningBroker, version: int, topic: str) -> None:
    """Refused, with a reason in 5.0."""
    client = connected(broker, version)
    client.send(publish(topic, b"x", 1, 1, version))
    with_ack = client.receive() if version == 5 else None
    if with_ack is None:
        client.expect_closed()
    elif with_ack.kind == PUBACK:
        assert with_ack.reason in (0x90, 0x97)
    else:
        assert with_ack.reason in (0x90, 0x97, 0x81)
        client.expect_closed()


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("name", ["x" * 101, "a/b/c/d/e/f"])
def test_topic_limits_of_subscribe(broker: RunningBroker, version: int, name: str) -> None:
    """Refused for this filter, or for the connection."""
    client = connected(broker, version)
    client.send(subscribe(1, (name, 1), version=version))
    try:
        packet = client.receive()
    except ConnectionEnded:
        assert version < 5
        return
    if packet.kind == SUBACK:
        assert packet.reasons[0] in ((0x8F, 0x97) if version == 5 else (0x80,))
    else:
        assert packet.reason in (0x8F, 0x90, 0x97, 0x81)


def test_client_id_too_long(broker: RunningBroker) -> None:
    """[MQTT-3.1.3-8] [3.1.1 MQTT-3.1.3-9] [3.1.1 MQTT-3.2.2-5] [3.1.1 MQTT-3.2.2-4]"""
    for version, reason in ((3, 2), (4, 2), (5, 0x85)):
        client = Client(broker.port, version)
        client.send(connect("x" * 41, version))
        refused(client, reason)
        connected(broker, version, "x" * 40)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_subscriptions_max(broker: RunningBroker, version: int) -> None:
    """One too many is refused (0x97 in 5.0); replacing and freed places are not."""
    client = connected(broker, version)
    for number in range(5):
        client.subscribe(f"t/{number}", 1)
    client.send(subscribe(9, ("t/5", 1), ("t/0", 2), version=version))
    client.expect(SUBACK, packet_id=9, reasons=[0x97 if version == 5 else 0x80, 2])
    client.unsubscribe("t/1")
    client.subscribe("t/5", 1)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_wildcard_ways_max(broker: RunningBroker, version: int) -> None:
    """A filter whose `+` could be spread in more ways is refused (0x8F in 5.0), shared or not."""
    client = connected(broker, version)
    filters = [("a/+/c/d", 1), ("a/+/c", 1), ("+/+/c/#", 1), ("$share/g/a/+/c/d", 1)]
    client.send(subscribe(9, *filters, version=version))
    refused = 0x8F if version == 5 else 0x80
    client.expect(SUBACK, packet_id=9, reasons=[refused, 1, 1, refused])


@pytest.mark.parametrize("version", [4, 5])
def test_queued_messages_max(broker: RunningBroker, version: int) -> None:
    """The queue of an absent client holds so many, the rest is dropped; and order is kept."""
    topic, client = unique("t/"), connected(broker, version, **kept(version))
    client.subscribe(topic, 1)
    client.disconnect()
    sender = connected(broker, version)
    for number in range(30):
        packet_id = number + 1
        sender.send(publish(topic, b"%d" % number, 1, packet_id, version))
        sender.expect(PUBACK, packet_id=packet_id)
    client = connected(broker, version, client.client_id, **kept(version))
    received = [int(message.payload) for message in client.rest()]
    assert len(received) == 10
    assert received == sorted(set(received))


def test_topic_alias_max(broker: RunningBroker) -> None:
    """[MQTT-3.3.2-12]"""
    client = connected(broker)
    for alias in (1, 2, 3):
        client.publish("t", b"x", topic_alias=alias)
    client.send(publish("t", b"x", topic_alias=4))
    client.expect_closed(0x94)


@side_by_side
def test_server_keep_alive(broker: RunningBroker) -> None:
    """The broker's keep alive replaces a longer one, and none; with a shorter one the client's stays.
    [MQTT-3.1.2-22] [MQTT-3.2.2-22]"""
    long, none, short = (Client(broker.port) for _ in range(3))
    since = time.monotonic()
    assert long.connect(keep_alive_s=100).get("server_keep_alive") == 4
    assert none.connect(keep_alive_s=0).get("server_keep_alive") == 4
    assert short.connect(keep_alive_s=1).get("server_keep_alive", 1) == 1
    short.expect_closed(0x8D)
    assert 1 < time.monotonic() - since < 6
    for client in (long, none):
        client.expect_closed(0x8D)
    assert 4 < time.monotonic() - since < LATE_S


@side_by_side
def test_connect_timeout(broker: RunningBroker) -> None:
    """Who sends no CONNECT, or half of one, is closed."""
    since = time.monotonic()
    silent, half = Client(broker.port), Client(broker.port)
    half.send(connect("c")[:5])
    for client in (silent, half):
        client.expect_closed()
    assert 0.9 < time.monotonic() - since < LATE_S


def test_will_within_limits(broker: RunningBroker) -> None:
    """A will's topic is a topic like others."""
    client = Client(broker.port)
    client.send(connect(unique("c"), will=Will("x" * 101)))
    refused(client, 0x90, 0x97, 0x81)


def test_connections_max(start_broker: StartBroker) -> None:
    """One too many is refused with 0x97 or 0x9F (3.x: 0x03), or closed; a freed place can be taken."""
    broker = start_broker("[limits]\nconnections_max = 3\n")
    clients = [connected(broker) for _ in range(3)]
    for version, reasons in ((5, (0x97, 0x9F, 0x89, 0x88)), (4, (3,))):
        client = Client(broker.port, version)
        try:
            client.send(connect(unique("c"), version))
            refused(client, *reasons)
        except (ConnectionEnded, ConnectionError):
            continue
    clients.pop().disconnect()
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            connected(broker).ping()
            return
        except (ConnectionEnded, ConnectionError, AssertionError):
            time.sleep(0.02)
    pytest.fail("the freed place could not be taken")


@pytest.mark.parametrize("version", [4, 5])
def test_retained_messages_max(start_broker: StartBroker, version: int) -> None:
    """Above the limit a new topic's message is passed on but not stored; a stored topic can still change."""
    broker = start_broker("sys_interval_s = 0\n[limits]\nretained_messages_max = 2\n")
    sender, receiver = connected(broker, version), connected(broker, version)
    receiver.subscribe("#", 1)
    for number in (1, 2, 3):
        sender.send(publish(f"t/{number}", b"old", 1, number, version, retain=True))
        assert sender.expect(PUBACK, packet_id=number).reason in (0, 0x97)
    sender.publish("t/1", b"new", 1, retain=True)
    later = connected(broker, version)
    later.subscribe("t/#", 1)
    found = {later.expect(PUBLISH).topic for _ in range(2)}
    assert found == {"t/1", "t/2"}
    later.expect_nothing()


def test_faults_are_logged(broker: RunningBroker) -> None:
    """A malformed packet leaves one line that names the client."""
    client = connected(broker, 5, unique("faulty"))
    client.send(packet(0x30, text("a/#"), b"\x00"))
    client.expect_closed(0x90, 0x81, 0x82)

    def lines() -> list[str]:
        """Of the client; that it connected is one too."""
        return [
            line
            for line in broker.log.read_text().splitlines()
            if client.client_id in line and " WARNING " in line
        ]

    wait_until(lines, "a line about it")
    assert len(lines()) == 1


def test_faults_are_counted(start_broker: StartBroker, admin_port: int) -> None:
    """Each fault counts once."""
    broker = start_broker(f"admin_port = {admin_port}\n")
    for version in (3, 4, 5):
        client = connected(broker, version)
        client.send(publish("a/#", version=version))
        client.expect_closed(0x90, 0x81, 0x82)
    connected(broker).disconnect()
    assert counters(admin_port)["faults"] == 3


def counters(admin_port: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/counters", timeout=WAIT_S) as answer:
        counted: dict[str, int] = json.loads(answer.read())
    return counted


def test_ack_timeout(start_broker: StartBroker) -> None:
    """A 3.1 client that does not acknowledge in time gets the message again, with DUP; a 3.1.1 client, whose
    standard forbids it, doesn't."""
    broker = start_broker("[limits]\nack_timeout_s = 1\n")
    topic, old, new = unique("t/"), connected(broker, 3), connected(broker, 4)
    for client in (old, new):
        client.subscribe(topic, 1)
    connected(broker).publish(topic, b"x", 1)
    first = old.expect(PUBLISH, payload=b"x", dup=False)
    new.expect(PUBLISH, payload=b"x", dup=False)
    again = old.expect(PUBLISH, payload=b"x", dup=True, packet_id=first.packet_id)
    old.acknowledge(again)
    old.expect_nothing(1.5)
    new.expect_nothing()


@pytest.mark.parametrize("version", [4, 5])
def test_queued_bytes_max(start_broker: StartBroker, version: int) -> None:
    """An absent client's queue holds so many bytes; what it holds is the oldest, in order."""
    broker = start_broker("[limits]\nqueued_bytes_max = 10000\n")
    topic, client, sender = (
        unique("t/"),
        connected(broker, version, **kept(version)),
        connected(broker, version),
    )
    client.subscribe(topic, 1)
    client.disconnect()
    for number in range(1, 31):
        sender.send(publish(topic, b"%1000d" % number, 1, number, version))
        sender.expect(PUBACK, packet_id=number)
    client = connected(broker, version, client.client_id, **kept(version))
    received = [int(message.payload) for message in client.rest()]
    assert 5 <= len(received) <= 10
    assert received == list(range(1, len(received) + 1))


def test_sessions_max(start_broker: StartBroker) -> None:
    """A session too many is refused; those that there are can be resumed."""
    broker = start_broker("[limits]\nsessions_max = 2\n")
    first, second = connected(broker, **kept(5)), connected(broker, **kept(5))
    first.disconnect()
    for version, reasons in ((5, (0x97, 0x88, 0x89)), (4, (3,))):
        client = Client(broker.port, version)
        client.send(connect(unique("c"), version))
        refused(client, *reasons)
    connected(broker, client_id=first.client_id, **kept(5)).ping()
    second.disconnect(session_expiry=0)
    connected(broker).ping()
