"""Messages that plugins decide on: each client's go on in their order, within bounds."""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import (
    PING,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Will,
    acknowledge,
    disconnect,
    publish,
)
from waiting import WAIT_S, wait_until

from tidemq.engine.door.events import Acknowledged, HeldMessage
from tidemq.engine.door.plugin_access import PluginAccess
from tidemq.engine.door.rule_row import PUBLISH as MAY_PUBLISH
from tidemq.engine.door.rule_row import SUBSCRIBE as MAY_SUBSCRIBE
from tidemq.engine.door.rule_row import RuleRow
from tidemq.errors import UsageError
from tidemq.wire import Properties, Publish, encode

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine

HELD_MAX = 256  # of one client, `clients/holding`


class Plugins:
    """The control plane's part, by hand."""

    def __init__(
        self, engine: EngineUnderTest, publish: list[str], delivered: list[str] | None = None
    ) -> None:
        self.engine = engine
        self.access = PluginAccess(engine.engine)
        self.access.set_filters(publish, delivered or [])
        self.seen: list[Any] = []

    def take(self, count: int, kind: type = HeldMessage) -> list[Any]:
        """Waits for so many events of this kind, which must be all."""
        deadline = time.monotonic() + WAIT_S
        found: list[Any] = []
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} came"
            found += self.now(kind)
            time.sleep(0.001)
        assert len(found) == count
        return found

    def now(self, kind: type = HeldMessage) -> list[Any]:
        return [event for event in self.engine.engine.events() if isinstance(event, kind)]

    def answer(self, *messages: HeldMessage, reason: int = 0, packet: bytes | None = None) -> None:
        self.access.answer([(each.connection, each.number, reason, packet) for each in messages])


def pair(
    engine: EngineUnderTest, topic_filter: str = "#", qos: int = 2, version: int = 5
) -> tuple[Client, Client]:
    subscriber = connected(engine)
    subscriber.subscribe(topic_filter, qos)
    return connected(engine, version), subscriber


def payloads(client: Client, count: int) -> list[bytes]:
    """Of so many messages that come, acknowledged."""
    found = []
    for _ in range(count):
        message = client.expect(PUBLISH)
        client.acknowledge(message)
        found.append(message.payload)
    return found


def test_only_messages_on_a_filter_go_up_and_all_others_pass(start_engine: StartEngine) -> None:
    engine = start_engine()
    plugins = Plugins(engine, ["up/+", "other/#"])
    publisher, subscriber = pair(engine)
    publisher.publish("down", b"1", 1)
    publisher.publish("up/a/b", b"2", 2)
    assert payloads(subscriber, 2) == [b"1", b"2"]
    publisher.send(publish("up/a", b"3", 1, 9, content_type="t"))
    [message] = plugins.take(1)
    subscriber.expect_nothing()
    assert (message.client_id, message.topic, message.payload) == (publisher.client_id, "up/a", b"3")
    assert (message.qos, message.retain, message.properties) == (1, False, Properties(content_type="t"))
    plugins.answer(message)
    publisher.expect(PUBACK, packet_id=9, reason=0)
    assert subscriber.expect_message("up/a", b"3", 1).get("content_type") == "t"


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("reactors", [1, 2])
def test_a_client_s_messages_go_on_in_their_order_however_answers_come(
    start_engine: StartEngine, reactors: int, version: int
) -> None:
    """Also those that no plugin wants, and acknowledgements."""
    engine = start_engine(reactors)
    plugins = Plugins(engine, ["up/#"])
    publisher, subscriber = pair(engine, version=version)
    topics = ["up/a", "down", "up/b", "up/c", "down", "up/d"]
    sent = [
        publish(topic, b"%d" % number, number % 3, number + 1 if number % 3 else 0, version)
        for number, topic in enumerate(topics * 10)
    ]
    publisher.send(*sent)
    messages = plugins.take(40)
    plugins.answer(*messages[1:][::-1])
    subscriber.expect_nothing()
    plugins.answer(messages[0])
    assert payloads(subscriber, 60) == [b"%d" % number for number in range(60)]
    for number in range(60):
        if number % 3:
            kind = PUBACK if number % 3 == 1 else PUBREC
            publisher.expect(kind, packet_id=number + 1, reason=0)
            if kind == PUBREC:
                publisher.send(acknowledge(PUBREL, number + 1))
    for number in range(2, 60, 3):
        publisher.expect(PUBCOMP, packet_id=number + 1)
    publisher.disconnect()
    assert engine.count("dropped_held") == 0


