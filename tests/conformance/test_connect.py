"""CONNECT and CONNACK: which connections are accepted, as whom, and what is refused how."""

from __future__ import annotations

import contextlib
import string
from typing import Any

import pytest
from conformance.kit import Client, ConnectionEnded, connected, kept, refused, unique
from conformance.packets import (
    CONNACK,
    PING,
    PINGRESP,
    PUBACK,
    PUBLISH,
    SUBACK,
    Packet,
    Will,
    connect,
    packet,
    publish,
    subscribe,
    text,
)
from conftest import RunningBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])
UNKNOWN_VERSION = (b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00")  # CONNACK of 3.x and of 5.0 that say so


def answer(port: int, request: bytes) -> bytes:
    """All bytes that come until the broker closes the connection."""
    client = Client(port)
    client.send(request)
    received = b""
    with contextlib.suppress(ConnectionResetError):  # says the same as an end of file
        while piece := client.socket.recv(4096):
            received += piece
    return received


@pytest.mark.parametrize("version", [3, 4])
def test_accepts_old_versions(broker: RunningBroker, version: int) -> None:
    """CONNACK without session is exactly 20 02 00 00.
    [3.1.1 MQTT-3.1.4-4] [3.1.1 MQTT-3.2.0-1] [3.1.1 MQTT-3.2.2-1]"""
    client = Client(broker.port, version)
    client.send(connect(unique("c"), version))
    client.expect_bytes(b"\x20\x02\x00\x00")
    client.ping()


def test_accepts_version_5(broker: RunningBroker) -> None:
    """CONNACK comes first, with reason 0, session present 0 and no reserved flag.
    [MQTT-3.1.4-5] [MQTT-3.2.0-1] [MQTT-3.2.2-1] [MQTT-3.2.2-2] [MQTT-3.2.2-8]"""
    client = Client(broker.port)
    connack = client.connect()
    assert not connack.session_present
    assert connack.raw[2] == 0
    client.ping()


def test_nothing_needs_to_be_announced(broker: RunningBroker) -> None:
    """All of QoS 2, retained messages, wildcards, subscription identifiers and shared subscriptions are
    there, so CONNACK denies none of them; and the client's keep alive and session expiry stand.
    [MQTT-3.2.2-9] [MQTT-3.2.2-22]"""
    connack = connected_with_connack(broker, session_expiry=100)
    assert connack.get("qos_max") is None
    for feature in (
        "retain_available",
        "wildcards_available",
        "subscription_ids_available",
        "shared_available",
    ):
        assert connack.get(feature, 1) == 1
    assert connack.get("server_keep_alive") is None
    assert connack.get("session_expiry", 100) == 100
    assert connack.get("receive_max", 65535) != 0


def connected_with_connack(broker: RunningBroker, **settings: Any) -> Packet:
    client = Client(broker.port)
    return client.connect(**settings)


@every_version
def test_one_connack_only(broker: RunningBroker, version: int) -> None:
    """Nothing follows CONNACK by itself. [MQTT-3.2.0-2]"""
    connected(broker, version).expect_nothing()


@pytest.mark.parametrize(
    "first",
    [
        PING,
        publish("a", b"x"),
        publish("a", b"x", version=4),
        subscribe(1, ("a", 0)),
        packet(0xE0),
        packet(0xF0, b"\x18\x00"),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        bytes(20),
    ],
)
def test_first_packet_is_connect(broker: RunningBroker, first: bytes) -> None:
    """Anything before CONNECT closes the connection, without a packet from the broker.
    [MQTT-3.1.0-1] [MQTT-3.14.0-1] [3.1.1 MQTT-3.1.0-1] [3.1.1 MQTT-4.8.0-1]"""
    assert answer(broker.port, first) == b""


@every_version
def test_second_connect(broker: RunningBroker, version: int) -> None:
    """A second CONNECT closes the connection, in 5.0 after DISCONNECT 0x82.
    [MQTT-3.1.0-2] [MQTT-3.2.0-2] [MQTT-4.13.1-1] [3.1.1 MQTT-3.1.0-2]"""
    client = connected(broker, version)
    client.send(connect(client.client_id, version))
    client.expect_closed(0x82)


@pytest.mark.parametrize("name", ["", "MQTT ", "mqtt", "MQTX", "MQIsdq"])
@every_version
def test_unknown_protocol_name(broker: RunningBroker, name: str, version: int) -> None:
    """[MQTT-3.1.2-1] [3.1.1 MQTT-3.1.2-1]"""
    assert answer(broker.port, connect(unique("c"), version, protocol=name)) in (b"", *UNKNOWN_VERSION)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_unknown_old_level(broker: RunningBroker, level: int) -> None:
    """CONNACK 0x01, then the end. [3.1.1 MQTT-3.1.2-2] [3.1.1 MQTT-3.2.2-5]"""
    assert answer(broker.port, connect(unique("c"), level, protocol="MQTT")) == b"\x20\x02\x00\x01"


@pytest.mark.parametrize(
    ("name", "level"), [("MQIsdp", 2), ("MQIsdp", 4), ("MQTT", 6), ("MQTT", 99), ("MQTT", 0x84)]
)
def test_other_levels_are_refused_in_the_form_of_3_1_1(broker: RunningBroker, name: str, level: int) -> None:
    """Which form an unknown version understands is left open (docs/mqtt.md)."""
    assert answer(broker.port, connect(unique("c"), level, protocol=name)) == UNKNOWN_VERSION[0]


@pytest.mark.parametrize("level", [6, 7, 0x7F, 0x84, 0xFF])
def test_unknown_new_level(broker: RunningBroker, level: int) -> None:
    """[MQTT-3.1.2-2] [MQTT-3.2.2-7]"""
    assert answer(broker.port, connect(unique("c"), level)) in (b"", *UNKNOWN_VERSION)


@every_version
@pytest.mark.parametrize("client_id", ["a", "0", string.digits, string.ascii_lowercase[:23], "ZY" * 11])
def test_plain_client_ids(broker: RunningBroker, version: int, client_id: str) -> None:
    """[MQTT-3.1.3-5] [3.1.1 MQTT-3.1.3-5]"""
    connected(broker, version, client_id).disconnect()


@pytest.mark.parametrize("version", [4, 5])
def test_long_and_unusual_client_ids(broker: RunningBroker, version: int) -> None:
    """What may be refused is accepted here: many bytes, any characters."""
    for client_id in (unique("x" * 200), unique("ü/+#$ ﻿\U0001f600")):
        connected(broker, version, client_id).disconnect()


def test_empty_client_id_3_1(broker: RunningBroker) -> None:
    """MQTT 3.1 asks for one character at least."""
    client = Client(broker.port, 3)
    client.send(connect("", 3))
    refused(client, 2)


def test_empty_client_id_3_1_1(broker: RunningBroker) -> None:
    """Clean session 1 is accepted, and two such clients are two clients.
    [3.1.1 MQTT-3.1.3-6]"""
    first, second = connected(broker, 4, ""), connected(broker, 4, "")
    first.ping()
    second.ping()


def test_empty_client_id_that_wants_a_session_3_1_1(broker: RunningBroker) -> None:
    """[3.1.1 MQTT-3.1.3-8] [3.1.1 MQTT-3.2.2-4] [3.1.1 MQTT-3.2.2-5]"""
    assert answer(broker.port, connect("", 4, clean=False)) == b"\x20\x02\x00\x02"


@pytest.mark.parametrize("clean", [True, False])
def test_assigned_client_id(broker: RunningBroker, clean: bool) -> None:
    """The broker names the client, each time with a new name, under which the session can be resumed.
    [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]"""
    first, second = Client(broker.port), Client(broker.port)
    names = [
        client.connect("", clean=clean, session_expiry=60).get("assigned_client_id")
        for client in (first, second)
    ]
    assert all(names)
    assert names[0] != names[1]
    first.ping()
    first.disconnect()
    again = Client(broker.port)
    connack = again.connect(str(names[0]), clean=False)
    assert connack.session_present
    assert connack.get("assigned_client_id") is None


@every_version
def test_every_field(broker: RunningBroker, version: int) -> None:
    """Client identifier, will, user name and password are read in their order: the will comes as it was
    given. [MQTT-3.1.3-1] [MQTT-3.1.2-9] [MQTT-3.1.2-17] [MQTT-3.1.2-19] [MQTT-3.1.3-3] [3.1.1 MQTT-3.1.3-1]
    [3.1.1 MQTT-3.1.2-9] [3.1.1 MQTT-3.1.2-19] [3.1.1 MQTT-3.1.2-21] [3.1.1 MQTT-3.1.3-3]"""
    topic = unique("will/")
    watcher = connected(broker, version)
    watcher.subscribe(topic, 2)
    will = Will(topic, b"payload", 2, properties=[("content_type", "t"), ("user", ("k", "v"))])
    client = connected(broker, version, will=will, username="ünïcode", password=b"\x00\xff")
    client.ping()
    client.drop()
    message = watcher.expect_message(topic, b"payload", 2)
    assert version < 5 or message.properties == [("content_type", "t"), ("user", ("k", "v"))]


HEAD = text("MQTT")


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        pytest.param(0x02, b"", id="no client identifier"),
        pytest.param(0x82, text("c"), id="no user name"),
        pytest.param(0xC2, text("c") + text("u"), id="no password"),
        pytest.param(0x06, text("c"), id="no will"),
        pytest.param(0x06, text("c") + text("will/topic"), id="no will message"),
        pytest.param(0x02, text("c") + text("u"), id="user name without flag"),
        pytest.param(0x82, text("c") + text("u") + text("p"), id="password without flag"),
        pytest.param(0x02, text("c") + text("t") + text("m"), id="will without flag"),
        pytest.param(0x03, text("c"), id="reserved flag"),
        pytest.param(0x1E, text("c") + text("t") + text("m"), id="will QoS 3"),
        pytest.param(0x0A, text("c"), id="will QoS without will"),
        pytest.param(0x22, text("c"), id="will retain without will"),
        pytest.param(0x42, text("c") + text("p"), id="password without user name"),
        pytest.param(0x02, b"\x00\x05c", id="client identifier cut short"),
        pytest.param(0x02, text(b"\xed\xa0\x80"), id="surrogate in client identifier"),
        pytest.param(0x02, text(b"a\x00b"), id="null in client identifier"),
        pytest.param(0x82, text("c") + text(b"\xc3("), id="user name is not UTF-8"),
        pytest.param(0x82, text("c") + text(b"u\x00"), id="null in user name"),
        pytest.param(0x06, text("c") + text(b"\xff") + text("m"), id="will topic is not UTF-8"),
        pytest.param(0x06, text("c") + text("a/#") + text("m"), id="wildcard in will topic"),
        pytest.param(0x06, text("c") + text("") + text("m"), id="empty will topic"),
    ],
)
def test_malformed_3_1_1(broker: RunningBroker, flags: int, payload: bytes) -> None:
    """A CONNECT of another form closes the connection without CONNACK.
    [3.1.1 MQTT-3.1.4-1] [3.1.1 MQTT-3.1.2-3] [3.1.1 MQTT-3.1.2-11] [3.1.1 MQTT-3.1.2-13]
    [3.1.1 MQTT-3.1.2-14] [3.1.1 MQTT-3.1.2-15] [3.1.1 MQTT-3.1.2-18] [3.1.1 MQTT-3.1.2-19]
    [3.1.1 MQTT-3.1.2-20] [3.1.1 MQTT-3.1.2-21] [3.1.1 MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-9]
    [3.1.1 MQTT-3.1.3-3] [3.1.1 MQTT-3.1.3-4] [3.1.1 MQTT-3.1.3-10] [3.1.1 MQTT-3.1.3-11]
    [3.1.1 MQTT-3.2.2-6] [3.1.1 MQTT-1.5.3-1] [3.1.1 MQTT-1.5.3-2]"""
    assert answer(broker.port, packet(0x10, HEAD, bytes([4, flags]), b"\x00\x3c", payload)) == b""


