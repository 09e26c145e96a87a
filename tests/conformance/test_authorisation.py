"""Refusals: enhanced authentication, user names, and topics that a client has no right to."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.kit import Client, ConnectionEnded, connected, refused, unique
from conformance.packets import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    Will,
    acknowledge,
    auth,
    connect,
    publish,
    subscribe,
)
from conformance.providers import ENTRY_POINTS, NAME, SOURCE
from conftest import RunningBroker, StartBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> RunningBroker:
    """A broker with the tests' own authenticator and authoriser, in an installed package's form."""
    folder = tmp_path_factory.mktemp("providers")
    (folder / "conformance_providers.py").write_text(SOURCE)
    metadata = folder / "conformance_providers-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: conformance-providers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return start_broker(f'authenticator = "{NAME}"\nauthoriser = "{NAME}"\n', import_from=folder)


def asked(broker: RunningBroker, **settings: Any) -> Client:
    """A client that has sent CONNECT with the method "echo" and got the broker's question."""
    client = Client(broker.port)
    client.send(connect(unique("c"), auth_method="echo", **settings))
    question = client.expect(AUTH, reason=0x18)
    assert question.get("auth_method") == "echo"
    assert question.get("auth_data") == b"say it"
    return client


def test_exchange(broker: RunningBroker) -> None:
    """AUTH asks with reason 0x18 and the method, CONNACK names the method.
    [MQTT-4.12.0-2] [MQTT-4.12.0-5] [MQTT-3.15.2-1] [MQTT-3.2.0-1]"""
    client = asked(broker)
    client.send(auth(0x18, auth_method="echo", auth_data=b"say it"))
    connack = client.expect(CONNACK, reason=0)
    assert connack.get("auth_method") == "echo"
    assert connack.get("auth_data") == b"well said"
    client.ping()


def test_exchange_in_small_packets(broker: RunningBroker) -> None:
    """[MQTT-3.15.2-2] [MQTT-3.15.2-3] [MQTT-3.1.2-24]"""
    client = Client(broker.port)
    client.send(connect(unique("c"), auth_method="echo", packet_max=30))
    assert len(client.expect(AUTH).raw) <= 30


def test_wrong_answer(broker: RunningBroker) -> None:
    """[MQTT-4.12.0-4] [MQTT-3.1.4-2] [MQTT-3.2.2-7]"""
    client = asked(broker)
    client.send(auth(0x18, auth_method="echo", auth_data=b"something else"))
    refused(client, 0x87)


def test_another_method_in_the_answer(broker: RunningBroker) -> None:
    """[MQTT-4.12.0-5] [MQTT-4.12.0-4]"""
    client = asked(broker)
    client.send(auth(0x18, auth_method="other", auth_data=b"say it"))
    refused(client, 0x82, 0x8C)


@pytest.mark.parametrize("early", [publish("t", b"x"), subscribe(1, ("t", 0)), b"\xc0\x00"])
def test_other_packets_in_the_exchange(broker: RunningBroker, early: bytes) -> None:
    """Before CONNACK only AUTH and DISCONNECT may come. [MQTT-4.13.1-1] [MQTT-3.14.0-1]"""
    client = asked(broker)
    client.send(early)
    try:
        refused(client, 0x82, 0x87)
    except ConnectionEnded:
        return


def test_unknown_method(broker: RunningBroker) -> None:
    """[MQTT-4.12.0-1]"""
    client = Client(broker.port)
    client.send(connect(unique("c"), auth_method="other"))
    refused(client, 0x8C)


def test_authenticating_again(broker: RunningBroker) -> None:
    """The exchange goes on beside other packets; success is AUTH 0x00.
    [MQTT-4.12.0-5] [MQTT-4.12.0-2] [MQTT-3.15.2-1]"""
    client = asked(broker)
    client.send(auth(0x18, auth_method="echo", auth_data=b"say it"))
    client.expect(CONNACK, reason=0)
    client.send(auth(0x19, auth_method="echo"))
    client.expect(AUTH, reason=0x18)
    client.send(auth(0x18, auth_method="echo", auth_data=b"say it"))
    assert client.expect(AUTH, reason=0x00).get("auth_method") == "echo"
    client.ping()


def test_failing_to_authenticate_again(broker: RunningBroker) -> None:
    """[MQTT-4.12.1-2] [MQTT-4.13.2-1]"""
    client = asked(broker)
    client.send(auth(0x18, auth_method="echo", auth_data=b"say it"))
    client.expect(CONNACK, reason=0)
    client.send(auth(0x19, auth_method="echo"))
    client.expect(AUTH, reason=0x18)
    client.send(auth(0x18, auth_method="echo", auth_data=b"wrong"))
    client.expect_closed(0x87)


