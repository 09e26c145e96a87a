"""QoS 0 and QoS 1: acknowledgement, packet identifiers, DUP, and what is sent again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conformance.kit import Silence, connected, kept, unique
from conformance.packets import PUBACK, PUBLISH, SUBACK, acknowledge, publish, subscribe
from conftest import RunningBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])


@every_version
def test_qos_0(broker: RunningBroker, version: int) -> None:
    """A QoS 0 message is not answered; it reaches the receiver as exactly its bytes, without packet
    identifier. [MQTT-2.2.1-2] [MQTT-3.3.1-2] [MQTT-3.3.4-1] [MQTT-4.3.1-1] [MQTT-2.2.2-1] [MQTT-4.5.0-1]
    [3.1.1 MQTT-2.3.1-5] [3.1.1 MQTT-3.3.1-2] [3.1.1 MQTT-3.3.4-1] [3.1.1 MQTT-4.3.1-1]
    [3.1.1 MQTT-4.5.0-1]"""
    topic = unique("t/")
    sender, receiver = connected(broker, version), connected(broker, version)
    receiver.subscribe(topic)
    sender.publish(topic, b"payload")
    receiver.expect_bytes(publish(topic, b"payload", version=version))
    sender.expect_nothing()


@every_version
def test_exact_handshake(broker: RunningBroker, version: int) -> None:
    """PUBACK is exactly four bytes with the identifier; the receiver gets DUP 0 and QoS 1.
    [MQTT-3.3.4-1] [MQTT-2.2.1-5] [MQTT-4.3.2-2] [MQTT-4.3.2-4] [MQTT-2.1.3-1] [MQTT-3.4.2-1]
    [3.1.1 MQTT-3.3.4-1] [3.1.1 MQTT-2.3.1-6] [3.1.1 MQTT-4.3.2-1] [3.1.1 MQTT-4.3.2-2]
    [3.1.1 MQTT-2.2.2-1]"""
    topic = unique("t/")
    sender, receiver = connected(broker, version), connected(broker, version)
    receiver.subscribe(topic, 1)
    sender.send(publish(topic, b"payload", 1, 0xABCD, version))
    sender.expect_bytes(b"\x40\x02\xab\xcd")
    message = receiver.expect(PUBLISH, topic=topic, payload=b"payload")
    assert message.raw == publish(topic, b"payload", 1, message.packet_id, version)
    receiver.acknowledge(message)
    receiver.expect_nothing()


@every_version
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_smaller_qos(broker: RunningBroker, version: int, granted: int, sent: int) -> None:
    """[MQTT-3.8.4-8] [3.1.1 MQTT-3.8.4-6]"""
    topic = unique("t/")
    sender, receiver = connected(broker, version), connected(broker, version)
    receiver.subscribe(topic, granted)
    sender.publish(topic, b"x", sent)
    receiver.expect_message(topic, b"x", min(granted, sent))


@every_version
def test_identifiers_in_use_differ(broker: RunningBroker, version: int) -> None:
    """[MQTT-2.2.1-4] [MQTT-4.3.2-1] [3.1.1 MQTT-2.3.1-4] [3.1.1 MQTT-2.3.1-1] [3.1.1 MQTT-4.3.2-1]"""
    topic = unique("t/")
    sender, receiver = connected(broker, version), connected(broker, version)
    receiver.subscribe(topic, 2)
    for number in range(15):
        sender.publish(topic, b"%d" % number, 1 + number % 2)
    in_use = [receiver.expect(PUBLISH, payload=b"%d" % number).packet_id for number in range(15)]
    assert len(set(in_use)) == 15
    assert 0 not in in_use


def test_identifiers_wrap_around(broker: RunningBroker) -> None:
    """After 65,535 messages the identifiers begin again, without 0 and without the one that is still in use:
    the broker passes it over, or waits until it is free.
    [MQTT-2.2.1-4] [MQTT-4.3.2-1] [3.1.1 MQTT-2.3.1-4] [3.1.1 MQTT-4.3.2-1]"""
    topic = unique("t/")
    sender, receiver = connected(broker, 4), connected(broker, 4)
    receiver.subscribe(topic, 1)
    sender.publish(topic, b"stays", 1)
    stays = receiver.expect(PUBLISH, payload=b"stays")
    in_use, used = {0, stays.packet_id}, set()
    for _ in range(132):
        sender.send(*(publish(topic, b"x", 1, packet_id, 4) for packet_id in range(1, 501)))
        for _ in range(500):
            try:
                message = receiver.receive(1)
            except Silence:
                receiver.acknowledge(stays)
                in_use.discard(stays.packet_id)
                message = receiver.receive()
            assert message.packet_id not in in_use
            used.add(message.packet_id)
            receiver.acknowledge(message)
        for packet_id in range(1, 501):
            sender.expect(PUBACK, packet_id=packet_id)
    assert len(used) >= 65_534


@every_version
def test_identifier_is_free_after_puback(broker: RunningBroker, version: int) -> None:
    """The same identifier again, even with DUP, is a new message, and DUP is not passed on.
    [MQTT-4.3.2-5] [MQTT-3.3.1-3] [3.1.1 MQTT-4.3.2-2] [3.1.1 MQTT-3.3.1-3]"""
    topic = unique("t/")
    sender, receiver = connected(broker, version), connected(broker, version)
    receiver.subscribe(topic, 1)
    for dup in (False, True, True):
        sender.send(publish(topic, b"x", 1, 7, version, dup=dup))
        sender.expect_bytes(b"\x40\x02\x00\x07")
        receiver.expect_message(topic, b"x", 1, dup=False)


@every_version
def test_both_directions_have_their_own_identifiers(broker: RunningBroker, version: int) -> None:
    """A client may use an identifier that the broker is using towards it."""
    topic = unique("t/")
    client = connected(broker, version)
    client.subscribe(topic, 1)
    client.publish(topic + "/other", b"x", 1)
    connected(broker, version).publish(topic, b"x", 1)
    message = client.expect(PUBLISH)
    client.send(publish(topic + "/other", b"x", 1, message.packet_id, version))
    assert client.expect(PUBACK, packet_id=message.packet_id).reason in (0, 0x10)
    client.acknowledge(message)
    client.expect_nothing()


@every_version
def test_pubacks_in_order(broker: RunningBroker, version: int) -> None:
    """[3.1.1 MQTT-4.6.0-2]"""
    sender = connected(broker, version)
    topic = unique("t/")
    ids = [5, 3, 9, 1, 65535, 2]
    sender.send(*(publish(topic, b"x", 1, packet_id, version) for packet_id in ids))
    assert [sender.expect(PUBACK).packet_id for _ in ids] == ids


@every_version
def test_sent_again_after_reconnection(broker: RunningBroker, version: int) -> None:
    """What was not acknowledged comes again with DUP and the same identifiers, in order; what was, doesn't;
    new messages follow with DUP 0.
    [MQTT-3.3.1-1] [MQTT-4.3.2-3] [MQTT-4.4.0-1] [3.1.1 MQTT-3.3.1-1] [3.1.1 MQTT-4.4.0-1]
    [3.1.1 MQTT-4.6.0-1] [3.1.1 MQTT-4.3.2-1]"""
    topic, name = unique("t/"), unique("c")
    sender = connected(broker, version)
    receiver = connected(broker, version, name, **kept(version))
    receiver.subscribe(topic, 1)
    for number in range(5):
        sender.publish(topic, b"%d" % number, 1)
    first = [receiver.expect(PUBLISH, payload=b"%d" % number) for number in range(5)]
    receiver.acknowledge(first[1])
    receiver.ping()
    receiver.drop()
    sender.publish(topic, b"new", 1)
    receiver = connected(broker, version, name, **kept(version))
    for message in [first[0], *first[2:]]:
        again = receiver.expect(PUBLISH)
        assert again.raw == publish(topic, message.payload, 1, message.packet_id, version, dup=True)
        receiver.acknowledge(again)
    receiver.expect_message(topic, b"new", 1, dup=False)
    receiver.expect_nothing()


@every_version
def test_not_sent_again_on_the_same_connection(broker: RunningBroker, version: int) -> None:
    """[MQTT-4.4.0-1]"""
    topic = unique("t/")
    receiver = connected(broker, version)
    receiver.subscribe(topic, 1)
    connected(broker, version).publish(topic, b"x", 1)
    receiver.expect(PUBLISH)
    receiver.expect_nothing(0.3)


@every_version
def test_subscriber_of_its_own_messages(broker: RunningBroker, version: int) -> None:
    """A client's own messages come back to it, also without a wait between the packets."""
    topic = unique("t/")
    client = connected(broker, version)
    client.send(subscribe(1, (topic, 1), version=version), publish(topic, b"x", 1, 2, version))
    client.expect(SUBACK)
    kinds = {client.receive().kind for _ in range(2)}
    assert kinds == {PUBLISH, PUBACK}


