"""Malformed packets and protocol errors: the sender is disconnected with a reason, nobody else notices."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.kit import Client, connected, unique
from conformance.packets import (
    CONNACK,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    acknowledge,
    connect,
    disconnect,
    packet,
    publish,
    subscribe,
    text,
    unsubscribe,
    varint,
)
from conftest import RunningBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])
MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
NOT_UTF8 = {
    "surrogate": b"\xed\xa0\x80",
    "surrogate pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "last surrogate": b"\xed\xbf\xbf",
    "overlong slash": b"\xc0\xaf",
    "overlong in three bytes": b"\xe0\x80\xaf",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "cut short": b"\xe2\x82",
    "continuation alone": b"\x80",
    "byte FF": b"\xff",
    "null": b"a\x00b",
}


def cases(table: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "request_bytes", [pytest.param(each, id=name) for name, each in table.items()]
    )


FLAGS = {
    "PUBREL 0000": packet(0x60, b"\x00\x01"),
    "PUBREL 0011": packet(0x63, b"\x00\x01"),
    "SUBSCRIBE 0000": packet(0x80, b"\x00\x01"),
    "SUBSCRIBE 1010": packet(0x8A, b"\x00\x01"),
    "UNSUBSCRIBE 0000": packet(0xA0, b"\x00\x01"),
    "UNSUBSCRIBE 0110": packet(0xA6, b"\x00\x01"),
    "PUBACK 0010": packet(0x42, b"\x00\x01"),
    "PUBREC 0001": packet(0x51, b"\x00\x01"),
    "PUBCOMP 1000": packet(0x78, b"\x00\x01"),
    "PINGREQ 0001": packet(0xC1),
    "PINGREQ 0010": packet(0xC2),
    "DISCONNECT 0001": packet(0xE1),
    "CONNECT 0001": packet(0x11, text("MQTT"), b"\x04\x02\x00\x3c", text("c")),
    "type 0": packet(0x00),
    "type 0 with flags": packet(0x0F, b"\x00"),
}


@cases(FLAGS)
@pytest.mark.parametrize("version", [4, 5])
def test_fixed_header_flags(broker: RunningBroker, request_bytes: bytes, version: int) -> None:
    """[MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1] [MQTT-4.13.1-1]
    [3.1.1 MQTT-2.2.2-1] [3.1.1 MQTT-2.2.2-2] [3.1.1 MQTT-3.6.1-1] [3.1.1 MQTT-3.8.1-1] [3.1.1 MQTT-3.10.1-1]
    [3.1.1 MQTT-3.14.1-1] [3.1.1 MQTT-4.8.0-1]"""
    expect_end(broker, request_bytes, version, MALFORMED, PROTOCOL_ERROR)


UNUSED_FLAGS = {
    "PUBACK": packet(0x4F, b"\x00\x01"),
    "PUBREC": packet(0x59, b"\x00\x01"),
    "PUBREL": packet(0x6B, b"\x00\x01"),
    "PUBCOMP": packet(0x71, b"\x00\x01"),
    "SUBSCRIBE": packet(0x83, b"\x00\x01", text("t"), b"\x00"),
    "UNSUBSCRIBE": packet(0xAB, b"\x00\x01", text("t")),
    "PINGREQ": packet(0xCF),
}


@cases(UNUSED_FLAGS)
def test_unused_flags_of_3_1(broker: RunningBroker, request_bytes: bytes) -> None:
    """MQTT 3.1 says of flags that a packet does not use no more than that: they are not looked at."""
    client = Client(broker.port, 3)
    client.send(b"\x1d" + connect(unique("c"), 3)[1:])
    assert client.receive().kind == CONNACK
    client.send(request_bytes, packet(0xC0))
    while client.receive().kind != PINGRESP:
        pass


def expect_end(broker: RunningBroker, request_bytes: bytes, version: int, *reasons: int) -> None:
    """The sender's connection ends, with DISCONNECT in 5.0; a bystander goes on undisturbed."""
    topic, bystander, sender = unique("t/"), connected(broker, version), connected(broker, version)
    bystander.subscribe(topic, 1)
    sender.send(request_bytes, publish(topic, b"behind the error", 1, 77, version))
    sender.expect_closed(*reasons)
    bystander.expect_nothing(0.01)
    bystander.send(publish(topic, b"x", 1, 77, version))
    kinds = {bystander.receive().kind, bystander.receive().kind}
    assert kinds == {PUBACK, PUBLISH}


