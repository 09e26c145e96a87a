"""Message expiry: what is told to receivers, and what they never get."""

from __future__ import annotations

import time
from typing import Any

from conformance.kit import SideBySide, connected, kept, unique
from conformance.packets import PUBLISH, Packet, Will, publish
from conftest import RunningBroker

side_by_side = SideBySide()


def test_passed_on_at_once(broker: RunningBroker) -> None:
    """Nobody waited, so nothing is subtracted. [MQTT-3.3.2-6]"""
    topic, receiver = unique("t/"), connected(broker)
    receiver.subscribe(topic, 1)
    for seconds in (10, 0xFFFFFFFF):
        connected(broker).publish(topic, b"x", 1, message_expiry=seconds)
        assert receiver.expect_message(topic, b"x", 1).get("message_expiry") in (seconds, seconds - 1)


def test_without_expiry_none_is_added(broker: RunningBroker) -> None:
    """[MQTT-3.3.2-6]"""
    topic, receiver = unique("t/"), connected(broker)
    receiver.subscribe(topic, 1)
    connected(broker).publish(topic, b"x", 1)
    assert receiver.expect_message(topic, b"x", 1).properties == []


def assert_left(message: Packet, expiry_s: int, since: float) -> None:
    """The message says how long it still has, `since` it was published, and that is less than it had."""
    waited_s = time.monotonic() - since
    assert expiry_s - waited_s - 1 <= message.get("message_expiry") <= expiry_s - 2


def away(broker: RunningBroker, version: int = 5, **settings: Any) -> tuple[str, ...]:
    """A topic, and the identifier of an absent client that is subscribed to it."""
    topic, client = unique("t/"), connected(broker, version, **kept(version), **settings)
    client.subscribe(topic, 2)
    client.disconnect()
    return topic, client.client_id


@side_by_side
def test_queue_time_is_subtracted(broker: RunningBroker) -> None:
    """[MQTT-3.3.2-6]"""
    topic, name = away(broker)
    publisher, since = connected(broker), time.monotonic()
    publisher.publish(topic, b"x", 1, message_expiry=10)
    time.sleep(2.1)
    client = connected(broker, client_id=name, **kept(5))
    assert_left(client.expect_message(topic, b"x", 1), 10, since)


@side_by_side
def test_expired_in_the_queue(broker: RunningBroker) -> None:
    """Those that have expired are left out, the others come, in order. [MQTT-3.3.2-5]"""
    topic, name = away(broker)
    sender = connected(broker)
    for number in range(6):
        settings: dict[str, Any] = {"message_expiry": 1} if number % 2 else {}
        sender.publish(topic, b"%d" % number, 1 + number // 3, **settings)
    time.sleep(2.1)
    client = connected(broker, client_id=name, **kept(5))
    for number in (0, 2, 4):
        client.expect_message(topic, b"%d" % number, 1 + number // 3)
    client.expect_nothing()


@side_by_side
def test_expired_for_an_old_client(broker: RunningBroker) -> None:
    """Expiry holds for receivers of every version. [MQTT-3.3.2-5]"""
    topic, name = away(broker, 4)
    connected(broker).publish(topic, b"x", 1, message_expiry=1)
    connected(broker).publish(topic, b"y", 1, message_expiry=60)
    time.sleep(2.1)
    client = connected(broker, 4, name, **kept(4))
    client.expect_message(topic, b"y", 1)
    client.expect_nothing()


@side_by_side
def test_retained_message(broker: RunningBroker) -> None:
    """A retained message expires as well, and until then says how long it has. [MQTT-3.3.2-5]
    [MQTT-3.3.2-6]"""
    short, long, sender, since = unique("t/"), unique("t/"), connected(broker), time.monotonic()
    sender.publish(short, b"x", 1, retain=True, message_expiry=1)
    sender.publish(long, b"x", 1, retain=True, message_expiry=10)
    time.sleep(2.1)
    client = connected(broker)
    client.subscribe(short, 1)
    client.expect_nothing()
    client.subscribe(long, 1)
    assert_left(client.expect_message(long, b"x", 1, retain=True), 10, since)


@side_by_side
def test_blocked_by_flow_control(broker: RunningBroker) -> None:
    """Messages that wait for the receiver's quota expire too. [MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    topic, receiver = unique("t/"), connected(broker, receive_max=1)
    receiver.subscribe(topic, 1)
    sender, since = connected(broker), time.monotonic()
    sender.publish(topic, b"first", 1)
    sender.publish(topic, b"short", 1, message_expiry=1)
    sender.publish(topic, b"long", 1, message_expiry=10)
    message = receiver.expect(PUBLISH, payload=b"first")
    time.sleep(2.1)
    receiver.acknowledge(message)
    assert_left(receiver.expect_message(topic, b"long", 1), 10, since)
    receiver.expect_nothing()


@side_by_side
def test_sent_again_after_it_expired(broker: RunningBroker) -> None:
    """Delivery had begun, so the message is sent again. [MQTT-4.4.0-1]"""
    topic, receiver = unique("t/"), connected(broker, **kept(5))
    receiver.subscribe(topic, 2)
    connected(broker).publish(topic, b"x", 2, message_expiry=1)
    message = receiver.expect(PUBLISH)
    receiver.drop()
    time.sleep(2.1)
    receiver = connected(broker, client_id=receiver.client_id, **kept(5))
    receiver.expect(PUBLISH, packet_id=message.packet_id, dup=True)


@side_by_side
def test_will(broker: RunningBroker) -> None:
    """A will's expiry begins with its publication, not with CONNECT. [MQTT-3.3.2-6]"""
    topic, watcher = unique("t/"), connected(broker)
    watcher.subscribe(topic, 1)
    client = connected(broker, will=Will(topic, b"gone", 1, properties=[("message_expiry", 5)]))
    time.sleep(2.1)
    client.drop()
    assert watcher.expect_message(topic, b"gone", 1).get("message_expiry") in (4, 5)


def test_expiry_0_reaches_who_is_there(broker: RunningBroker) -> None:
    """A message that expires at once may be dropped or delivered at once, but it does not wait.
    [MQTT-3.3.2-5]"""
    topic, name = away(broker)
    sender = connected(broker)
    sender.send(publish(topic, b"x", 1, 1, message_expiry=0))
    time.sleep(0.05)
    client = connected(broker, client_id=name, **kept(5))
    client.expect_nothing()