def test_refused_by_the_receiver(broker: RunningBroker) -> None:
    """A PUBACK of 0x80 or more ends the delivery as any PUBACK does: the message does not come again.
    [MQTT-4.4.0-2]"""
    topic, name = unique("t/"), unique("c")
    receiver = connected(broker, client_id=name, **kept(5))
    receiver.subscribe(topic, 1)
    connected(broker).publish(topic, b"x", 1)
    message = receiver.expect(PUBLISH)
    receiver.send(acknowledge(PUBACK, message.packet_id, 0x83))
    receiver.ping()
    receiver.drop()
    connected(broker, client_id=name, **kept(5)).expect_nothing()


@pytest.mark.parametrize("version", [4, 5])
def test_puback_for_nothing(broker: RunningBroker, version: int) -> None:
    """A PUBACK that nobody waits for harms nothing."""
    client = connected(broker, version)
    client.send(acknowledge(PUBACK, 4711))
    client.ping()


def test_puback_forms_of_5(broker: RunningBroker) -> None:
    """A PUBACK may have no reason, a reason, or a reason and properties; each frees the receiver's quota of
    one. [MQTT-4.3.2-3]"""
    topic = unique("t/")
    receiver, sender = connected(broker, receive_max=1), connected(broker)
    receiver.subscribe(topic, 1)
    forms: list[Callable[[int], bytes]] = [
        lambda packet_id: acknowledge(PUBACK, packet_id),
        lambda packet_id: acknowledge(PUBACK, packet_id, 0x10),
        lambda packet_id: acknowledge(PUBACK, packet_id, 0, reason_string="ok", user=("a", "b")),
        lambda packet_id: b"\x40\x03" + packet_id.to_bytes(2) + b"\x00",
        lambda packet_id: b"\x40\x04" + packet_id.to_bytes(2) + b"\x00\x00",
    ]
    for number in range(len(forms) + 1):
        sender.publish(topic, b"%d" % number, 1)
    for number, form in enumerate(forms):
        receiver.send(form(receiver.expect(PUBLISH, payload=b"%d" % number).packet_id))
    receiver.expect(PUBLISH, payload=b"%d" % len(forms))
