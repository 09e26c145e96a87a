"""Shared subscriptions: one member of the group gets each message, with its own rights."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

import pytest
from conformance.kit import Client, ConnectionEnded, Silence, connected, kept, unique
from conformance.packets import (
    DISCONNECT,
    PUBACK,
    PUBLISH,
    PUBREC,
    SUBACK,
    Packet,
    acknowledge,
    options,
    publish,
    subscribe,
)
from conftest import RunningBroker
from waiting import WAIT_S, wait_until


def group(broker: RunningBroker, count: int, qos: int = 1, **settings: Any) -> tuple[str, str, list[Client]]:
    """Topic, shared filter and connected members."""
    topic = unique("t/")
    name = f"$share/{unique('g')}/{topic}"
    members = [connected(broker, **settings) for _ in range(count)]
    for member in members:
        member.subscribe(name, qos)
    return topic, name, members


def collect(members: list[Client], wait_s: float = 0.15) -> list[tuple[int, bytes]]:
    """(member, payload) of all messages until silence."""
    found = []
    for index, member in enumerate(members):
        try:
            while True:
                message = member.receive(wait_s)
                assert message.kind == PUBLISH
                member.acknowledge(message)
                found.append((index, message.payload))
        except Silence:
            continue
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_once(broker: RunningBroker, qos: int) -> None:
    """Every message reaches one member, and every member gets some. [MQTT-4.8.2-3]"""
    topic, _, members = group(broker, 3, qos)
    sender = connected(broker)
    for number in range(60):
        sender.publish(topic, b"%d" % number, qos)
    found = collect(members)
    assert sorted(int(payload) for _, payload in found) == list(range(60))
    assert len(Counter(member for member, _ in found)) == 3


@pytest.mark.parametrize("version", [4, 5])
def test_beside_others(broker: RunningBroker, version: int) -> None:
    """Other groups and ordinary subscriptions, also of the same client, get their own copies."""
    topic, _, members = group(broker, 2)
    other_topic_group = f"$share/{unique('other')}/{topic}"
    alone, plain = connected(broker, version), connected(broker, version)
    alone.subscribe(other_topic_group, 1)
    plain.subscribe(topic, 1)
    connected(broker, version).publish(topic, b"x", 1)
    alone.expect_message(topic, b"x", 1)
    plain.expect_message(topic, b"x", 1)
    assert len(collect(members)) == 1


def test_same_client_shared_and_not(broker: RunningBroker) -> None:
    """A client with both gets the message for both, each copy with its own subscription's identifier.
    [MQTT-3.3.4-3] [MQTT-3.3.4-5]"""
    topic, _, (member,) = group(broker, 1)
    member.subscribe(topic, 1, subscription_id=9)
    connected(broker).publish(topic, b"x", 1)
    found = [member.expect_message(topic, b"x", 1).all("subscription_id") for _ in range(2)]
    assert sorted(found) == [[], [9]]


def test_wildcards(broker: RunningBroker) -> None:
    """The filter after the share name is like any other. [MQTT-4.8.2-1] [MQTT-4.8.2-2] [MQTT-4.7.2-1]"""
    topic = unique("t")
    client, sender = connected(broker), connected(broker)
    client.subscribe(f"$share/a/{topic}/+/b/#", 1)
    client.subscribe("$share/a/#", 0)
    for name in (f"{topic}/a/b", f"{topic}/x/b/c"):
        sender.publish(name, b"x", 1)
        assert sorted(client.expect(PUBLISH, topic=name).qos for _ in range(2)) == [0, 1]
    client.unsubscribe("$share/a/#")
    sender.publish(f"{topic}/a/c", b"x", 1)
    client.expect_nothing()


def test_granted_qos(broker: RunningBroker) -> None:
    """Each member gets messages with its own granted QoS at most. [MQTT-4.8.2-3]"""
    topic, name, _ = group(broker, 0)
    low, high = connected(broker), connected(broker)
    low.subscribe(name, 0)
    high.subscribe(name, 2)
    sender = connected(broker)
    for _ in range(10):
        sender.publish(topic, b"x", 1)
    counts = {low: 0, high: 0}

    def all_have_come() -> bool:
        for member, qos in ((low, 0), (high, 1)):
            messages = member.rest()
            assert all(message.qos == qos for message in messages)
            counts[member] += len(messages)
        return sum(counts.values()) >= 10

    wait_until(all_have_come, "ten messages")
    assert sum(counts.values()) == 10


def test_no_retained_messages(broker: RunningBroker) -> None:
    """A new shared subscription gets no retained messages, new or not."""
    topic = unique("t/")
    client = connected(broker)
    client.publish(topic, b"x", 1, retain=True)
    for _ in range(2):
        client.subscribe(f"$share/g/{topic}", 1)
        client.expect_nothing()


def test_no_local_is_an_error(broker: RunningBroker) -> None:
    """[MQTT-3.8.3-4]"""
    client = connected(broker)
    client.send(subscribe(1, (f"$share/g/{unique('t/')}", options(1, no_local=True))))
    client.expect_closed(0x82)


@pytest.mark.parametrize(
    "name", ["$share//t", "$share/g", "$share/g/", "$share/", "$share/g+/t", "$share/#/t"]
)
def test_wrong_share_names(broker: RunningBroker, name: str) -> None:
    """Refused or malformed. [MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    client = connected(broker)
    client.send(subscribe(1, (name, 1)))
    refused_or_closed(client, 0x8F, 0x81, 0x82, 0x9E)


def refused_or_closed(client: Client, *reasons: int) -> None:
    """SUBACK with one of the codes, or the end of the connection with or without such a DISCONNECT."""
    with contextlib.suppress(ConnectionEnded):
        packet = client.receive()
        if packet.kind == SUBACK:
            assert packet.reasons[0] in reasons
            return
        assert packet.kind == DISCONNECT
        assert packet.reason in reasons
        client.expect_closed()


def test_unsubscribe(broker: RunningBroker) -> None:
    """By the whole filter; the rest of the group goes on. [MQTT-3.10.4-1]"""
    topic, name, members = group(broker, 2)
    assert members[0].unsubscribe(topic).reasons == [0x11]
    assert members[0].unsubscribe(name).reasons == [0]
    sender = connected(broker)
    for _ in range(6):
        sender.publish(topic, b"x", 1)
    assert {member for member, _ in collect(members)} == {1}


def test_the_last_member_unsubscribes(broker: RunningBroker) -> None:
    topic, name, (member,) = group(broker, 1)
    member.unsubscribe(name)
    connected(broker).publish(topic, b"x", 1)
    member.expect_nothing()


def test_members_who_left(broker: RunningBroker) -> None:
    """Who is gone without a session gets nothing any more: all messages go to the others."""
    topic, _, members = group(broker, 3)
    members[0].disconnect()
    members[1].drop()
    sender = connected(broker)
    sender.ping()
    for _ in range(10):
        sender.publish(topic, b"x", 1)
    assert len(collect(members[2:])) == 10


def test_qos_0_needs_no_place_in_a_window(broker: RunningBroker) -> None:
    """Members that have not acknowledged as many messages as they take at QoS 1 get those at QoS 0, as any
    subscriber does."""
    topic, _, members = group(broker, 2, receive_max=1)
    sender = connected(broker)
    for _ in range(3):
        sender.publish(topic, b"held", 1)
    for member in members:
        member.expect(PUBLISH, payload=b"held")
    for number in range(100):
        sender.publish(topic, b"%d" % number)
    payloads = [payload for _, payload in collect(members)]
    assert sorted(int(payload) for payload in payloads) == list(range(100))


def test_queued_when_all_are_away(broker: RunningBroker) -> None:
    """With kept sessions nothing is lost while no member is connected."""
    topic, _, members = group(broker, 2, **kept(5))
    for member in members:
        member.disconnect()
    sender = connected(broker)
    for number in range(10):
        sender.publish(topic, b"%d" % number, 1)
    back = [connected(broker, client_id=member.client_id, **kept(5)) for member in members]
    found = collect(back)
    assert sorted(int(payload) for _, payload in found) == list(range(10))


def test_connected_members_first(broker: RunningBroker) -> None:
    """While one member is connected, absent ones with kept sessions don't hold messages back."""
    topic, _, members = group(broker, 3, **kept(5))
    members[0].disconnect()
    members[1].drop()
    sender = connected(broker)
    sender.ping()
    for _ in range(12):
        sender.publish(topic, b"x", 1)
    assert len(collect(members[2:])) == 12


def test_qos_2_stays_with_its_member(broker: RunningBroker) -> None:
    """A QoS 2 delivery that was cut off is finished with the same member, not with another.
    [MQTT-4.8.2-4]"""
    topic, _, members = group(broker, 2, 2, **kept(5))
    connected(broker).publish(topic, b"x", 2)
    chosen, message = first_receiver(members)
    other = members[1 - chosen]
    members[chosen].send(acknowledge(PUBREC, message.packet_id))
    members[chosen].receive()
    members[chosen].drop()
    other.expect_nothing()
    back = connected(broker, client_id=members[chosen].client_id, **kept(5))
    back.expect_bytes(acknowledge(6, message.packet_id))


def test_qos_2_publish_stays_with_its_member(broker: RunningBroker) -> None:
    """Also when the connection broke before PUBREC. [MQTT-4.8.2-4]"""
    topic, _, members = group(broker, 2, 2, **kept(5))
    connected(broker).publish(topic, b"x", 2)
    chosen, message = first_receiver(members)
    members[chosen].drop()
    members[1 - chosen].expect_nothing()
    back = connected(broker, client_id=members[chosen].client_id, **kept(5))
    back.expect(PUBLISH, packet_id=message.packet_id, payload=b"x", dup=True)


def test_qos_2_of_an_ended_session(broker: RunningBroker) -> None:
    """If that member's session ends, the message goes to nobody else. [MQTT-4.8.2-5]"""
    topic, _, members = group(broker, 2, 2, **kept(5))
    connected(broker).publish(topic, b"x", 2)
    chosen, _ = first_receiver(members)
    members[chosen].disconnect(session_expiry=0)
    members[1 - chosen].expect_nothing()


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_refused_message(broker: RunningBroker, qos: int, kind: int) -> None:
    """A reason of 0x80 or more discards it for the whole group. [MQTT-4.8.2-6] [MQTT-4.4.0-2]"""
    topic, _, members = group(broker, 2, qos)
    connected(broker).publish(topic, b"x", qos)
    chosen, message = first_receiver(members)
    members[chosen].send(acknowledge(kind, message.packet_id, 0x80))
    for member in members:
        member.expect_nothing()


def first_receiver(members: list[Client]) -> tuple[int, Packet]:
    """Which member got the message, and the message."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for index, member in enumerate(members):
            with contextlib.suppress(Silence):
                return index, member.receive(0.02)
    raise AssertionError("no member got the message")


def test_subscription_identifier(broker: RunningBroker) -> None:
    """[MQTT-3.3.4-3]"""
    topic = unique("t/")
    client = connected(broker)
    client.subscribe(f"$share/g/{topic}", 1, subscription_id=3)
    connected(broker).publish(topic, b"x", 1)
    assert client.expect_message(topic, b"x", 1).get("subscription_id") == 3


def test_share_is_no_topic(broker: RunningBroker) -> None:
    """A PUBLISH to a topic that begins with $share goes to no group."""
    topic, name, members = group(broker, 1)
    connected(broker).send(publish(name, b"x", 0))
    members[0].expect_nothing()
    connected(broker).publish(topic, b"y", 1)
    members[0].expect_message(topic, b"y", 1)


@pytest.mark.parametrize("subscribers", [0, 50])
def test_all_members_take_part(broker: RunningBroker, subscribers: int) -> None:
    """Also when each topic is used once, and when others subscribe meanwhile."""
    topic = unique("t/")
    members = [connected(broker) for _ in range(4)]
    for member in members:
        member.subscribe(f"$share/g/{topic}/+", 1)
    sender, restless = connected(broker), connected(broker)
    for number in range(100):
        if number < subscribers:
            restless.subscribe(unique("x/"))
        sender.publish(f"{topic}/{number}", b"%d" % number, 1)
    found = Counter(member for member, _ in collect(members))
    assert found.total() == 100
    assert len(found) == 4
