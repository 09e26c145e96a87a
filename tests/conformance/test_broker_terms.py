"""What a broker may leave out: QoS above a maximum, retained messages, clients without an identifier, large
payloads; how it says so, and what becomes of who asks for it all the same.
"""

from __future__ import annotations

import pytest
from conformance.kit import Client, connected, refused, unique
from conformance.packets import PUBACK, PUBLISH, PUBREC, PUBREL, SUBACK, Will, acknowledge, connect, publish
from conformance.packets import subscribe as subscribe_packet
from conftest import RunningBroker, StartBroker

LARGEST = 100
SETTINGS = """
qos_max = 1
retain_available = false
client_id_required = true
"""
every_version = pytest.mark.parametrize("version", [3, 4, 5])


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> RunningBroker:
    """A broker that takes less than MQTT has."""
    return start_broker(SETTINGS)


@pytest.fixture(scope="module")
def small(start_broker: StartBroker) -> RunningBroker:
    """A broker that takes small payloads only."""
    return start_broker(f"[limits]\npayload_bytes_max = {LARGEST}\n")


def test_the_maximum_qos_is_announced(broker: RunningBroker, start_broker: StartBroker) -> None:
    """[MQTT-3.2.2-9]"""
    connack = Client(broker.port).connect()
    assert connack.get("qos_max") == 1
    assert b"\x24\x01" in connack.raw
    none = start_broker("qos_max = 0")
    assert Client(none.port).connect().get("qos_max") == 0


def test_that_nothing_is_retained_is_announced(broker: RunningBroker) -> None:
    connack = Client(broker.port).connect()
    assert connack.get("retain_available") == 0
    assert b"\x25\x00" in connack.raw


@every_version
def test_a_message_of_a_higher_qos_ends_the_connection(broker: RunningBroker, version: int) -> None:
    """And is not delivered; one at the maximum is."""
    topic = unique("t")
    reader, client = connected(broker, version), connected(broker, version)
    reader.subscribe(topic, 1)
    client.publish(topic, b"one", 1)
    reader.expect_message(topic, b"one", 1)
    client.send(publish(topic, b"two", 2, 7, version))
    client.expect_closed(0x9B)
    reader.expect_nothing()


@every_version
def test_subscriptions_of_a_higher_qos_are_granted_the_maximum(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.2.2-10]"""
    client = connected(broker, version)
    client.send(subscribe_packet(3, (unique("t"), 2), (unique("t"), 1), (unique("t"), 0), version=version))
    client.expect(SUBACK, packet_id=3, reasons=[1, 1, 0])


@every_version
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_to_be_retained_ends_the_connection(broker: RunningBroker, version: int, qos: int) -> None:
    topic = unique("t")
    reader, client = connected(broker, version), connected(broker, version)
    reader.subscribe(topic, 1)
    client.send(publish(topic, b"kept", qos, 7 if qos else 0, version, retain=True))
    client.expect_closed(0x9A)
    reader.expect_nothing()


@pytest.mark.parametrize(("will", "reason"), [(Will("t", qos=2), 0x9B), (Will("t", retain=True), 0x9A)])
def test_a_will_that_could_not_be_sent_refuses_the_client(
    broker: RunningBroker, will: Will, reason: int
) -> None:
    """[MQTT-3.2.2-12] [MQTT-3.2.2-13]"""
    client = Client(broker.port)
    client.send(connect(unique("c"), will=will))
    refused(client, reason)
    old = Client(broker.port, 4)  # 3.1.1 has no return code that says so
    old.send(connect(unique("c"), 4, will=will))
    old.expect_closed()
    assert Client(broker.port).connect(will=Will("t", qos=1)).reason == 0


@pytest.mark.parametrize(("version", "reason"), [(4, 2), (5, 0x85)])
def test_a_client_without_an_identifier_is_refused(broker: RunningBroker, version: int, reason: int) -> None:
    client = Client(broker.port, version)
    client.send(connect("", version))
    refused(client, reason)


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_that_is_too_large_is_dropped(small: RunningBroker, version: int, qos: int) -> None:
    """5.0 is told: payload format invalid, which no later attempt would change. To 3.x it looks taken; the
    connection goes on for all.
    """
    topic = unique("t")
    reader, client = connected(small, version), connected(small, version)
    reader.subscribe(topic, 2)
    client.publish(topic, bytes(LARGEST), qos)
    reader.expect_message(topic, bytes(LARGEST), qos)
    client.send(publish(topic, bytes(LARGEST + 1), qos, 9 if qos else 0, version))
    if qos == 1:
        assert client.expect(PUBACK, packet_id=9).reason == (0x99 if version == 5 else 0)
    elif qos == 2:
        answer = client.expect(PUBREC, packet_id=9)
        assert answer.reason == (0x99 if version == 5 else 0)
        if version < 5:
            client.send(acknowledge(PUBREL, 9))
    client.rest()
    reader.expect_nothing()
    client.publish(topic, b"small", qos)
    assert reader.expect(PUBLISH, topic=topic).payload == b"small"


def test_a_will_whose_payload_is_too_large_refuses_the_client(small: RunningBroker) -> None:
    client = Client(small.port)
    client.send(connect(unique("c"), will=Will("t", bytes(LARGEST + 1))))
    refused(client, 0x95)
    assert Client(small.port).connect(will=Will("t", bytes(LARGEST))).reason == 0
