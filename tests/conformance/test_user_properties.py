"""User properties and reason strings: accepted everywhere, kept in order, not sent where unwanted."""

from __future__ import annotations

from typing import Any

from conformance.kit import Client, connected, refused, unique
from conformance.packets import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    acknowledge,
    connect,
    publish,
    subscribe,
    unsubscribe,
)
from conftest import RunningBroker

PAIRS = [("b", "2"), ("a", "1"), ("b", "1"), ("", ""), ("\u00fc", "\U0001f600")]


def test_order_of_many(broker: RunningBroker) -> None:
    """Hundreds of pairs keep their order. [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-1.5.7-1]"""
    pairs = [(f"k{index % 7}", f"v{index}") for index in range(300)]
    topic, receiver = unique("t/"), connected(broker)
    receiver.subscribe(topic, 1)
    connected(broker).publish(topic, b"x", 1, user=pairs)
    assert receiver.expect_message(topic, b"x", 1).all("user") == pairs


def test_accepted_in_every_packet(broker: RunningBroker) -> None:
    """With a reason string where the standard has one; answers come as always."""
    topic, client = unique("t/"), connected(broker, user=PAIRS)
    client.send(subscribe(1, (topic, 2), user=PAIRS))
    client.expect(SUBACK, packet_id=1, reasons=[2])
    client.send(publish(topic, b"x", 2, 2, user=PAIRS))
    packets: dict[Any, Any] = {}
    while packets.keys() != {PUBREC, PUBCOMP, PUBLISH, PUBREL}:
        packet = client.receive()
        packets[packet.kind] = packet
        if packet.kind == PUBREC:
            client.send(acknowledge(PUBREL, 2, 0, user=PAIRS, reason_string="on it goes"))
        elif packet.kind == PUBLISH:
            client.send(acknowledge(PUBREC, packet.packet_id, 0, user=PAIRS, reason_string="got it"))
        elif packet.kind == PUBREL:
            client.send(acknowledge(PUBCOMP, packet.packet_id, 0, user=PAIRS, reason_string="done"))
    client.send(unsubscribe(3, topic, user=PAIRS))
    client.expect(UNSUBACK, packet_id=3)
    client.disconnect(0, user=PAIRS, reason_string="bye", session_expiry=0)


def test_no_reasons_for_who_wants_none(broker: RunningBroker) -> None:
    """With request problem information 0, only CONNACK, PUBLISH and DISCONNECT may explain themselves.
    [MQTT-3.1.2-29]"""
    client, topic = connected(broker, request_problem=0), unique("t/")
    client.send(
        subscribe(1, (topic, 1)),
        unsubscribe(2, "never/subscribed"),
        acknowledge(PUBREL, 99),
        acknowledge(PUBREC, 98),
        publish(unique("nobody/"), b"x", 1, 3),
        publish(unique("nobody/"), b"x", 2, 4),
        acknowledge(PUBREL, 4),
    )
    for kind in (SUBACK, UNSUBACK, PUBCOMP, PUBREL, PUBACK, PUBREC, PUBCOMP):
        assert client.expect(kind).properties == []
    sender = connected(broker)
    sender.publish(topic, b"x", 1, user=PAIRS)
    assert client.expect_message(topic, b"x", 1).all("user") == PAIRS


def test_explanations_fit_the_client(broker: RunningBroker) -> None:
    """A client that takes the smallest packets gets CONNACK, acknowledgements and DISCONNECT without
    explanations that would not fit.
    [MQTT-3.2.2-19] [MQTT-3.2.2-20] [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2]
    [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2]
    [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.1.2-24]"""
    most = 30
    client = Client(broker.port)
    assert len(client.connect(packet_max=most).raw) <= most
    client.send(
        subscribe(1, ("t", 1)),
        unsubscribe(2, "never/subscribed"),
        acknowledge(PUBREL, 99),
        acknowledge(PUBREC, 98),
        publish(unique("nobody/"), b"x", 1, 3),
        publish(unique("nobody/"), b"x", 2, 4),
    )
    for kind in (SUBACK, UNSUBACK, PUBCOMP, PUBREL, PUBACK, PUBREC):
        assert len(client.expect(kind).raw) <= most
    client.send(publish("wild/+", b""))
    packet = client.receive()
    assert packet.kind == DISCONNECT
    assert len(packet.raw) <= most
    client.expect_closed()


def test_explanation_of_a_refusal_fits_too(broker: RunningBroker) -> None:
    """[MQTT-3.2.2-19] [MQTT-3.2.2-20]"""
    client = Client(broker.port)
    client.send(connect(unique("c"), packet_max=20, auth_method="nothing known"))
    packet = client.receive()
    assert len(packet.raw) <= 20
    assert packet.reason in (0x8C, 0x87)
    client = Client(broker.port)
    client.send(connect(unique("c"), auth_method="nothing known"))
    refused(client, 0x8C, 0x87)