FRAMING = {
    "remaining length of five bytes": b"\x30\x80\x80\x80\x80\x01",
    "remaining length never ends": b"\xc0\xff\xff\xff\xff",
    "PINGREQ with a body": packet(0xC0, b"\x00"),
    "PUBLISH without topic": packet(0x30),
    "PUBLISH with a topic cut short": packet(0x30, b"\x00\x05ab"),
    "PUBLISH without packet identifier": packet(0x32, text("t")),
    "PUBACK of one byte": packet(0x40, b"\x00"),
    "PUBREL without body": packet(0x62),
    "SUBSCRIBE without body": packet(0x82),
    "UNSUBSCRIBE without body": packet(0xA2),
    "QoS 3": packet(0x36, text("t"), b"\x00\x01\x00"),
    "QoS 3 and DUP": packet(0x3E, text("t"), b"\x00\x01\x00"),
    "CONNACK": packet(0x20, b"\x00\x00"),
    "SUBACK": packet(0x90, b"\x00\x01\x00"),
    "UNSUBACK": packet(0xB0, b"\x00\x01"),
    "PINGRESP": packet(0xD0),
}


@cases(FRAMING)
@pytest.mark.parametrize("version", [3, 4, 5])
def test_framing_and_packets_of_a_server(broker: RunningBroker, request_bytes: bytes, version: int) -> None:
    """[MQTT-3.3.1-4] [MQTT-3.3.2-1] [MQTT-4.13.1-1] [MQTT-3.14.4-2] [MQTT-1.5.5-1] [3.1.1 MQTT-3.3.1-4]
    [3.1.1 MQTT-3.3.2-1] [3.1.1 MQTT-4.8.0-1]"""
    expect_end(broker, request_bytes, version, MALFORMED, PROTOCOL_ERROR, 0x95)


OLD = {
    "QoS 3 in SUBSCRIBE": subscribe(1, ("t", 3), version=4),
    "reserved bit in SUBSCRIBE": subscribe(1, ("t", 4), version=4),
    "highest bit in SUBSCRIBE": subscribe(1, ("t", 0x80), version=4),
    "SUBSCRIBE without filter": subscribe(1, version=4),
    "SUBSCRIBE without QoS": packet(0x82, b"\x00\x01", text("t")),
    "SUBSCRIBE with a filter cut short": packet(0x82, b"\x00\x01\x00\x09t"),
    "SUBSCRIBE with a wrong second filter": subscribe(1, ("t", 0), ("u", 3), version=4),
    "UNSUBSCRIBE without filter": unsubscribe(1, version=4),
    "UNSUBSCRIBE with a filter cut short": packet(0xA2, b"\x00\x01\x00\x09t"),
    "identifier 0 in SUBSCRIBE": subscribe(0, ("t", 0), version=4),
    "identifier 0 in UNSUBSCRIBE": unsubscribe(0, "t", version=4),
    "identifier 0 in PUBLISH, QoS 1": publish("t", b"", 1, 0, version=4),
    "identifier 0 in PUBLISH, QoS 2": publish("t", b"", 2, 0, version=4),
    "DUP with QoS 0": publish("t", b"", 0, dup=True, version=4),
    "DISCONNECT with a body": packet(0xE0, b"\x00"),
    "AUTH": packet(0xF0, b"\x00\x00"),
    "type 15": packet(0xF0),
    "PUBACK with a reason": packet(0x40, b"\x00\x01\x00"),
    "empty topic": publish("", b"", version=4),
}


@cases(OLD)
def test_version_3_1_1(broker: RunningBroker, request_bytes: bytes) -> None:
    """MQTT 3.1 leaves most of these open.
    [3.1.1 MQTT-3.8.3-3] [3.1.1 MQTT-3.8.3-4] [3.1.1 MQTT-3.10.3-2] [3.1.1 MQTT-2.3.1-1]
    [3.1.1 MQTT-3.3.1-2] [3.1.1 MQTT-3.14.1-1] [3.1.1 MQTT-4.7.3-1] [3.1.1 MQTT-4.8.0-1]"""
    expect_end(broker, request_bytes, 4)


