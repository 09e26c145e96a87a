"""Order: what one client publishes on a topic reaches every receiver in that order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from conformance.kit import Client, connected, unique
from conformance.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, acknowledge, publish
from conftest import RunningBroker, StartBroker


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda count: f"{count} reactors")
def reactors_broker(request: pytest.FixtureRequest, start_broker: StartBroker) -> RunningBroker:
    """Brokers of one and of several reactors."""
    return start_broker(reactors=request.param)


def send_all(client: Client, topic: str, qos: int, count: int, window: int = 100) -> None:
    """Publishes 0 .. count-1 and finishes each handshake, so many at a time."""
    for start in range(0, count, window):
        numbers = range(start, min(start + window, count))
        client.send(*(publish(topic, b"%d" % n, qos, 1 + n - start, client.version) for n in numbers))
        if qos == 1:
            assert [client.expect(PUBACK).packet_id for _ in numbers] == [1 + n - start for n in numbers]
        if qos == 2:
            client.send(*(acknowledge(PUBREL, client.expect(PUBREC).packet_id) for _ in numbers))
            assert [client.expect(PUBCOMP).packet_id for _ in numbers] == [1 + n - start for n in numbers]
    client.ping()


def receive_all(client: Client, count: int) -> dict[str, list[int]]:
    """So many messages, by topic; all acknowledged."""
    found: dict[str, list[int]] = {}
    missing, open_handshakes = count, 0
    while missing or open_handshakes:
        packet = client.receive()
        if packet.kind == PUBLISH:
            missing -= 1
            found.setdefault(packet.topic, []).append(int(packet.payload))
            if packet.qos == 1:
                client.send(acknowledge(PUBACK, packet.packet_id))
            elif packet.qos == 2:
                open_handshakes += 1
                client.send(acknowledge(PUBREC, packet.packet_id))
        else:
            assert packet.kind == PUBREL
            open_handshakes -= 1
            client.send(acknowledge(PUBCOMP, packet.packet_id))
    return found


def together(*work: tuple[Any, ...]) -> None:
    """Runs calls in threads; the first failure is raised."""
    failures: list[BaseException] = []

    def run(call: Callable[..., object], *arguments: Any) -> None:
        try:
            call(*arguments)
        except BaseException as failure:  # noqa: BLE001 (raised by who joins the thread)
            failures.append(failure)

    threads = [threading.Thread(target=run, args=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_many_senders_and_receivers(reactors_broker: RunningBroker, version: int, qos: int) -> None:
    """Eight senders, each on a topic of its own, eight receivers of all: nothing is lost, doubled or out of
    order. [MQTT-4.6.0-5] [MQTT-4.6.0-6] [MQTT-4.5.0-1] [3.1.1 MQTT-4.6.0-5] [3.1.1 MQTT-4.6.0-6]
    [3.1.1 MQTT-4.5.0-1]"""
    topic, count = unique("t/"), 200
    senders = [connected(reactors_broker, version) for _ in range(8)]
    receivers = [connected(reactors_broker, version) for _ in range(8)]
    for receiver in receivers:
        receiver.subscribe(f"{topic}/+", qos)
    results: list[dict[str, list[int]]] = [{} for _ in receivers]

    def receive(index: int) -> None:
        results[index] = receive_all(receivers[index], count * len(senders))

    together(
        *((send_all, sender, f"{topic}/{index}", qos, count) for index, sender in enumerate(senders)),
        *((receive, index) for index in range(len(receivers))),
    )
    for result in results:
        assert result == {f"{topic}/{index}": list(range(count)) for index in range(len(senders))}


def test_mixed_qos(reactors_broker: RunningBroker) -> None:
    """Each QoS for itself is in order, on one topic. [MQTT-4.6.0-5] [3.1.1 MQTT-4.6.0-6]"""
    topic, count = unique("t/"), 300
    receiver, sender = connected(reactors_broker), connected(reactors_broker)
    receiver.subscribe(topic, 2)
    by_qos: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number in range(count):
        sender.publish(topic, b"%d" % number, number % 3)
    for _ in range(count):
        message = receiver.expect(PUBLISH)
        receiver.acknowledge(message)
        by_qos[message.qos].append(int(message.payload))
    assert by_qos == {qos: list(range(qos, count, 3)) for qos in range(3)}


def test_message_before_its_successor_s_subscription(reactors_broker: RunningBroker) -> None:
    """Who subscribes and then publishes to itself gets the message, on every reactor. [MQTT-3.8.4-1]"""
    for _ in range(20):
        topic, client = unique("t/"), connected(reactors_broker)
        client.subscribe(topic, 1)
        other = connected(reactors_broker)
        other.publish(topic, b"x", 1)
        client.expect_message(topic, b"x", 1)


def test_retained_after_puback(reactors_broker: RunningBroker) -> None:
    """What was acknowledged as retained is there for whoever subscribes next. [MQTT-3.3.1-5]"""
    for number in range(20):
        topic = unique("t/")
        connected(reactors_broker).publish(topic, b"%d" % number, 1, retain=True)
        client = connected(reactors_broker)
        client.subscribe(topic, 1)
        client.expect_message(topic, b"%d" % number, 1, retain=True)


def test_messages_while_subscriptions_change(reactors_broker: RunningBroker) -> None:
    """Others' subscribing and unsubscribing disturbs nobody's stream. [MQTT-4.6.0-5] [MQTT-3.8.4-4]"""
    topic, count = unique("t/"), 2000
    receiver, sender, restless = (connected(reactors_broker) for _ in range(3))
    receiver.subscribe(f"{topic}/#", 1)

    def change() -> None:
        for number in range(200):
            restless.subscribe(f"{unique('x')}/{number}/+", 1)
            restless.unsubscribe(f"{topic}/{number}")

    result: dict[str, list[int]] = {}

    def receive() -> None:
        result.update(receive_all(receiver, count))

    together((send_all, sender, f"{topic}/a", 1, count), (receive,), (change,))
    assert result == {f"{topic}/a": list(range(count))}
