"""`MqttBroker`: what it saw, and how it disturbs clients of another library (paho-mqtt)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode
from waiting import WAIT_S, wait_until

from tidemq.errors import UsageError
from tidemq.testing import MqttBroker

Connect = Callable[..., mqtt.Client]


@pytest.fixture
def connect(mqtt_broker: MqttBroker) -> Iterator[Connect]:
    clients = []

    def make(client_id: str, **settings: Any) -> mqtt.Client:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        if settings:
            client.will_set(**settings)
        client.connect(mqtt_broker.host, mqtt_broker.port)
        client.loop_start()
        clients.append(client)
        wait_until(client.is_connected, "CONNACK has come")  # or a stall might hold it back
        return client

    yield make
    for client in clients:
        client.disconnect()
        client.loop_stop()


def publish(client: mqtt.Client, topic: str, payload: str, **settings: Any) -> None:
    """Returns when the broker has acknowledged it."""
    client.publish(topic, payload, qos=1, **settings).wait_for_publish(5)


def test_messages_are_all_that_was_acknowledged_in_order(mqtt_broker: MqttBroker, connect: Connect) -> None:
    client = connect("a")
    for number in range(50):
        publish(client, f"n/{number % 3}", str(number))
    assert [message.payload for message in mqtt_broker.messages] == [b"%d" % each for each in range(50)]


def test_a_wait_returns_each_message_once_oldest_first(mqtt_broker: MqttBroker, connect: Connect) -> None:
    client = connect("a")
    for topic, payload in (("x/1", "1"), ("y/1", "2"), ("x/2", "3")):
        publish(client, topic, payload, retain=topic == "y/1")
    assert mqtt_broker.wait_for_message("x/#").payload == b"1"
    with pytest.raises(TimeoutError, match=r"1 of 2 messages on 'x/\+' came, besides those on 'y/1'"):
        mqtt_broker.wait_for_messages("x/+", 2, timeout_s=0.05)
    second, third = mqtt_broker.wait_for_messages("#", 2)
    assert (second.payload, second.retain) == (b"2", True)
    assert (third.payload, third.retain) == (b"3", False)


def test_a_cut_is_a_lost_connection_for_both_ends(mqtt_broker: MqttBroker, connect: Connect) -> None:
    cut = connect("cut", topic="will", payload="cut")
    left = connect("left", topic="will", payload="left")
    ends: list[ReasonCode] = []
    cut.on_disconnect = lambda _client, _data, _flags, reason, _: ends.append(reason)
    left.on_disconnect = cut.on_disconnect
    mqtt_broker.wait_for_client("left")
    mqtt_broker.cut("cut")
    assert mqtt_broker.wait_for_message("will").payload == b"cut"
    mqtt_broker.wait_for_client("cut")
    assert [end.is_failure for end in ends] == [True]
    assert len(mqtt_broker.messages) == 1


def test_a_stalled_connection_stays_open_and_passes_nothing_until_it_is_resumed(
    mqtt_broker: MqttBroker, connect: Connect
) -> None:
    stalled, other = connect("stalled"), connect("other")
    mqtt_broker.stall("stalled")
    waiting = stalled.publish("from/stalled", "1", qos=1)
    publish(other, "from/other", "2")
    assert [message.topic for message in mqtt_broker.messages] == ["from/other"]
    assert stalled.is_connected()
    mqtt_broker.resume()
    waiting.wait_for_publish(5)
    assert mqtt_broker.wait_for_message("from/stalled").payload == b"1"


def test_a_stall_of_all_is_one_of_new_clients_too(mqtt_broker: MqttBroker) -> None:
    mqtt_broker.stall()
    with socket.create_connection((mqtt_broker.host, mqtt_broker.port)) as client:
        client.sendall(bytes.fromhex("10 0d 00044d515454 04 02 003c 0001 61"))
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(4)
        mqtt_broker.resume()
        client.settimeout(WAIT_S)
        assert client.recv(4) == bytes.fromhex("20 02 00 00")


def test_sessions_queues_and_retained_messages_survive_a_restart(
    mqtt_broker: MqttBroker, connect: Connect
) -> None:
    client = connect("keeps")
    got: list[bytes] = []
    client.on_message = lambda _client, _data, message: got.append(bytes(message.payload))
    client.subscribe("to/keeps", qos=1)
    mqtt_broker.wait_for_subscription("to/keeps")
    publish(client, "state", "kept", retain=True)
    port = mqtt_broker.port
    mqtt_broker.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((mqtt_broker.host, port)).close()
    with pytest.raises(UsageError, match="not running"):
        mqtt_broker.publish("to/keeps", "early", qos=1)
    mqtt_broker.start()
    assert mqtt_broker.port == port
    mqtt_broker.publish("to/keeps", "late", qos=1)  # the client is away, and does not subscribe again
    deadline = time.monotonic() + 5
    while not got and time.monotonic() < deadline:
        time.sleep(0.01)
    assert got == [b"late"]
    assert [message.topic for message in mqtt_broker.messages] == ["state", "to/keeps"]
    client.subscribe("state")
    while len(got) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert got == [b"late", b"kept"]


def test_an_unknown_client_is_named_with_those_that_are_there(
    mqtt_broker: MqttBroker, connect: Connect
) -> None:
    connect("here")
    mqtt_broker.wait_for_client("here")
    with pytest.raises(TimeoutError, match=r"no client 'away' \(connected: here\)"):
        mqtt_broker.cut("away")
    with pytest.raises(TimeoutError, match=r"no subscription to 'a/b' \(so far: none\)"):
        mqtt_broker.wait_for_subscription("a/b", timeout_s=0.05)


def test_it_is_to_be_entered_first() -> None:
    with pytest.raises(UsageError, match="with MqttBroker"):
        MqttBroker().wait_for_message()
