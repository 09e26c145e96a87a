"""Our bytes mean the same to paho-mqtt and gmqtt, and theirs to us: two independent opinions."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import gmqtt  # type: ignore[import-untyped]
import pytest
from gmqtt.mqtt import package as gmqtt_package  # type: ignore[import-untyped]
from gmqtt.mqtt.property import Property as GmqttProperty  # type: ignore[import-untyped]
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions
from waiting import WAIT_S

from tidemq.wire import (
    NO_PROPERTIES,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    decode_properties,
    encode,
    encode_properties,
)

# our field, paho's name, gmqtt's name, value, a packet that may have it
PROPERTIES = [
    ("payload_format", "PayloadFormatIndicator", "payload_format_id", 1, "PUBLISH"),
    ("message_expiry_s", "MessageExpiryInterval", "message_expiry_interval", 0x01020304, "PUBLISH"),
    ("content_type", "ContentType", "content_type", "é", "PUBLISH"),
    ("response_topic", "ResponseTopic", "response_topic", "a/b", "PUBLISH"),
    ("correlation_data", "CorrelationData", "correlation_data", b"\x00\xff", "PUBLISH"),
    ("subscription_ids", "SubscriptionIdentifier", "subscription_identifier", 268_435_455, "SUBSCRIBE"),
    ("session_expiry_s", "SessionExpiryInterval", "session_expiry_interval", 0xFFFFFFFF, "CONNECT"),
    ("assigned_client_id", "AssignedClientIdentifier", "assigned_client_identifier", "id", "CONNACK"),
    ("server_keep_alive_s", "ServerKeepAlive", "server_keep_alive", 258, "CONNACK"),
    ("auth_method", "AuthenticationMethod", "auth_method", "m", "CONNECT"),
    ("request_problem_info", "RequestProblemInformation", "request_problem_info", 0, "CONNECT"),
    ("request_response_info", "RequestResponseInformation", "request_response_info", 1, "CONNECT"),
    ("response_info", "ResponseInformation", "response_info", "r", "CONNACK"),
    ("server_reference", "ServerReference", "server_reference", "s", "CONNACK"),
    ("reason_string", "ReasonString", "reason_string", "why", "PUBACK"),
    ("receive_maximum", "ReceiveMaximum", "receive_maximum", 258, "CONNECT"),
    ("topic_alias_maximum", "TopicAliasMaximum", "topic_alias_maximum", 258, "CONNECT"),
    ("topic_alias", "TopicAlias", "topic_alias", 258, "PUBLISH"),
    ("maximum_qos", "MaximumQoS", "max_qos", 1, "CONNACK"),
    ("retain_available", "RetainAvailable", "retain_available", 0, "CONNACK"),
    ("maximum_packet_size", "MaximumPacketSize", "maximum_packet_size", 0x01020304, "CONNECT"),
    ("wildcard_available", "WildcardSubscriptionAvailable", "wildcard_subscription_available", 0, "CONNACK"),
    ("subscription_ids_available", "SubscriptionIdentifierAvailable", "sub_id_available", 0, "CONNACK"),
    ("shared_available", "SharedSubscriptionAvailable", "shared_subscription_available", 1, "CONNACK"),
]


def ours(field: str, value: object) -> Properties:
    changes: dict[str, Any] = {field: (value,) if field == "subscription_ids" else value}
    return dataclasses.replace(NO_PROPERTIES, **changes)


def paho_properties(packet_type: int, **values: object) -> PahoProperties:
    properties = PahoProperties(packet_type)
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


@pytest.mark.parametrize(("field", "name", "_gmqtt", "value", "packet"), PROPERTIES)
def test_property_as_paho_packs_it(field: str, name: str, _gmqtt: str, value: object, packet: str) -> None:
    theirs = paho_properties(getattr(PacketTypes, packet), **{name: value}).pack()
    block = encode_properties(ours(field, value))
    assert bytes(theirs) == bytes((len(block),)) + block
    assert decode_properties(bytes(theirs[1:]), PacketType[packet]) == ours(field, value)


def test_will_delay_and_user_properties_as_paho_packs_them() -> None:
    theirs = PahoProperties(PacketTypes.WILLMESSAGE)
    theirs.WillDelayInterval = 7
    theirs.UserProperty = [("b", "1"), ("a", "2"), ("b", "1")]
    mine = Properties(will_delay_s=7, user_properties=(("b", "1"), ("a", "2"), ("b", "1")))
    assert bytes(theirs.pack()[1:]) == encode_properties(mine)


@pytest.mark.parametrize(("field", "_paho", "name", "value", "packet"), PROPERTIES)
def test_property_as_gmqtt_dumps_it(field: str, _paho: str, name: str, value: object, packet: str) -> None:
    theirs = GmqttProperty.factory(name=name)
    assert theirs is not None
    block = encode_properties(ours(field, value))
    assert bytes(theirs.dumps(value)) == block
    assert decode_properties(bytes(theirs.dumps(value)), PacketType[packet]) == ours(field, value)


# --- a paho client at the other end of a socket pair


class PairedClient(paho.Client):
    """Connects to the socket it is given."""

    peer: socket.socket

    def _create_socket(self) -> socket.socket:
        return self.peer


@contextmanager
def paho_client(version: int, **options: Any) -> Iterator[tuple[PairedClient, Server]]:
    near, far = socket.socketpair()
    protocol = {3: paho.MQTTv31, 4: paho.MQTTv311, 5: paho.MQTTv5}[version]
    client = PairedClient(CallbackAPIVersion.VERSION2, protocol=protocol, **options)
    client.peer = near
    far.settimeout(WAIT_S)
    with far:
        yield client, Server(far, version)
        client.disconnect()
    near.close()


class Server:
    """The other end, as far as the wire format goes."""

    def __init__(self, connection: socket.socket, version: int) -> None:
        self._connection = connection
        self._version = version
        self._decoder = Decoder(version)

    def receive(self) -> Packet:
        while (packet := next(self._decoder, None)) is None:
            self._decoder.feed(self._connection.recv(4096))
        return packet

    def send(self, packet: Packet, client: PairedClient) -> None:
        self._connection.sendall(encode(packet, self._version))
        assert client.loop_read() == paho.MQTT_ERR_SUCCESS


def connected(client: PairedClient, server: Server) -> None:
    client.connect("pair", keepalive=30)
    assert isinstance(server.receive(), Connect)
    server.send(Connack(), client)
    assert client.is_connected()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_connect_of_paho(version: int) -> None:
    options: dict[str, Any] = {} if version == 5 else {"clean_session": False}
    with paho_client(version, client_id="me", **options) as (client, server):
        client.username_pw_set("u", "pä")
        will_properties = properties = NO_PROPERTIES
        if version == 5:
            theirs = paho_properties(PacketTypes.WILLMESSAGE, WillDelayInterval=9, ContentType="t")
            client.will_set("w/x", b"\x00bye", qos=2, retain=True, properties=theirs)
            will_properties = Properties(will_delay_s=9, content_type="t")
            properties = Properties(session_expiry_s=10, receive_maximum=5, user_properties=(("k", "v"),))
            connect_properties = paho_properties(
                PacketTypes.CONNECT, SessionExpiryInterval=10, ReceiveMaximum=5, UserProperty=("k", "v")
            )
            client.connect("pair", keepalive=30, clean_start=False, properties=connect_properties)
        else:
            client.will_set("w/x", b"\x00bye", qos=2, retain=True)
            client.connect("pair", keepalive=30)
        assert server.receive() == Connect(
            version=version,
            client_id="me",
            clean_start=False,
            keep_alive_s=30,
            will=Will(topic="w/x", payload=b"\x00bye", qos=2, retain=True, properties=will_properties),
            username="u",
            password="pä".encode(),
            properties=properties,
        )


@pytest.mark.parametrize("version", [3, 4, 5])
def test_connack_to_paho(version: int) -> None:
    found: list[tuple[bool, int, Any]] = []
    with paho_client(version, client_id="me") as (client, server):
        client.on_connect = lambda _c, _u, flags, reason, properties: found.append(
            (flags.session_present, reason.value, properties)
        )
        client.connect("pair")
        server.receive()
        answer = Connack(session_present=version > 3, reason=0)
        if version == 5:
            answer = Connack(
                session_present=True,
                properties=Properties(
                    assigned_client_id="x",
                    maximum_qos=1,
                    server_keep_alive_s=7,
                    user_properties=(("k", "v"),),
                ),
            )
        server.send(answer, client)
        [(session_present, reason, properties)] = found
        assert (session_present, reason) == (version > 3, 0)
        if version == 5:
            assert properties.json() == {
                "AssignedClientIdentifier": "x",
                "MaximumQoS": 1,
                "ServerKeepAlive": 7,
                "UserProperty": [("k", "v")],
            }


@pytest.mark.parametrize("version", [3, 4, 5])
def test_messages_of_paho(version: int) -> None:
    with paho_client(version, client_id="me") as (client, server):
        connected(client, server)
        mine, theirs = NO_PROPERTIES, None
        if version == 5:
            mine = Properties(payload_format=1, response_topic="r", user_properties=(("k", "v"), ("k", "w")))
            theirs = paho_properties(PacketTypes.PUBLISH, PayloadFormatIndicator=1, ResponseTopic="r")
            theirs.UserProperty = [("k", "v"), ("k", "w")]
        client.publish("a/ü", b"0", qos=0, retain=True, properties=theirs)
        client.publish("a/b", b"1" * 200, qos=1, properties=theirs)
        client.publish("a/c", b"", qos=2)
        assert server.receive() == Publish(topic="a/ü", payload=b"0", retain=True, properties=mine)
        assert server.receive() == Publish(
            topic="a/b", payload=b"1" * 200, qos=1, packet_id=2, properties=mine
        )
        assert server.receive() == Publish(topic="a/c", qos=2, packet_id=3)
        server.send(Puback(packet_id=2), client)
        server.send(Pubrec(packet_id=3), client)
        assert server.receive() == Pubrel(packet_id=3)
        done: list[tuple[int, int]] = []
        client.on_publish = lambda _c, _u, packet_id, reason, _p: done.append((packet_id, reason.value))
        server.send(Pubcomp(packet_id=3), client)
        assert done == [(3, 0)]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_messages_to_paho(version: int) -> None:
    got: list[paho.MQTTMessage] = []
    with paho_client(version, client_id="me") as (client, server):
        connected(client, server)
        client.on_message = lambda _c, _u, message: got.append(message)
        mine = NO_PROPERTIES
        if version == 5:
            mine = Properties(content_type="t", subscription_ids=(1, 300), user_properties=(("k", "v"),))
        server.send(Publish(topic="a/ü", payload=b"0", retain=True, properties=mine), client)
        server.send(Publish(topic="a/b", payload=b"1" * 200, qos=1, packet_id=9, dup=True), client)
        server.send(Publish(topic="a/c", qos=2, packet_id=10), client)
        assert server.receive() == Puback(packet_id=9)
        assert server.receive() == Pubrec(packet_id=10)
        server.send(Pubrel(packet_id=10), client)
        assert server.receive() == Pubcomp(packet_id=10)
    seen = [(m.topic, m.payload, m.qos, bool(m.retain), bool(m.dup)) for m in got]
    assert seen == [
        ("a/ü", b"0", 0, True, False),
        ("a/b", b"1" * 200, 1, False, True),
        ("a/c", b"", 2, False, False),
    ]
    if version == 5:
        assert got[0].properties is not None
        assert got[0].properties.json() == {
            "ContentType": "t",
            "SubscriptionIdentifier": [1, 300],
            "UserProperty": [("k", "v")],
        }


@pytest.mark.parametrize("version", [3, 4, 5])
def test_subscriptions_of_paho(version: int) -> None:
    with paho_client(version, client_id="me") as (client, server):
        connected(client, server)
        answers: list[list[int]] = []
        client.on_subscribe = lambda _c, _u, _mid, reasons, _p: answers.append([r.value for r in reasons])
        if version == 5:
            options = SubscribeOptions(qos=2, noLocal=True, retainAsPublished=True, retainHandling=2)
            theirs = paho_properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=200)
            client.subscribe([("a/+", options), ("b/#", SubscribeOptions(qos=1))], properties=theirs)
        else:
            client.subscribe([("a/+", 2), ("b/#", 1)])
        first = Subscription(filter="a/+", qos=2)
        if version == 5:
            first = dataclasses.replace(first, no_local=True, retain_as_published=True, retain_handling=2)
        assert server.receive() == Subscribe(
            packet_id=1,
            subscriptions=(first, Subscription(filter="b/#", qos=1)),
            properties=Properties(subscription_ids=(200,)) if version == 5 else NO_PROPERTIES,
        )
        server.send(Suback(packet_id=1, reasons=(2, 0x80)), client)
        assert answers == [[2, 0x80]]
        client.unsubscribe(["a/+", "b/#"])
        assert server.receive() == Unsubscribe(packet_id=2, filters=("a/+", "b/#"))
        ended: list[int] = []
        client.on_unsubscribe = lambda _c, _u, packet_id, _reasons, _p: ended.append(packet_id)
        server.send(Unsuback(packet_id=2, reasons=(0, 0x11) if version == 5 else ()), client)
        assert ended == [2]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_ping_and_disconnect_of_paho(version: int) -> None:
    with paho_client(version, client_id="me") as (client, server):
        connected(client, server)
        client._send_pingreq()
        assert server.receive() == Pingreq()
        server.send(Pingresp(), client)
        if version == 5:
            theirs = paho_properties(PacketTypes.DISCONNECT, SessionExpiryInterval=3)
            client.disconnect(PahoReasonCode(PacketTypes.DISCONNECT, identifier=4), theirs)
            properties = Properties(session_expiry_s=3)
            assert server.receive() == Disconnect(reason=4, properties=properties)
        else:
            client.disconnect()
            assert server.receive() == Disconnect()


def test_disconnect_to_paho() -> None:
    seen: list[tuple[int, Any]] = []
    with paho_client(5, client_id="me") as (client, server):
        connected(client, server)
        client.on_disconnect = lambda _c, _u, _flags, reason, properties: seen.append(
            (reason.value, properties)
        )
        reason = ReasonCode.SERVER_MOVED
        server.send(Disconnect(reason=reason, properties=Properties(server_reference="there")), client)
    assert [(value, properties.json()) for value, properties in seen] == [
        (0x9D, {"ServerReference": "there"})
    ]


# --- gmqtt's builders


def gmqtt_protocol(version: int) -> Any:
    """What its builders ask of a connection: names, version and packet identifiers."""
    return SimpleNamespace(
        proto_name=b"MQTT", proto_ver=version, id_generator=SimpleNamespace(next_id=lambda: 77)
    )


def read_one(raw: bytes, version: int) -> Packet:
    decoder = Decoder(version)
    decoder.feed(bytes(raw))
    [packet] = decoder
    return packet


@pytest.mark.parametrize("version", [4, 5])
def test_packets_of_gmqtt(version: int) -> None:
    protocol = gmqtt_protocol(version)
    values = {"content_type": "t", "user_property": [("k", "v"), ("k", "w")]} if version == 5 else {}
    mine = NO_PROPERTIES
    if version == 5:
        mine = Properties(content_type="t", user_properties=(("k", "v"), ("k", "w")))

    message = gmqtt.Message("a/b", b"x" * 300, qos=1, retain=True, **values)
    raw = gmqtt_package.PublishPacket.build_package(message, protocol)[1]
    expected: Packet = Publish(
        topic="a/b", payload=b"x" * 300, qos=1, retain=True, packet_id=77, properties=mine
    )
    assert read_one(raw, version) == expected
    assert encode(expected, version) == raw

    raw = gmqtt_package.LoginPackageFactor.build_package("me", "u", "p", True, 9, protocol, message)
    assert read_one(raw, version) == Connect(
        version=version,
        client_id="me",
        keep_alive_s=9,
        username="u",
        password=b"p",
        will=Will(topic="a/b", payload=b"x" * 300, qos=1, retain=True, properties=mine),
    )

    subscription = gmqtt.Subscription("a/#", qos=2, no_local=version == 5)
    raw = gmqtt_package.SubscribePacket.build_package([subscription], protocol)[1]
    expected = Subscribe(
        packet_id=77, subscriptions=(Subscription(filter="a/#", qos=2, no_local=version == 5),)
    )
    assert read_one(raw, version) == expected
    assert encode(expected, version) == raw

    raw = gmqtt_package.UnsubscribePacket.build_package(["a/#", "b"], protocol)[1]
    assert read_one(raw, version) == Unsubscribe(packet_id=77, filters=("a/#", "b"))
    raw = gmqtt_package.CommandWithMidPacket.build_package(0x40, 77, False, 0x10 * (version == 5), version)
    assert read_one(raw, version) == Puback(packet_id=77, reason=0x10 * (version == 5))
    raw = gmqtt_package.DisconnectPacket.build_package(protocol, 0)
    assert read_one(raw, version) == Disconnect()