def test_what_is_refused_is_said_in_5_0_and_acknowledged_below(start_engine: StartEngine) -> None:
    engine = start_engine()
    plugins = Plugins(engine, ["up"])
    subscriber = connected(engine)
    subscriber.subscribe("#", 1)
    for version in (4, 5):
        publisher = connected(engine, version)
        publisher.send(*(publish("up", b"x", qos, qos, version) for qos in (0, 1, 2)))
        plugins.answer(*plugins.take(3), reason=0x99)
        reason = 0x99 if version == 5 else 0
        publisher.expect(PUBACK, packet_id=1, reason=reason)
        publisher.expect(PUBREC, packet_id=2, reason=reason)
        if version == 4:
            publisher.send(acknowledge(PUBREL, 2))
            publisher.expect(PUBCOMP, packet_id=2)
        publisher.send(*(publish("up", b"x", qos, qos, version) for qos in (0, 1, 2)))
        plugins.answer(*plugins.take(3), reason=0x10)  # taken, for nobody
        reason = 0x10 if version == 5 else 0
        publisher.expect(PUBACK, packet_id=1, reason=reason)
        publisher.expect(PUBREC, packet_id=2, reason=reason)
        publisher.send(acknowledge(PUBREL, 2))
        publisher.expect(PUBCOMP, packet_id=2, reason=0)
    assert engine.count("refused_plugin") == 6
    subscriber.expect_nothing()


def test_another_message_goes_on_in_its_place_answered_as_it_came(start_engine: StartEngine) -> None:
    engine = start_engine()
    plugins = Plugins(engine, ["up"])
    for version in (4, 5):
        topic = f"new{version}"
        publisher, subscriber = pair(engine, topic, version=version)
        properties = Properties(user_properties=(("k", "v"),))
        changed = Publish(topic=topic, payload=b"n", qos=1, packet_id=1, retain=True, properties=properties)
        publisher.send(publish("up", b"x", 2, 77, version))
        plugins.answer(*plugins.take(1), packet=encode(changed, 5))
        publisher.expect(PUBREC, packet_id=77, reason=0)
        assert subscriber.expect_message(topic, b"n", 2).get("user") == ("k", "v")
        late = connected(engine)
        late.subscribe(topic)
        late.expect_message(topic, b"n", 0, retain=True)
        subscriber.disconnect()
        publisher.send(publish("up", b"x", 1, 78, version))
        plugins.answer(*plugins.take(1), packet=b"\x30\x02no")  # cannot be read: refused
        publisher.expect(PUBACK, packet_id=78, reason=0x80 if version == 5 else 0)


def test_an_alias_means_what_it_meant_when_the_message_came(start_engine: StartEngine) -> None:
    engine = start_engine(1, topic_alias_max=5)
    plugins = Plugins(engine, ["up/#"])
    publisher, subscriber = pair(engine)
    publisher.send(
        publish("up/a", b"1", topic_alias=1),
        publish("", b"2", topic_alias=1),
        publish("up/b", b"3", topic_alias=1),
        publish("", b"4", topic_alias=1),
    )
    messages = plugins.take(4)
    assert [each.topic for each in messages] == ["up/a", "up/a", "up/b", "up/b"]
    for message in messages:
        plugins.answer(message)
        subscriber.expect_message(message.topic, message.payload)


def test_what_is_no_publish_waits_for_what_was_sent_before(start_engine: StartEngine) -> None:
    engine = start_engine()
    plugins = Plugins(engine, ["up"])
    publisher, subscriber = pair(engine)
    publisher.send(publish("up", b"1", 1, 1), PING, publish("down", b"2", 1, 2), disconnect())
    [message] = plugins.take(1)
    subscriber.expect_nothing()
    plugins.answer(message)
    publisher.expect(PUBACK, packet_id=1)
    publisher.expect_bytes(b"\xd0\x00")
    publisher.expect(PUBACK, packet_id=2)
    publisher.expect_closed()
    assert payloads(subscriber, 2) == [b"1", b"2"]


def test_who_sends_and_closes_loses_nothing_and_who_breaks_off_is_counted(start_engine: StartEngine) -> None:
    engine = start_engine()
    plugins = Plugins(engine, ["up"])
    publisher, subscriber = pair(engine)
    publisher.send(*(publish("up", b"%d" % number) for number in range(9)))
    publisher.drop()
    plugins.answer(*plugins.take(9))
    assert payloads(subscriber, 9) == [b"%d" % number for number in range(9)]
    engine.wait_for("connections_closed", 1)
    assert engine.count("dropped_held") == 0
    publisher = connected(engine)
    publisher.send(*(publish("up", b"x") for _ in range(5)))
    messages = plugins.take(5)
    publisher.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    publisher.drop()
    engine.wait_for("connections_closed", 2)
    assert engine.count("dropped_held") == 5
    plugins.answer(*messages)  # for somebody who has gone: ignored
    subscriber.expect_nothing()