WILL = b"\x00" + text("t") + text("m")  # without properties


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        pytest.param(0x02, b"\x00", id="no client identifier"),
        pytest.param(0x82, b"\x00" + text("c"), id="no user name"),
        pytest.param(0x42, b"\x00" + text("c"), id="no password"),
        pytest.param(0x06, b"\x00" + text("c"), id="no will"),
        pytest.param(0x06, b"\x00" + text("c") + b"\x00" + text("t"), id="no will payload"),
        pytest.param(0x02, b"\x00" + text("c") + text("u"), id="user name without flag"),
        pytest.param(0x82, b"\x00" + text("c") + text("u") + text("p"), id="password without flag"),
        pytest.param(0x02, b"\x00" + text("c") + WILL, id="will without flag"),
        pytest.param(0x03, b"\x00" + text("c"), id="reserved flag"),
        pytest.param(0x1E, b"\x00" + text("c") + WILL, id="will QoS 3"),
        pytest.param(0x0A, b"\x00" + text("c"), id="will QoS without will"),
        pytest.param(0x22, b"\x00" + text("c"), id="will retain without will"),
        pytest.param(0x02, text("c"), id="no property length"),
        pytest.param(0x02, b"\x7f" + text("c"), id="properties cut short"),
        pytest.param(0x02, b"\x80\x00" + text("c"), id="overlong property length"),
        pytest.param(0x02, b"\x02\x7f\x00" + text("c"), id="unknown property"),
        pytest.param(0x02, b"\x03\x23\x00\x01" + text("c"), id="property of PUBLISH"),
        pytest.param(0x02, b"\x00" + text(b"\xed\xa0\x80"), id="surrogate in client identifier"),
        pytest.param(0x02, b"\x00" + text(b"a\x00b"), id="null in client identifier"),
        pytest.param(0x82, b"\x00" + text("c") + text(b"\xc3("), id="user name is not UTF-8"),
        pytest.param(
            0x06, b"\x00" + text("c") + b"\x00" + text(b"\xff") + text("m"), id="will topic is not UTF-8"
        ),
        pytest.param(
            0x06, b"\x00" + text("c") + b"\x00" + text("a/#") + text("m"), id="wildcard in will topic"
        ),
        pytest.param(0x06, b"\x00" + text("c") + b"\x00" + text("") + text("m"), id="empty will topic"),
    ],
)
def test_malformed_5(broker: RunningBroker, flags: int, payload: bytes) -> None:
    """A malformed CONNECT closes the connection; CONNACK may come before, DISCONNECT not.
    [MQTT-3.1.4-1] [MQTT-3.1.2-3] [MQTT-3.1.2-9] [MQTT-3.1.2-11] [MQTT-3.1.2-12] [MQTT-3.1.2-13]
    [MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT-3.1.3-3] [MQTT-3.1.3-4]
    [MQTT-3.1.3-11] [MQTT-3.1.3-12] [MQTT-3.14.0-1] [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.5-1]
    [MQTT-2.2.2-1] [MQTT-3.2.2-7] [MQTT-4.13.2-1]"""
    expect_refusal(
        broker, packet(0x10, HEAD, bytes([5, flags]), b"\x00\x3c", payload), 0x81, 0x82, 0x85, 0x90
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"receive_max": 0},
        {"packet_max": 0},
        {"auth_data": b"x"},
        {"request_problem": 2},
        {"request_response": 2},
        {"session_expiry": [1, 2]},
        {"receive_max": [1, 1]},
        {"auth_method": ["a", "a"]},
        {"will": Will("t", properties=[("will_delay", 1), ("will_delay", 1)])},
        {"will": Will("t", properties=[("response_topic", "a/+")])},
        {"will": Will("t", properties=[("topic_alias", 1)])},
    ],
    ids=str,
)
def test_wrong_properties(broker: RunningBroker, settings: Any) -> None:
    """Values that a property can't have, and properties that come twice, are protocol errors.
    [MQTT-3.1.4-1] [MQTT-4.13.1-1] [MQTT-3.2.2-7] [MQTT-3.3.2-14]"""
    expect_refusal(broker, connect(unique("c"), **settings), 0x81, 0x82, 0x90)


