"""Request and response: what a response needs reaches the receiver of the request unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.kit import connected, kept, unique
from conformance.packets import PUBLISH, publish
from conftest import RunningBroker

SENT: dict[str, Any] = {
    "payload_format": 1,
    "content_type": "application/json; \u00fc",
    "response_topic": "answers/to/me",
    "correlation_data": bytes(range(256)),
    "user": [("z", "1"), ("a", "2"), ("z", "1"), ("", "")],
}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_passed_on(broker: RunningBroker, qos: int) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
    [MQTT-3.3.2-13] [MQTT-3.3.2-19]"""
    topic, receivers = unique("t/"), [connected(broker) for _ in range(2)]
    for receiver in receivers:
        receiver.subscribe(topic, qos)
    connected(broker).publish(topic, b'{"a": 1}', qos, **SENT)
    for receiver in receivers:
        message = receiver.expect_message(topic, b'{"a": 1}', qos)
        for name, value in SENT.items():
            assert message.all(name) == (value if isinstance(value, list) else [value])
        assert len(message.properties) == 8


def test_passed_on_from_the_queue(broker: RunningBroker) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    topic, receiver = unique("t/"), connected(broker, **kept(5))
    receiver.subscribe(topic, 2, subscription_id=77)
    receiver.disconnect()
    connected(broker).publish(topic, b"x", 2, **SENT)
    receiver = connected(broker, client_id=receiver.client_id, **kept(5))
    message = receiver.expect(PUBLISH, payload=b"x")
    for name, value in {**SENT, "subscription_id": 77}.items():
        assert message.all(name) == (value if isinstance(value, list) else [value])
    receiver.drop()
    receiver = connected(broker, client_id=receiver.client_id, **kept(5))
    assert receiver.expect(PUBLISH, dup=True).properties == message.properties


@pytest.mark.parametrize("indicator", [0, 1])
def test_payload_format(broker: RunningBroker, indicator: int) -> None:
    """0 is passed on as well as 1. [MQTT-3.3.2-4]"""
    topic, receiver = unique("t/"), connected(broker)
    receiver.subscribe(topic)
    connected(broker).publish(topic, b"text", payload_format=indicator)
    assert receiver.expect_message(topic, b"text").all("payload_format") == [indicator]


@pytest.mark.parametrize("version", [3, 4])
def test_old_receivers_get_none(broker: RunningBroker, version: int) -> None:
    """To a 3.x client the message is its topic and payload, exactly. [3.1.1 MQTT-7.0.0-2]"""
    topic, receiver = unique("t/"), connected(broker, version)
    receiver.subscribe(topic)
    connected(broker).publish(topic, b"x", 1, **SENT)
    receiver.expect_bytes(publish(topic, b"x", version=version))


def test_a_conversation(broker: RunningBroker) -> None:
    """A requester and a responder, as the standard describes them."""
    requests, answers = unique("requests/"), unique("answers/")
    requester, responder = connected(broker), connected(broker)
    requester.subscribe(answers, 1)
    responder.subscribe(requests, 1)
    requester.publish(requests, b"2 + 2", 1, response_topic=answers, correlation_data=b"\x01\x00")
    request = responder.expect_message(requests, b"2 + 2", 1)
    responder.publish(
        str(request.get("response_topic")), b"4", 1, correlation_data=request.get("correlation_data")
    )
    assert requester.expect_message(answers, b"4", 1).get("correlation_data") == b"\x01\x00"