def test_a_takeover_leaves_what_is_held_behind(start_engine: StartEngine) -> None:
    engine = start_engine()
    plugins = Plugins(engine, ["up"])
    publisher, subscriber = pair(engine)
    publisher.send(publish("up", b"old", 1, 1))
    [old] = plugins.take(1)
    again = connected(engine, client_id=publisher.client_id)
    engine.wait_for("dropped_held", 1)
    again.send(publish("up", b"new", 1, 1))
    [new] = plugins.take(1)
    plugins.answer(old, new)
    again.expect(PUBACK, packet_id=1)
    assert payloads(subscriber, 1) == [b"new"]


def test_a_client_may_have_so_many_up_and_then_waits(start_engine: StartEngine) -> None:
    engine = start_engine()
    plugins = Plugins(engine, ["up"])
    publisher, subscriber = pair(engine)
    other, _ = pair(engine, "other")
    publisher.socket.settimeout(WAIT_S)
    publisher.send(*(publish("up", b"%d" % number, 1, number + 1) for number in range(3000)))
    other.publish("down", b"x", 1)
    found: list[bytes] = []
    messages = plugins.take(HELD_MAX)
    other.publish("down", b"y", 1)
    assert plugins.now() == []
    while messages:
        found += [each.payload for each in messages]
        plugins.answer(*messages)
        wait_until(lambda: engine.count("packets_received") >= min(3000, len(found) + HELD_MAX // 2))  # noqa: B023
        messages = plugins.now()
        if not messages and len(found) < 3000:
            messages = plugins.take(1)
        assert len(messages) <= HELD_MAX
    assert found == [b"%d" % number for number in range(3000)]
    mine = [payload for payload in payloads(subscriber, 3002) if payload not in (b"x", b"y")]
    assert mine == found


def test_large_messages_wait_earlier(start_engine: StartEngine) -> None:
    engine = start_engine()
    plugins = Plugins(engine, ["up"])
    publisher, subscriber = pair(engine)
    payload = bytes(100_000)
    publisher.send(*(publish("up", payload) for _ in range(10)))
    count = 0
    while count < 10:
        messages = plugins.now()
        assert len(messages) <= 3  # 262,144 bytes are full with the third
        plugins.answer(*messages)
        count += len(messages)
    assert payloads(subscriber, 10) == [payload] * 10


def test_what_an_alias_stands_for_counts(start_engine: StartEngine) -> None:
    """Towards a client's bound, and as memory."""
    engine = start_engine(1, topic_alias_max=1)
    plugins = Plugins(engine, ["up/#"])
    publisher, subscriber = pair(engine)
    topic = "up/" + 3997 * "x"
    publisher.publish("down", b"")
    subscriber.expect(PUBLISH)
    before = engine.count("memory_buffers")
    publisher.send(publish(topic, b"0", topic_alias=1))
    publisher.send(*(publish("", b"%d" % number, topic_alias=1) for number in range(1, 100)))
    messages = plugins.take(262_144 // 4000 + 1)
    assert engine.count("memory_buffers") - before > 1.5 * 4000 * len(messages)
    count = 0
    while count < 100:
        plugins.answer(*messages)
        count += len(messages)
        messages = plugins.now()
    assert payloads(subscriber, 100) == [b"%d" % number for number in range(100)]
    wait_until(lambda: engine.count("memory_buffers") - before < 100_000, "the memory is free again")


def test_the_time_with_plugins_is_taken_from_a_message_s_life(start_engine: StartEngine) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    engine = start_engine()
    plugins = Plugins(engine, ["up"])
    publisher, subscriber = pair(engine)
    publisher.send(
        publish("up", b"long", 1, 1, message_expiry=100),
        publish("up", b"short", 1, 2, message_expiry=1),
        publish("up", b"short", 2, 3, message_expiry=1),
        publish("up", b"other", 1, 4),
    )
    messages = plugins.take(4)
    time.sleep(1.1)
    changed = Publish(topic="up", payload=b"changed", qos=1, packet_id=1, properties=messages[1].properties)
    plugins.answer(messages[2], messages[3])
    plugins.answer(messages[1], packet=encode(changed, 5))
    plugins.answer(messages[0])
    for packet_id, kind in ((1, PUBACK), (2, PUBACK), (3, PUBREC), (4, PUBACK)):
        publisher.expect(kind, packet_id=packet_id, reason=0)
    publisher.send(acknowledge(PUBREL, 3))
    publisher.expect(PUBCOMP, packet_id=3, reason=0)
    assert 50 < subscriber.expect_message("up", b"long", 1).get("message_expiry") <= 99
    subscriber.expect_message("up", b"other", 1)
    assert engine.count("dropped_expired") == 2


def test_rules_that_change_while_it_waits_count(start_engine: StartEngine) -> None:
    engine = start_engine()
    both = MAY_PUBLISH | MAY_SUBSCRIBE
    engine.engine.set_rules([RuleRow(True, both, b"#")])
    plugins = Plugins(engine, ["up"])
    publisher, subscriber = pair(engine)
    publisher.send(publish("up", b"x", 1, 1), publish("forbidden", b"x", 1, 2))
    [message] = plugins.take(1)
    engine.engine.set_rules([RuleRow(True, MAY_SUBSCRIBE, b"#")])
    publisher.send(publish("up", b"x", 1, 3))
    engine.wait_for("refused_not_authorised", 1)
    plugins.answer(message)
    for packet_id in (1, 2, 3):
        publisher.expect(PUBACK, packet_id=packet_id, reason=0x87)
    subscriber.expect_nothing()


def test_filters_come_and_go_while_clients_publish(start_engine: StartEngine) -> None:
    engine = start_engine(2)
    plugins = Plugins(engine, [])
    publisher, subscriber = pair(engine)
    publisher.publish("up", b"1", 1)
    plugins.access.set_filters(["up"], [])
    publisher.send(publish("up", b"2", 1, 50))
    [message] = plugins.take(1)
    plugins.access.set_filters(["other"], [])
    plugins.answer(message)
    publisher.expect(PUBACK, packet_id=50)
    publisher.publish("up", b"3", 1)
    plugins.access.set_filters([], [])
    publisher.publish("other", b"4", 1)
    assert payloads(subscriber, 4) == [b"1", b"2", b"3", b"4"]
    for wrong in ("a/#/b", "$share/g/a", "a\0"):
        with pytest.raises(UsageError):
            plugins.access.set_filters([wrong], [])
    assert engine.count("subscriptions") == 1


@pytest.mark.parametrize("settings", [{}, kept(5)])
def test_a_will_goes_up_and_is_the_control_plane_s_to_publish(
    start_engine: StartEngine, settings: dict[str, Any]
) -> None:
    engine = start_engine()
    plugins = Plugins(engine, ["up"])
    subscriber = connected(engine)
    subscriber.subscribe("#", 1)
    will = Will("up", b"gone", 1, True, [("message_expiry", 7), ("content_type", "t")])
    client = connected(engine, will=will, **settings)
    client.drop()
    [message] = plugins.take(1)
    assert (message.is_will, message.client_id, message.payload, message.qos) == (
        True,
        client.client_id,
        b"gone",
        1,
    )
    assert message.properties == Properties(message_expiry_s=7, content_type="t")
    subscriber.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("reactors", [1, 2])
def test_who_acknowledges_is_told_for_messages_on_a_filter(
    start_engine: StartEngine, reactors: int, qos: int
) -> None:
    engine = start_engine(reactors)
    plugins = Plugins(engine, [], ["up/#"])
    publisher = connected(engine)
    subscribers = [connected(engine) for _ in range(4)]
    for each in subscribers[:3]:
        each.subscribe("#", qos)
    subscribers[3].subscribe("$share/g/#", qos)
    publisher.publish("down", b"1", 2)
    publisher.publish("up/a", b"2", 2)
    publisher.publish("up/b", b"3", 0)
    for each in subscribers:
        assert payloads(each, 3) == [b"1", b"2", b"3"]
    told = plugins.take(4, Acknowledged)
    assert {each.client_id for each in told} == {each.client_id for each in subscribers}
    assert {(each.topic, each.payload, each.qos) for each in told} == {("up/a", b"2", qos)}


def test_reports_that_nobody_takes_are_dropped_and_counted(start_engine: StartEngine) -> None:
    engine = start_engine(1, event_queue_max=16)
    Plugins(engine, [], ["up"])
    publisher, subscriber = pair(engine)
    for number in range(100):
        publisher.send(publish("up", b"x", 1, number + 1))
        subscriber.expect_message("up", b"x", 1)
    engine.wait_for("events_dropped", 80)
