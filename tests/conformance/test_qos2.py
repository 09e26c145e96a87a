"""QoS 2: the handshake both ways, exactly once, and where it goes on after a reconnection."""

from __future__ import annotations

import time
from typing import Any

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, acknowledge, publish
from conftest import RunningBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])


def receiver_and_sender(broker: RunningBroker, version: int, **settings: Any) -> tuple[str, Client, Client]:
    topic = unique("t/")
    receiver, sender = connected(broker, version, **settings), connected(broker, version)
    receiver.subscribe(topic, 2)
    return topic, receiver, sender


@every_version
def test_exact_handshake(broker: RunningBroker, version: int) -> None:
    """All packets of both sides, byte by byte.
    [MQTT-3.3.4-1] [MQTT-2.2.1-5] [MQTT-4.3.3-2] [MQTT-4.3.3-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11] [MQTT-2.1.3-1]
    [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1] [3.1.1 MQTT-3.3.4-1] [3.1.1 MQTT-2.3.1-6]
    [3.1.1 MQTT-4.3.3-1] [3.1.1 MQTT-4.3.3-2]"""
    topic, receiver, sender = receiver_and_sender(broker, version)
    sender.send(publish(topic, b"payload", 2, 0xABCD, version))
    sender.expect_bytes(b"\x50\x02\xab\xcd")
    sender.send(acknowledge(PUBREL, 0xABCD))
    sender.expect_bytes(b"\x70\x02\xab\xcd")
    message = receiver.expect(PUBLISH, topic=topic, payload=b"payload")
    assert message.raw == publish(topic, b"payload", 2, message.packet_id, version)
    receiver.send(acknowledge(PUBREC, message.packet_id))
    receiver.expect_bytes(acknowledge(PUBREL, message.packet_id))
    receiver.send(acknowledge(PUBCOMP, message.packet_id))
    receiver.expect_nothing()


@every_version
def test_the_same_publish_twice(broker: RunningBroker, version: int) -> None:
    """Until PUBREL, the same identifier is the same message: PUBREC again, no second delivery.
    [MQTT-4.3.3-10] [3.1.1 MQTT-4.3.3-2]"""
    topic, receiver, sender = receiver_and_sender(broker, version)
    for dup in (False, True, True):
        sender.send(publish(topic, b"x", 2, 7, version, dup=dup))
        assert sender.expect(PUBREC, packet_id=7).reason in (0, 0x10, 0x91)
    sender.send(acknowledge(PUBREL, 7))
    sender.expect_bytes(b"\x70\x02\x00\x07")
    receiver.expect_message(topic, b"x", 2, dup=False)
    receiver.expect_nothing()


@every_version
def test_identifier_is_free_after_pubcomp(broker: RunningBroker, version: int) -> None:
    """[MQTT-4.3.3-12] [MQTT-4.3.3-1] [3.1.1 MQTT-4.3.3-2]"""
    topic, receiver, sender = receiver_and_sender(broker, version)
    for number in range(3):
        sender.send(publish(topic, b"%d" % number, 2, 7, version))
        sender.expect_bytes(b"\x50\x02\x00\x07")
        sender.send(acknowledge(PUBREL, 7))
        sender.expect_bytes(b"\x70\x02\x00\x07")
        receiver.expect_message(topic, b"%d" % number, 2)


@every_version
def test_pubrecs_and_pubrels_in_order(broker: RunningBroker, version: int) -> None:
    """[3.1.1 MQTT-4.6.0-3] [3.1.1 MQTT-4.6.0-4]"""
    topic, receiver, sender = receiver_and_sender(broker, version)
    ids = [5, 3, 9, 1, 65535, 2]
    sender.send(*(publish(topic, b"%d" % packet_id, 2, packet_id, version) for packet_id in ids))
    assert [sender.expect(PUBREC).packet_id for _ in ids] == ids
    sender.send(*(acknowledge(PUBREL, packet_id) for packet_id in ids))
    assert [sender.expect(PUBCOMP).packet_id for _ in ids] == ids
    messages = [receiver.expect(PUBLISH, payload=b"%d" % packet_id) for packet_id in ids]
    receiver.send(*(acknowledge(PUBREC, message.packet_id) for message in messages))
    assert [receiver.expect(PUBREL).packet_id for _ in ids] == [message.packet_id for message in messages]