def expect_refusal(broker: RunningBroker, request: bytes, *reasons: int) -> None:
    """A refusing CONNACK of 5.0 with one of the reasons, or only the end."""
    client = Client(broker.port)
    client.send(request)
    with contextlib.suppress(ConnectionEnded):
        client.buffer = client.receive().raw
        refused(client, *reasons)


def test_user_properties_and_largest_values(broker: RunningBroker) -> None:
    """A user property may come often, even the same one; extreme values of all others are accepted.
    [MQTT-1.5.7-1]"""
    client = Client(broker.port)
    client.connect(
        session_expiry=0xFFFFFFFF,
        receive_max=65535,
        packet_max=0xFFFFFFFF,
        topic_alias_max=65535,
        request_response=1,
        request_problem=1,
        user=[("a", "1"), ("a", "1"), ("", "")],
        will=Will(
            "t",
            b"",
            properties=[("will_delay", 0xFFFFFFFF), ("message_expiry", 0xFFFFFFFF), ("user", ("", ""))],
        ),
    )
    client.disconnect(session_expiry=0)


def test_password_without_user_name_5(broker: RunningBroker) -> None:
    """Allowed in 5.0, unlike 3.1.1."""
    connected(broker, password=b"secret").ping()


def test_response_information_is_not_volunteered(broker: RunningBroker) -> None:
    """[MQTT-3.1.2-28]"""
    for settings in ({}, {"request_response": 0}):
        assert connected_with_connack(broker, **settings).get("response_information") is None


