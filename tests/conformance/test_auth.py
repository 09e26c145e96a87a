"""AUTH: a broker without enhanced authentication, and with an authenticator that asks back."""

from __future__ import annotations

import pytest
from conformance.kit import Client, connected, refused, unique
from conformance.packets import CONNACK, auth, connect, packet
from conftest import RunningBroker


def test_unknown_method(broker: RunningBroker) -> None:
    """CONNACK 0x8C or 0x87, then the end. [MQTT-4.12.0-1] [MQTT-3.1.4-2] [MQTT-3.2.2-7] [MQTT-4.13.2-1]"""
    for settings in ({"auth_method": "SCRAM-SHA-256"}, {"auth_method": "x", "auth_data": b"\x00"}):
        client = Client(broker.port)
        client.send(connect(unique("c"), **settings))
        refused(client, 0x8C, 0x87)


def test_no_auth_without_method(broker: RunningBroker) -> None:
    """CONNACK comes straight away and names no method. [MQTT-4.12.0-6]"""
    client = Client(broker.port)
    client.send(connect(unique("c"), username="u", password=b"p"))
    connack = client.expect(CONNACK, reason=0)
    assert connack.get("auth_method") is None
    assert connack.get("auth_data") is None
    client.expect_nothing()


@pytest.mark.parametrize("reason", [0x00, 0x18, 0x19])
def test_auth_without_method(broker: RunningBroker, reason: int) -> None:
    """An AUTH from a client whose CONNECT had no method is a protocol error. [MQTT-4.13.1-1]"""
    client = connected(broker)
    client.send(auth(reason, auth_method="x"))
    client.expect_closed(0x82, 0x81, 0x8C)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(packet(0xF1, b"\x18\x00"), id="flags"),
        pytest.param(packet(0xF8, b"\x18\x00"), id="flag 8"),
        pytest.param(packet(0xF0, b"\x55\x00"), id="reason"),
        pytest.param(packet(0xF0, b"\x18\x7f"), id="properties"),
    ],
)
def test_malformed_auth(broker: RunningBroker, wrong: bytes) -> None:
    """[MQTT-3.15.1-1] [MQTT-3.15.2-1] [MQTT-4.13.1-1]"""
    client = connected(broker)
    client.send(wrong)
    client.expect_closed(0x81, 0x82)