@pytest.mark.parametrize("version", [4, 5])
def test_sender_reconnects_before_pubrel(broker: RunningBroker, version: int) -> None:
    """The received identifier belongs to the session: after reconnection the same PUBLISH is still no new
    message. [MQTT-4.3.3-10] [MQTT-4.1.0-1] [3.1.1 MQTT-4.3.3-2] [3.1.1 MQTT-3.1.2-4] [3.1.1 MQTT-4.1.0-1]"""
    topic, receiver, _ = receiver_and_sender(broker, version)
    name = unique("c")
    sender = connected(broker, version, name, **kept(version))
    sender.send(publish(topic, b"x", 2, 7, version))
    sender.expect(PUBREC)
    sender.drop()
    sender = connected(broker, version, name, **kept(version))
    sender.send(publish(topic, b"x", 2, 7, version, dup=True))
    assert sender.expect(PUBREC, packet_id=7).reason in (0, 0x10, 0x91)
    sender.send(acknowledge(PUBREL, 7))
    sender.expect_bytes(b"\x70\x02\x00\x07")
    receiver.expect_message(topic, b"x", 2)
    receiver.expect_nothing()


@every_version
def test_clean_start_forgets_received_identifiers(broker: RunningBroker, version: int) -> None:
    """The identifier of a message whose handshake was cut off is a new message in the new session.
    [MQTT-3.1.2-4] [3.1.1 MQTT-3.1.2-6]"""
    topic, receiver, _ = receiver_and_sender(broker, version)
    sender = connected(broker, version)
    sender.send(publish(topic, b"old", 2, 7, version))
    sender.expect(PUBREC)
    sender.drop()
    sender = connected(broker, version, sender.client_id)
    sender.send(publish(topic, b"new", 2, 7, version))
    sender.expect_bytes(b"\x50\x02\x00\x07")
    sender.send(acknowledge(PUBREL, 7))
    sender.expect_bytes(b"\x70\x02\x00\x07")
    received = receiver.expect(PUBLISH)
    receiver.acknowledge(received)
    if received.payload == b"old":  # passed on at PUBLISH already, which is as good as at PUBREL
        receiver.expect_message(topic, b"new", 2)
    else:
        assert received.payload == b"new"


@every_version
def test_receiver_reconnects_before_pubrec(broker: RunningBroker, version: int) -> None:
    """PUBLISH comes again with DUP and its identifier.
    [MQTT-4.3.3-3] [MQTT-4.4.0-1] [MQTT-3.3.1-1] [3.1.1 MQTT-4.4.0-1] [3.1.1 MQTT-4.3.3-1]
    [3.1.1 MQTT-3.3.1-1]"""
    name = unique("c")
    topic, receiver, sender = receiver_and_sender(broker, version, client_id=name, **kept(version))
    sender.publish(topic, b"x", 2)
    message = receiver.expect(PUBLISH)
    receiver.drop()
    receiver = connected(broker, version, name, **kept(version))
    again = receiver.expect(PUBLISH)
    assert again.raw == publish(topic, b"x", 2, message.packet_id, version, dup=True)
    receiver.acknowledge(again)
    receiver.expect_nothing()


@every_version
def test_receiver_reconnects_before_pubcomp(broker: RunningBroker, version: int) -> None:
    """PUBREL comes again, PUBLISH never.
    [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.4.0-1] [3.1.1 MQTT-4.4.0-1] [3.1.1 MQTT-4.3.3-1]"""
    name = unique("c")
    topic, receiver, sender = receiver_and_sender(broker, version, client_id=name, **kept(version))
    sender.publish(topic, b"x", 2)
    message = receiver.expect(PUBLISH)
    receiver.send(acknowledge(PUBREC, message.packet_id))
    receiver.expect(PUBREL)
    for _ in range(2):
        receiver.drop()
        receiver = connected(broker, version, name, **kept(version))
        receiver.expect_bytes(acknowledge(PUBREL, message.packet_id))
    receiver.send(acknowledge(PUBCOMP, message.packet_id))
    receiver.expect_nothing()
    receiver.drop()
    connected(broker, version, name, **kept(version)).expect_nothing()


@every_version
def test_all_stages_in_order(broker: RunningBroker, version: int) -> None:
    """Messages in every stage, of both QoS, are taken up again in the order in which they were first sent.
    [MQTT-4.4.0-1] [3.1.1 MQTT-4.6.0-1] [3.1.1 MQTT-4.4.0-1]"""
    name = unique("c")
    topic, receiver, sender = receiver_and_sender(broker, version, client_id=name, **kept(version))
    for number in range(6):
        sender.publish(topic, b"%d" % number, 1 + number % 2)
    first = [receiver.expect(PUBLISH, payload=b"%d" % number) for number in range(6)]
    receiver.send(acknowledge(PUBREC, first[3].packet_id))
    receiver.expect(PUBREL, packet_id=first[3].packet_id)
    receiver.acknowledge(first[2])
    receiver.acknowledge(first[5])
    receiver.drop()
    receiver = connected(broker, version, name, **kept(version))
    again = [receiver.receive() for _ in range(4)]
    messages = [packet for packet in again if packet.kind == PUBLISH]
    assert [(packet.payload, packet.packet_id, packet.dup) for packet in messages] == [
        (packet.payload, packet.packet_id, True) for packet in (first[0], first[1], first[4])
    ]
    (release,) = (packet for packet in again if packet.kind == PUBREL)
    assert release.packet_id == first[3].packet_id
    receiver.expect_nothing()