@every_version
def test_all_in_one_piece(broker: RunningBroker, version: int) -> None:
    """A client need not wait for CONNACK: what follows CONNECT in the same segment is handled in order.
    [MQTT-3.2.0-1] [3.1.1 MQTT-3.2.0-1]"""
    topic = unique("t/")
    client = Client(broker.port, version)
    client.send(
        connect(unique("c"), version),
        subscribe(1, (topic, 1), version=version),
        publish(topic, b"x", 1, 2, version=version),
        PING,
    )
    kinds = [client.receive().kind for _ in range(5)]
    assert kinds[:2] == [CONNACK, SUBACK]
    assert sorted(kinds[2:]) == [PUBLISH, PUBACK, PINGRESP]
    assert kinds.index(PUBACK) < kinds.index(PINGRESP)


@every_version
def test_byte_by_byte(broker: RunningBroker, version: int) -> None:
    """Packets need no relation to segments. [MQTT-4.2-1] [3.1.1 MQTT-4.2.0-1] [3.1.1 MQTT-7.1.1-1]"""
    topic = unique("t/")
    client = Client(broker.port, version)
    for request in (connect(unique("c"), version), subscribe(1, (topic, 0), version=version)):
        for index in range(len(request)):
            client.send(request[index : index + 1])
        client.expect(CONNACK if request[0] == 0x10 else SUBACK)
    for byte in publish(topic, bytes(200), version=version):
        client.send(bytes([byte]))
    client.expect_message(topic, bytes(200))


def test_refused_client_is_not_heard_3_1_1(broker: RunningBroker) -> None:
    """What follows a refused CONNECT is not handled. [3.1.1 MQTT-3.1.4-5]"""
    topic = unique("t/")
    watcher = connected(broker, 4)
    watcher.subscribe(topic)
    assert (
        answer(broker.port, connect("", 4, clean=False) + publish(topic, b"x", version=4))
        == b"\x20\x02\x00\x02"
    )
    watcher.expect_nothing()


def test_refused_client_is_not_heard_5(broker: RunningBroker) -> None:
    """The session of the refused client is not touched either: session present is 0, and the session stays.
    [MQTT-3.1.4-6] [MQTT-3.2.2-6] [MQTT-4.12.0-1]"""
    topic, name = unique("t/"), unique("c")
    connected(broker, client_id=name, **kept(5)).disconnect()
    watcher = connected(broker)
    watcher.subscribe(topic)
    client = Client(broker.port)
    client.send(connect(name, clean=False, auth_method="nothing known"), publish(topic, b"x"))
    refused(client, 0x8C, 0x87)
    watcher.expect_nothing()
    assert connected_with_connack(broker, client_id=name, clean=False).session_present
