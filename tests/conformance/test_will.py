"""Wills: when they are published, when not, and how."""

from __future__ import annotations

import time
from typing import Any

import pytest
from conformance.kit import Client, SideBySide, connected, kept, unique
from conformance.packets import PUBLISH, Will, connect, packet
from conftest import RunningBroker
from waiting import LATE_S

every_version = pytest.mark.parametrize("version", [3, 4, 5])
side_by_side = SideBySide()


def pair(
    broker: RunningBroker, version: int = 5, qos: int = 1, **settings: Any
) -> tuple[str, Client, Client]:
    """A watcher of a will's topic and a client with that will; settings of the will, `session` of the
    client."""
    topic = unique("will/")
    watcher = connected(broker, version)
    watcher.subscribe(topic, qos)
    session = settings.pop("session", {})
    client = connected(broker, version, will=Will(topic, b"gone", qos, **settings), **session)
    return topic, watcher, client


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_published_when_the_connection_breaks(broker: RunningBroker, version: int, qos: int) -> None:
    """The will has its own QoS, topic and payload, and comes once.
    [MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-12] [MQTT-3.1.2-10] [3.1.1 MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-14]
    [3.1.1 MQTT-3.1.2-10]"""
    topic, watcher, client = pair(broker, version, qos)
    watcher.expect_nothing(0.02)
    client.drop()
    watcher.expect_message(topic, b"gone", qos, retain=False, dup=False)
    watcher.expect_nothing()


@every_version
def test_not_published_after_disconnect(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.14.4-3] [MQTT-3.1.2-10] [MQTT-3.1.2-8] [3.1.1 MQTT-3.14.4-3] [3.1.1 MQTT-3.1.2-10]
    [3.1.1 MQTT-3.1.2-8]"""
    _, watcher, client = pair(broker, version)
    client.disconnect()
    watcher.expect_nothing()


@pytest.mark.parametrize("version", [4, 5])
def test_forgotten_after_disconnect_of_a_kept_session(broker: RunningBroker, version: int) -> None:
    """A later connection of the session, without a will, does not bring the old one back.
    [MQTT-3.1.2-10] [3.1.1 MQTT-3.1.2-10] [3.1.1 MQTT-3.1.2-12]"""
    topic, watcher, client = pair(broker, version, session=kept(version))
    client.disconnect()
    connected(broker, version, client.client_id, **kept(version)).drop()
    watcher.expect_nothing()
    assert topic


@every_version
def test_no_will_without_flag(broker: RunningBroker, version: int) -> None:
    """A client without a will leaves silently. [3.1.1 MQTT-3.1.2-12]"""
    watcher = connected(broker, version)
    watcher.subscribe(unique("will/") + "/#")
    connected(broker, version).drop()
    watcher.expect_nothing()


@pytest.mark.parametrize("reason", [0x04, 0x80, 0x81, 0x93, 0x98])
def test_disconnect_with_another_reason(broker: RunningBroker, reason: int) -> None:
    """Only reason 0x00 deletes the will. [MQTT-3.1.2-8] [MQTT-3.1.2-10]"""
    topic, watcher, client = pair(broker)
    client.disconnect(reason)
    watcher.expect_message(topic, b"gone", 1)


@every_version
def test_protocol_error_publishes(broker: RunningBroker, version: int) -> None:
    """The broker's own closing is no DISCONNECT of the client's. [MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-8]"""
    topic, watcher, client = pair(broker, version)
    client.send(packet(0x80, b"\0\1\0"))
    client.expect_closed(0x81)
    watcher.expect_message(topic, b"gone", 1)


@every_version
def test_takeover_publishes(broker: RunningBroker, version: int) -> None:
    """The old connection is closed by the broker, and its session ends: its will goes out, the new one's
    doesn't. [MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-8]"""
    topic, watcher, client = pair(broker, version)
    again = connected(broker, version, client.client_id, will=Will(topic, b"second"))
    watcher.expect_message(topic, b"gone", 1)
    again.disconnect()
    watcher.expect_nothing()


@every_version
def test_not_retained(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.1.2-14] [3.1.1 MQTT-3.1.2-16]"""
    topic, watcher, client = pair(broker, version)
    client.drop()
    watcher.expect_message(topic, b"gone", 1)
    late = connected(broker, version)
    late.subscribe(topic, 1)
    late.expect_nothing()


@every_version
def test_retained(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.1.2-15] [3.1.1 MQTT-3.1.2-17]"""
    topic, watcher, client = pair(broker, version, retain=True)
    client.drop()
    watcher.expect_message(topic, b"gone", 1, retain=False)
    late = connected(broker, version)
    late.subscribe(topic, 1)
    late.expect_message(topic, b"gone", 1, retain=True)