def test_refused_by_the_receiver(broker: RunningBroker) -> None:
    """A PUBREC of 0x80 or more ends the delivery: no PUBREL, quota and message free, nothing sent again.
    [MQTT-4.4.0-2] [MQTT-3.3.4-9] [MQTT-4.3.3-4]"""
    name = unique("c")
    topic, receiver, sender = receiver_and_sender(broker, 5, client_id=name, receive_max=1, **kept(5))
    sender.publish(topic, b"first", 2)
    sender.publish(topic, b"second", 2)
    message = receiver.expect(PUBLISH, payload=b"first")
    receiver.send(acknowledge(PUBREC, message.packet_id, 0x80))
    receiver.expect_message(topic, b"second", 2)
    receiver.drop()
    connected(broker, client_id=name, **kept(5)).expect_nothing()


@every_version
def test_pubrel_of_an_unknown_identifier(broker: RunningBroker, version: int) -> None:
    """The handshake ends all the same; 5.0 may say that the identifier was not found. [MQTT-4.3.3-11]
    [3.1.1 MQTT-4.3.3-2] [MQTT-3.7.2-1]"""
    client = connected(broker, version)
    client.send(acknowledge(PUBREL, 4711))
    assert client.expect(PUBCOMP, packet_id=4711).reason in ((0, 0x92) if version == 5 else (0,))


def test_pubrec_of_an_unknown_identifier(broker: RunningBroker) -> None:
    """5.0 answers with PUBREL 0x92, so that the other side forgets as well. [MQTT-3.6.2-1]"""
    client = connected(broker)
    client.send(acknowledge(PUBREC, 4711))
    client.expect(PUBREL, packet_id=4711, reason=0x92)


def test_refusal_of_an_unknown_identifier(broker: RunningBroker) -> None:
    """A PUBREC of 0x80 or more has ended the delivery already: nothing is left to be said. [MQTT-4.3.3-4]"""
    client = connected(broker)
    client.send(acknowledge(PUBREC, 4711, 0x80))
    client.ping()


@pytest.mark.parametrize(
    ("qos", "kind"), [(2, PUBACK), (1, PUBREC), (1, PUBCOMP)], ids=["PUBACK", "PUBREC", "PUBCOMP"]
)
@every_version
def test_acknowledgement_of_another_qos(broker: RunningBroker, version: int, qos: int, kind: int) -> None:
    """What is in flight is acknowledged as its QoS says; anything else breaks the protocol. [MQTT-4.13.1-1]
    [3.1.1 MQTT-4.8.0-1]"""
    topic, receiver, sender = receiver_and_sender(broker, version)
    sender.publish(topic, b"x", qos)
    receiver.send(acknowledge(kind, receiver.expect(PUBLISH, qos=qos).packet_id))
    receiver.expect_closed(0x82)


@every_version
def test_pubcomp_for_nothing(broker: RunningBroker, version: int) -> None:
    """A PUBCOMP that nobody waits for harms nothing."""
    client = connected(broker, version)
    client.send(acknowledge(PUBCOMP, 4711))
    client.ping()


def test_no_expiry_once_sent(broker: RunningBroker) -> None:
    """A QoS 2 message that has been sent and then expired is still finished, both ways.
    [MQTT-4.3.3-7] [MQTT-4.3.3-13]"""
    name = unique("c")
    topic, receiver, sender = receiver_and_sender(broker, 5, client_id=name, **kept(5))
    sender.publish(topic, b"x", 2, message_expiry=1)
    sender.send(publish(topic + "/nobody", b"x", 2, 7, message_expiry=1))
    sender.expect(PUBREC, packet_id=7)
    message = receiver.expect(PUBLISH)
    receiver.drop()
    time.sleep(1.2)
    sender.send(acknowledge(PUBREL, 7))
    sender.expect_bytes(b"\x70\x02\x00\x07")
    receiver = connected(broker, client_id=name, **kept(5))
    again = receiver.expect(PUBLISH, packet_id=message.packet_id, payload=b"x", dup=True)
    receiver.acknowledge(again)