NEW = {
    "QoS 3 in SUBSCRIBE": subscribe(1, ("t", 3)),
    "retain handling 3": subscribe(1, ("t", 0x30)),
    "bit 6 in SUBSCRIBE": subscribe(1, ("t", 0x40)),
    "bit 7 in SUBSCRIBE": subscribe(1, ("t", 0x80)),
    "wrong second filter in SUBSCRIBE": subscribe(1, ("t", 0), ("u", 0xC0)),
    "SUBSCRIBE without filter": subscribe(1),
    "SUBSCRIBE without options": packet(0x82, b"\x00\x01\x00", text("t")),
    "SUBSCRIBE without properties": packet(0x82, b"\x00\x01"),
    "UNSUBSCRIBE without filter": unsubscribe(1),
    "identifier 0 in SUBSCRIBE": subscribe(0, ("t", 0)),
    "identifier 0 in UNSUBSCRIBE": unsubscribe(0, "t"),
    "identifier 0 in PUBLISH, QoS 1": publish("t", b"", 1, 0),
    "identifier 0 in PUBLISH, QoS 2": publish("t", b"", 2, 0),
    "DUP with QoS 0": publish("t", b"", 0, dup=True),
    "subscription identifier 0": subscribe(1, ("t", 0), subscription_id=0),
    "two subscription identifiers": subscribe(1, ("t", 0), subscription_id=[1, 2]),
    "subscription identifier in PUBLISH": publish("t", b"", subscription_id=1),
    "subscription identifier in UNSUBSCRIBE": unsubscribe(1, "t", subscription_id=1),
    "payload format twice": publish("t", b"", payload_format=[0, 0]),
    "message expiry twice": publish("t", b"", message_expiry=[1, 1]),
    "content type twice": publish("t", b"", content_type=["a", "a"]),
    "correlation data twice": publish("t", b"", correlation_data=[b"", b""]),
    "topic alias twice": publish("t", b"", topic_alias=[1, 1]),
    "unknown property": packet(0x30, text("t"), b"\x02\x7e\x00"),
    "property 0": packet(0x30, text("t"), b"\x01\x00"),
    "property of CONNECT in PUBLISH": publish("t", b"", session_expiry=1),
    "property of PUBLISH in SUBSCRIBE": subscribe(1, ("t", 0), message_expiry=1),
    "property of CONNACK in PUBACK": acknowledge(PUBACK, 1, 0, server_keep_alive=1),
    "properties longer than PUBLISH": packet(0x30, text("t"), b"\x05\x26\x00\x01"),
    "property cut short": packet(0x30, text("t"), b"\x03\x02\x00\x00"),
    "overlong property length": packet(0x30, text("t"), b"\x80\x00"),
    "overlong subscription identifier": packet(0x82, b"\x00\x01\x03\x0b\x81\x00", text("t"), b"\x00"),
    "subscription identifier of five bytes": packet(
        *(0x82, b"\x00\x01\x06\x0b\xff\xff\xff\xff\x01", text("t"), b"\x00")
    ),
    "property length of five bytes": packet(0x30, text("t"), b"\x80\x80\x80\x80\x01"),
    "reason of another packet in PUBACK": acknowledge(PUBACK, 1, 0x92),
    "reason of another packet in PUBREC": acknowledge(PUBREC, 1, 0x92),
    "reason of another packet in PUBREL": acknowledge(PUBREL, 1, 0x10),
    "reason of another packet in PUBCOMP": acknowledge(PUBCOMP, 1, 0x80),
    "unknown reason in DISCONNECT": disconnect(0x03),
    "bytes behind the properties of PUBACK": packet(0x40, b"\x00\x01\x00\x00\x00"),
    "bytes behind the properties of DISCONNECT": packet(0xE0, b"\x00\x00\x00"),
}