def test_properties(broker: RunningBroker) -> None:
    """The will's message properties go with it, user properties in order; its delay does not.
    [MQTT-3.1.3-10] [MQTT-3.3.2-18] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-4] [MQTT-3.3.2-20]"""
    sent = [
        ("will_delay", 0),
        ("user", ("b", "2")),
        ("payload_format", 1),
        ("user", ("a", "1")),
        ("message_expiry", 100),
        ("content_type", "text/plain"),
        ("response_topic", "answers"),
        ("correlation_data", b"\x00\x01"),
        ("user", ("b", "1")),
    ]
    topic, watcher, client = pair(broker, properties=sent)
    client.drop()
    message = watcher.expect_message(topic, b"gone", 1)
    assert message.all("user") == [("b", "2"), ("a", "1"), ("b", "1")]
    assert sorted(map(str, message.properties)) == sorted(str(each) for each in sent[1:])


def test_bad_utf8_payload_is_not_looked_into(broker: RunningBroker) -> None:
    """A will payload is any bytes."""
    topic = unique("will/")
    watcher = connected(broker)
    watcher.subscribe(topic)
    connected(broker, will=Will(topic, b"\xff\x00\xed\xa0\x80")).drop()
    watcher.expect_message(topic, b"\xff\x00\xed\xa0\x80")


def delayed(broker: RunningBroker, delay_s: int, expiry_s: int) -> tuple[str, Client, Client]:
    """A pair whose will has a delay and whose session has an expiry, in seconds."""
    session = {"session_expiry": expiry_s} if expiry_s else {}
    return pair(broker, properties=[("will_delay", delay_s)], session=session)


def wait_for(watcher: Client, since: float, least_s: float) -> None:
    """The will comes so many seconds after the connection broke, not when another's 60 s are over."""
    message = watcher.receive()
    assert message.kind == PUBLISH
    assert least_s <= time.monotonic() - since <= LATE_S


@side_by_side
def test_delay_passes(broker: RunningBroker) -> None:
    """[MQTT-3.1.2-8]"""
    _, watcher, client = delayed(broker, 1, 60)
    client.drop()
    wait_for(watcher, time.monotonic(), 0.9)


@side_by_side
def test_session_ends_before_the_delay(broker: RunningBroker) -> None:
    """The will goes out with the session's end. [MQTT-3.1.2-8]"""
    _, watcher, client = delayed(broker, 60, 1)
    client.drop()
    wait_for(watcher, time.monotonic(), 0.9)


@side_by_side
def test_delay_without_session(broker: RunningBroker) -> None:
    """Without a session expiry the session ends at once, and the will goes out. [MQTT-3.1.2-8]"""
    _, watcher, client = delayed(broker, 60, 0)
    client.drop()
    wait_for(watcher, time.monotonic(), 0)


@side_by_side
def test_back_before_the_delay(broker: RunningBroker) -> None:
    """A client that resumes its session keeps its old will from being sent. [MQTT-3.1.3-9] [MQTT-3.1.2-8]"""
    _, watcher, client = delayed(broker, 2, 60)
    client.drop()
    again = connected(broker, client_id=client.client_id, clean=False, session_expiry=60)
    watcher.expect_nothing(2.5)
    again.ping()


def test_a_new_will_takes_the_place_of_the_old(broker: RunningBroker) -> None:
    """The client is back before the delay is over, with another will."""
    topic, watcher, name = unique("will/"), connected(broker), unique("c")
    watcher.subscribe(topic, 1)
    old = Will(topic, b"old", 1, properties=[("will_delay", 60)])
    connected(broker, client_id=name, will=old, **kept(5)).drop()
    connected(broker, client_id=name, will=Will(topic, b"new", 1), **kept(5)).drop()
    watcher.expect_message(topic, b"new", 1)
    watcher.expect_nothing()


@side_by_side
def test_clean_start_before_the_delay(broker: RunningBroker) -> None:
    """Clean Start ends the session, so the will goes out. [MQTT-3.1.2-8]"""
    _, watcher, client = delayed(broker, 60, 60)
    client.drop()
    again = connected(broker, client_id=client.client_id, clean=True)
    wait_for(watcher, time.monotonic(), 0)
    again.ping()


@side_by_side
def test_takeover_with_delay(broker: RunningBroker) -> None:
    """A takeover that resumes the session cancels a delayed will. [MQTT-3.1.3-9]"""
    _, watcher, client = delayed(broker, 2, 60)
    connected(broker, client_id=client.client_id, clean=False, session_expiry=60)
    client.expect_closed(0x8E)
    watcher.expect_nothing(2.5)


@side_by_side
def test_keep_alive_passes(broker: RunningBroker) -> None:
    """Silence counts as a broken connection, in every version.
    [MQTT-3.1.2-8] [MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-24]"""
    pairs = [pair(broker, version, session={"keep_alive_s": 1}) for version in (3, 4, 5)]
    for topic, watcher, _ in pairs:
        watcher.expect_message(topic, b"gone", 1)


def test_second_connect_publishes(broker: RunningBroker) -> None:
    """[MQTT-3.1.2-8]"""
    topic, watcher, client = pair(broker)
    client.send(connect(client.client_id))
    client.expect_closed(0x82)
    watcher.expect_message(topic, b"gone", 1)