@every_version
def test_refused_user(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.1.4-2] [MQTT-3.1.4-6] [MQTT-3.2.2-7] [MQTT-3.2.2-8] [3.1.1 MQTT-3.2.2-5]
    [3.1.1 MQTT-3.1.4-5]"""
    client = Client(broker.port, version)
    client.send(
        connect(unique("c"), version, username="denied", password=b"p"), publish("t", version=version)
    )
    refused(client, 0x86 if version == 5 else 4)
    connected(broker, version, username="anybody", password=b"p").ping()


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_refused_publish(broker: RunningBroker, version: int, qos: int) -> None:
    """Nobody gets the message. 5.0 says why; 3.x acknowledges as always or closes the connection.
    [MQTT-3.4.2-1] [MQTT-3.5.2-1] [3.1.1 MQTT-3.3.5-2]"""
    topic = f"denied/{unique('t')}"
    client = connected(broker, version)
    client.send(publish(topic, b"x", qos, 9, version, retain=True))
    if version == 5 and qos:
        client.expect(PUBACK if qos == 1 else PUBREC, packet_id=9, reason=0x87)
        client.ping()
    elif qos == 0:
        client.ping()
    else:
        acknowledged_or_closed(client, qos)
    client = connected(broker, version)
    client.publish(topic.removeprefix("denied/"), b"x", qos)


def acknowledged_or_closed(client: Client, qos: int) -> None:
    try:
        client.expect(PUBACK if qos == 1 else PUBREC, packet_id=9)
    except ConnectionEnded:
        return
    if qos == 2:
        client.send(acknowledge(PUBREL, 9))
        client.expect(PUBCOMP, packet_id=9)


def test_identifier_is_free_after_refusal(broker: RunningBroker) -> None:
    """After PUBREC 0x87 the same identifier is a new message. [MQTT-4.3.3-9]"""
    topic, receiver, sender = unique("t/"), connected(broker), connected(broker)
    receiver.subscribe(topic, 2)
    sender.send(publish("denied/t", b"x", 2, 7))
    sender.expect(PUBREC, packet_id=7, reason=0x87)
    sender.send(publish(topic, b"y", 2, 7))
    sender.expect(PUBREC, packet_id=7, reason=0)
    sender.send(acknowledge(PUBREL, 7))
    sender.expect(PUBCOMP, packet_id=7, reason=0)
    receiver.expect_message(topic, b"y", 2)


@every_version
def test_refused_subscription(broker: RunningBroker, version: int) -> None:
    """Only the filter in question. [MQTT-3.8.4-7] [MQTT-3.9.3-2] [3.1.1 MQTT-3.8.4-5] [3.1.1 MQTT-3.9.3-2]"""
    topic, client = unique("t/"), connected(broker, version)
    client.send(subscribe(1, (topic, 1), ("denied/t", 1), (f"{topic}/#", 2), version=version))
    client.expect(SUBACK, packet_id=1, reasons=[1, 0x87 if version == 5 else 0x80, 2])
    connected(broker, version).publish(f"{topic}/a", b"x", 2)
    client.expect_message(f"{topic}/a", b"x", 2)


@every_version
def test_refused_will(broker: RunningBroker, version: int) -> None:
    """A will on a topic that the client has no right to refuses CONNECT."""
    client = Client(broker.port, version)
    client.send(connect(unique("c"), version, will=Will("denied/t")))
    refused(client, 0x87 if version == 5 else 5)


def test_packets_wait_for_the_decision(broker: RunningBroker) -> None:
    """What a client sends behind a packet that is being decided on is handled afterwards, in order."""
    topic, client = unique("t/"), Client(broker.port)
    client.send(
        connect(unique("c")),
        subscribe(1, (topic, 1)),
        *(publish(topic if number % 3 else "denied/t", b"%d" % number, 1, number) for number in range(1, 10)),
    )
    client.expect(CONNACK, reason=0)
    client.expect(SUBACK, reasons=[1])
    acknowledged: list[Any] = []
    received: list[Any] = []
    while len(acknowledged) < 9 or len(received) < 6:
        packet = client.receive()
        assert packet.kind in (PUBACK, PUBLISH), packet
        if packet.kind == PUBACK:
            acknowledged.append((packet.packet_id, packet.reason))
        else:
            received.append(int(packet.payload))
    assert acknowledged == [(number, 0 if number % 3 else 0x87) for number in range(1, 10)]
    assert received == [1, 2, 4, 5, 7, 8]


def test_subscriptions_wait_for_their_decisions(broker: RunningBroker) -> None:
    """One after the other, though they came together."""
    topic, client = unique("t/"), connected(broker)
    client.send(*(subscribe(number, (f"{topic}/{number}", 1)) for number in range(1, 4)))
    for number in range(1, 4):
        client.expect(SUBACK, packet_id=number, reasons=[1])


def test_disconnect_in_the_exchange(broker: RunningBroker) -> None:
    """A client may give up; the broker sends nothing more. [MQTT-3.14.0-1]"""
    client = asked(broker)
    client.send(b"\xe0\x00")
    with pytest.raises(ConnectionEnded):
        assert client.receive().kind != DISCONNECT