@cases(NEW)
def test_version_5(broker: RunningBroker, request_bytes: bytes) -> None:
    """[MQTT-3.8.3-2] [MQTT-3.8.3-5] [MQTT-3.10.3-2] [MQTT-3.3.1-2] [MQTT-3.3.4-6]
    [MQTT-1.5.5-1] [MQTT-2.2.2-1] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]
    [MQTT-3.14.2-1] [MQTT-4.13.1-1] [MQTT-3.14.4-1] [MQTT-3.14.4-2]"""
    expect_end(broker, request_bytes, 5, MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("raw", [pytest.param(raw, id=name) for name, raw in NOT_UTF8.items()])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_strings_are_checked(broker: RunningBroker, raw: bytes, version: int) -> None:
    """In topic names and filters of every packet.
    [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-3.3.2-1] [MQTT-3.8.3-1] [MQTT-3.10.3-1] [MQTT-4.7.3-2]
    [3.1.1 MQTT-1.5.3-1] [3.1.1 MQTT-1.5.3-2] [3.1.1 MQTT-3.3.2-1] [3.1.1 MQTT-3.8.3-1] [3.1.1 MQTT-3.10.3-1]
    [3.1.1 MQTT-4.7.3-2]"""
    for request_bytes in (
        publish(raw, b"", version=version),
        publish(b"t/" + raw, b"", 1, 1, version),
        subscribe(1, ("good", 0), (raw, 0), version=version),
        unsubscribe(1, raw, version=version),
    ):
        expect_end(broker, request_bytes, version, MALFORMED, PROTOCOL_ERROR, 0x90, 0x8F)


@pytest.mark.parametrize("raw", [pytest.param(raw, id=name) for name, raw in NOT_UTF8.items()])
def test_strings_in_properties_are_checked(broker: RunningBroker, raw: bytes) -> None:
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.7-1] [MQTT-3.3.2-13] [MQTT-3.3.2-19]"""
    for settings in (
        {"content_type": raw},
        {"response_topic": raw},
        {"user": (raw, "good")},
        {"user": ("good", raw)},
    ):
        expect_end(broker, publish("t", b"", **settings), 5, MALFORMED, PROTOCOL_ERROR, 0x90)
    for request_bytes in (
        subscribe(1, ("t", 0), user=(raw, "")),
        acknowledge(PUBACK, 1, 0, reason_string=raw),
        disconnect(0, reason_string=raw),
    ):
        expect_end(broker, request_bytes, 5, MALFORMED, PROTOCOL_ERROR)


@every_version
def test_control_characters_pass(broker: RunningBroker, version: int) -> None:
    """The standard advises against them and leaves it to the receiver (docs/mqtt.md)."""
    topic, client, sender = unique("t/"), connected(broker, version), connected(broker, version)
    client.subscribe(f"{topic}/#")
    for name in ("\x01", "\x1f", "\x7f", "\x9f", "\ufffe"):
        sender.publish(f"{topic}/{name}", b"x")
        client.expect_message(f"{topic}/{name}", b"x")


@pytest.mark.parametrize("version", [4, 5])
def test_unusual_but_right_strings(broker: RunningBroker, version: int) -> None:
    """Characters at the edges of what is allowed pass unchanged, a byte order mark as well.
    [MQTT-1.5.4-3] [MQTT-4.7.3-4] [3.1.1 MQTT-1.5.3-3] [3.1.1 MQTT-4.7.3-4]"""
    topic, client = unique("t/"), connected(broker, version)
    client.subscribe(f"{topic}/#", 1)
    sender = connected(broker, version)
    for name in (
        "\ufeff",
        "a\ufeffb",
        "\ud7ff\ue000",
        "\U0001f600",
        "\U0010fffd",
        "\xe4",
        "a\u0308",
        " ",
        "$",
    ):
        settings: dict[str, Any] = {"user": (name, name)} if version == 5 else {}
        sender.publish(f"{topic}/{name}", name.encode(), 1, **settings)
        message = client.expect_message(f"{topic}/{name}", name.encode(), 1)
        assert version == 4 or message.get("user") == (name, name)


@pytest.mark.parametrize("size", [300, 70_000, 140_000, 200_000, 300_000, 600_000])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_cut_short_packet_waits(broker: RunningBroker, version: int, size: int) -> None:
    """Half a packet is no error: it is not acted upon before it is whole, and forgotten with its connection.
    [MQTT-4.2-1] [3.1.1 MQTT-4.2.0-1]"""
    topic, watcher, sender = unique("t/"), connected(broker, version), connected(broker, version)
    watcher.subscribe(topic)
    whole = publish(topic, bytes(size), version=version)
    cuts = (1, 2, 3, 10, len(whole) // 2, len(whole) - 1)
    for cut in cuts:
        half = connected(broker, version)
        half.send(whole[:cut])
        half.drop()
    watcher.expect_nothing(0.02)
    for cut in cuts:
        sender.send(whole[:cut])
        watcher.expect_nothing(0.02)
        sender.send(whole[cut:])
        watcher.expect_message(topic, bytes(size))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 200_000])
def test_payload_sizes(broker: RunningBroker, size: int) -> None:
    """Every length of the remaining length, at its limits. [MQTT-1.5.5-1]"""
    for version in (3, 4, 5):
        topic, receiver = unique("t/"), connected(broker, version)
        receiver.subscribe(topic, 1)
        for exact in {size, max(0, size - len(publish(topic, b"", 1, 1, version)) + 2)}:
            payload = bytes(index % 251 for index in range(exact))
            connected(broker, version).publish(topic, payload, 1)
            receiver.expect_message(topic, payload, 1)


def test_overlong_but_short_enough_remaining_length(broker: RunningBroker) -> None:
    """A remaining length padded with zeros is not the shortest form: malformed in 5.0. [MQTT-1.5.5-1]"""
    client = connected(broker)
    client.send(b"\xc0" + varint(0, 2))
    client.expect_closed(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("response_topic", ["#", "a/+", "a/#/b"])
def test_wildcard_in_response_topic(broker: RunningBroker, response_topic: str) -> None:
    """[MQTT-3.3.2-14]"""
    request_bytes = publish("t", b"", response_topic=response_topic)
    expect_end(broker, request_bytes, 5, MALFORMED, PROTOCOL_ERROR, 0x90)
