"""Keep alive: who is silent for too long is disconnected, who is not stays."""

from __future__ import annotations

import time

import pytest
from conformance.kit import Client, ConnectionEnded, SideBySide, connected, unique
from conformance.packets import PINGRESP, acknowledge, publish
from conftest import RunningBroker
from waiting import LATE_S, WAIT_S

side_by_side = SideBySide()


def ends_after(client: Client, least_s: float, most_s: float) -> None:
    since = time.monotonic()
    client.expect_closed(0x8D, wait_s=most_s)
    assert time.monotonic() - since >= least_s


@side_by_side
def test_silence_3_1(broker: RunningBroker) -> None:
    """One and a half times the keep alive; the standard's limit, not less than the keep alive itself."""
    ends_after(connected(broker, 3, keep_alive_s=1), 1, 3)


@side_by_side
def test_silence_3_1_1(broker: RunningBroker) -> None:
    """[3.1.1 MQTT-3.1.2-24]"""
    ends_after(connected(broker, 4, keep_alive_s=1), 1, 3)


@side_by_side
def test_silence_5(broker: RunningBroker) -> None:
    """With DISCONNECT 0x8D. [MQTT-3.1.2-22] [MQTT-3.2.2-22] [MQTT-3.14.2-1]"""
    ends_after(connected(broker, 5, keep_alive_s=1), 1, 3)


@side_by_side
def test_twice_the_keep_alive_takes_longer(broker: RunningBroker) -> None:
    """The client's own value counts. [MQTT-3.2.2-22] [MQTT-3.1.2-22]"""
    ends_after(connected(broker, 5, keep_alive_s=2), 2, 4.5)


@side_by_side
def test_zero_is_never(broker: RunningBroker) -> None:
    """Keep alive 0 switches it off. [MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-24]"""
    clients = [connected(broker, version, keep_alive_s=0) for version in (3, 4, 5)]
    time.sleep(2.5)
    for client in clients:
        client.ping()


@side_by_side
def test_ping_keeps_alive(broker: RunningBroker) -> None:
    """[MQTT-3.12.4-1] [MQTT-3.1.2-22] [3.1.1 MQTT-3.12.4-1] [3.1.1 MQTT-3.1.2-24]"""
    clients = [connected(broker, version, keep_alive_s=2) for version in (3, 4, 5)]
    for _ in range(4):  # for longer than the 3 s of silence that are allowed
        time.sleep(1)
        for client in clients:
            client.ping()


@side_by_side
def test_any_packet_keeps_alive(broker: RunningBroker) -> None:
    """PUBLISH at QoS 0 and acknowledgements count as well. [MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-24]"""
    sender, answerer = connected(broker, keep_alive_s=2), connected(broker, 4, keep_alive_s=2)
    for _ in range(8):
        time.sleep(0.5)
        sender.send(publish(unique("t/"), b"x"))
        answerer.send(acknowledge(4, 1))
    sender.ping()
    answerer.ping()


@side_by_side
def test_half_a_packet_does_not(broker: RunningBroker) -> None:
    """A client that never finishes its packet is as good as silent, even while its bytes come.
    [MQTT-3.1.2-22]"""
    client, since = connected(broker, 4, keep_alive_s=1), time.monotonic()

    def trickle() -> None:
        client.send(b"\x30\xff\x01")
        while time.monotonic() - since < WAIT_S:
            client.send(b"\x00")
            time.sleep(0.1)

    with pytest.raises(ConnectionError):
        trickle()
    assert 1 < time.monotonic() - since < LATE_S


@side_by_side
def test_what_the_broker_sends_does_not_count(broker: RunningBroker) -> None:
    """A client that only receives QoS 0 is silent. [MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-24]"""
    topic, receiver = unique("t/"), connected(broker, 4, keep_alive_s=1)
    receiver.subscribe(topic)
    sender, since = connected(broker, 4), time.monotonic()

    def receive_all() -> None:
        while time.monotonic() - since < WAIT_S:
            sender.publish(topic, b"x")
            receiver.expect_message(topic, b"x")
            time.sleep(0.2)

    with pytest.raises(ConnectionEnded):
        receive_all()
    assert 1 < time.monotonic() - since < LATE_S


@side_by_side
def test_pings_without_reading(broker: RunningBroker) -> None:
    """Answers wait until they are read. [MQTT-3.12.4-1]"""
    client = connected(broker, keep_alive_s=1)
    for _ in range(15):
        client.send(b"\xc0\x00")
        time.sleep(0.1)
    for _ in range(15):
        client.expect(PINGRESP)
