"""What a session was to get comes after a restart: first what was in flight, with the packet identifiers that
it had, then the rest in order, each once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet, acknowledge, publish

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server


def leave_session(server: Server, topic: str, qos: int = 2, **settings: Any) -> str:
    """A client that subscribes and goes; its session stays."""
    client = connected(server, **(kept(5) | settings))
    client.subscribe(topic, qos)
    client.disconnect()
    return client.client_id


def receive_messages(client: Client, count: int) -> list[Packet]:
    """The next messages, not acknowledged."""
    return [client.expect(PUBLISH) for _ in range(count)]


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_for_an_absent_client_come_in_order(
    servers: Servers, server: Server, crash: bool, qos: int
) -> None:
    absent = leave_session(server, "t/#")
    publisher = connected(server)
    for number in range(20):
        publisher.publish(f"t/{number % 3}", b"%d" % number, qos)
    server = servers.restart(server, crash)
    client = server.back(absent)
    for number in range(20):
        message = client.expect_message(f"t/{number % 3}", b"%d" % number, qos)
        assert message.dup in (False, crash)  # after a crash nobody knows what was sent last
    server.wait_until_empty()
    client.ping()  # nothing else has come


def test_a_message_comes_back_whole(servers: Servers, server: Server, crash: bool) -> None:
    absent = leave_session(server, "t")
    properties: dict[str, Any] = {
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": "answer/here",
        "correlation_data": bytes(range(256)),
        "user": [("k", "1"), ("k", "2"), ("", "")],
    }
    payload = "naïve ".encode() * 20_000
    connected(server).publish("t", payload, 1, message_expiry=1000, **properties)
    connected(server, 4).publish("t", b"", 2)
    server = servers.restart(server, crash)
    client = server.back(absent)
    message = client.expect_message("t", payload, 1)
    for name, value in properties.items():
        assert message.all(name) == (value if isinstance(value, list) else [value])
    assert 990 <= message.get("message_expiry") <= 1000
    assert client.expect_message("t", b"", 2).properties == []


def test_none_comes_before_one_that_was_sent_earlier(servers: Servers, server: Server, crash: bool) -> None:
    """Also when one waited for its turn, and the other went out as it came, just before the end."""
    client = connected(server, receive_max=3, **kept(5))
    client.subscribe("t", 1)
    publisher = connected(server)
    for number in range(4):
        publisher.publish("t", b"%d" % number, 1)
    sent = receive_messages(client, 3)
    client.send(*(acknowledge(PUBACK, each.packet_id) for each in sent))
    publisher.publish("t", b"4", 1)
    sent = receive_messages(client, 2)
    assert [each.payload for each in sent] == [b"3", b"4"]
    server = servers.restart(server, crash)
    client = server.back(client.client_id, receive_max=3)
    assert [each.payload for each in receive_messages(client, 2)] == [b"3", b"4"]


def test_what_was_in_flight_comes_first_with_its_packet_identifiers(
    servers: Servers, server: Server, crash: bool
) -> None:
    client = connected(server, receive_max=6, **kept(5))
    client.subscribe("t", 2)
    publisher = connected(server)
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1 + number % 2)
    sent = receive_messages(client, 6)
    client.send(acknowledge(PUBACK, sent[2].packet_id))  # leaves a hole
    sent += receive_messages(client, 1)
    del sent[2]
    server.wait_for_rows("queue", 9)
    server.wait_for_in_flight(6)
    server = servers.restart(server, crash)
    client = server.back(client.client_id, receive_max=6)
    again = receive_messages(client, 6)
    assert [(each.packet_id, each.payload, each.qos) for each in again] == [
        (each.packet_id, each.payload, each.qos) for each in sent
    ]
    assert all(each.dup for each in again)
    for each in again:
        client.acknowledge(each)
    for number in range(7, 10):
        message = client.expect_message("t", b"%d" % number, 1 + number % 2)
        assert message.dup in (False, crash)
        assert message.packet_id not in [each.packet_id for each in again]
    server.wait_until_empty()
    client.ping()  # nothing else has come


def test_a_released_message_comes_back_as_pubrel(servers: Servers, server: Server, crash: bool) -> None:
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    publisher = connected(server)
    for number in range(3):
        publisher.publish("t", b"%d" % number, 2)
    sent = receive_messages(client, 3)
    client.send(acknowledge(PUBREC, sent[1].packet_id))
    client.expect(PUBREL, packet_id=sent[1].packet_id)
    server = servers.restart(server, crash)
    client = server.back(client.client_id)
    client.expect(PUBLISH, packet_id=sent[0].packet_id, payload=b"0", dup=True)
    client.expect(PUBREL, packet_id=sent[1].packet_id, reason=0)
    client.expect(PUBLISH, packet_id=sent[2].packet_id, payload=b"2", dup=True)
    client.send(acknowledge(PUBCOMP, sent[1].packet_id))
    for number in (0, 2):
        client.send(acknowledge(PUBREC, sent[number].packet_id))
        client.expect(PUBREL, packet_id=sent[number].packet_id)
        client.send(acknowledge(PUBCOMP, sent[number].packet_id))
    server.wait_until_empty()
    client.ping()  # nothing else has come


def test_pubrec_of_a_message_sent_before_the_restart_is_answered(
    servers: Servers, server: Server, crash: bool
) -> None:
    """The client had it, and acknowledges it without having seen it again."""
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    connected(server).publish("t", b"once", 2)
    sent = receive_messages(client, 1)[0]
    server = servers.restart(server, crash)
    client = server.back(client.client_id)
    client.send(acknowledge(PUBREC, sent.packet_id))
    client.expect(PUBLISH, packet_id=sent.packet_id, dup=True)
    client.expect(PUBREL, packet_id=sent.packet_id, reason=0)
    client.send(acknowledge(PUBCOMP, sent.packet_id))
    server.wait_until_empty()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_acknowledged_does_not_come_again(
    servers: Servers, server: Server, crash: bool, qos: int
) -> None:
    client = connected(server, **kept(5))
    client.subscribe("t", qos)
    publisher = connected(server)
    for number in range(10):
        publisher.publish("t", b"%d" % number, qos)
    for number in range(10):
        client.expect_message("t", b"%d" % number, qos)
    server.wait_until_empty()
    server = servers.restart(server, crash)
    server.back(client.client_id).expect_nothing()


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_packet_identifiers_of_new_messages_avoid_those_in_flight(servers: Servers, crash: bool) -> None:
    """Over several restarts, with a message that is never acknowledged."""
    server = servers("rocksdb")
    client = connected(server, **kept(5))
    client.subscribe("t", 1)
    connected(server).publish("t", b"first", 1)
    first = receive_messages(client, 1)[0]
    server.wait_for_in_flight(1)
    for number in range(3):
        server = servers.restart(server, crash)
        client = server.back(client.client_id)
        client.expect(PUBLISH, packet_id=first.packet_id, payload=b"first", dup=True)
        connected(server).publish("t", b"%d" % number, 1)
        assert client.expect_message("t", b"%d" % number, 1).packet_id != first.packet_id
        server.wait_for_rows("queue", 1)
    client.send(acknowledge(PUBACK, first.packet_id))
    server.wait_until_empty()


def test_each_session_keeps_its_own_place_in_a_common_message(
    servers: Servers, server: Server, crash: bool
) -> None:
    """The payload is stored once, and stays until the last of the sessions has had it."""
    done, inflight = (connected(server, **kept(5)) for _ in range(2))
    for client in (done, inflight):
        client.subscribe("t", 1)
    absent = [leave_session(server, "t") for _ in range(3)]
    connected(server).publish("t", b"for all", 2)
    done.expect_message("t", b"for all", 1)
    packet_id = receive_messages(inflight, 1)[0].packet_id
    server.wait_for_rows("queue", 4)
    server.wait_for_in_flight(1)
    assert len(server.rows("payload")) == 1
    server = servers.restart(server, crash)
    server.back(done.client_id).expect_nothing()
    server.back(inflight.client_id).expect_message("t", b"for all", 1, packet_id=packet_id, dup=True)
    for client_id in absent:
        assert len(server.rows("payload")) == 1
        server.back(client_id).expect_message("t", b"for all", 2)
    server.wait_until_empty()


@pytest.mark.parametrize("version", [4, 5])
def test_qos_2_that_was_received_is_not_received_twice(
    servers: Servers, server: Server, crash: bool, version: int
) -> None:
    absent = leave_session(server, "t")
    publisher = connected(server, version, **kept(version))
    publisher.send(publish("t", b"once", 2, 9, version))
    publisher.expect(PUBREC, packet_id=9, reason=0)
    server = servers.restart(server, crash)
    publisher = server.back(publisher.client_id, version)
    publisher.send(publish("t", b"once", 2, 9, version, dup=True))
    publisher.expect(PUBREC, packet_id=9, reason=0)
    publisher.send(acknowledge(PUBREL, 9))
    publisher.expect(PUBCOMP, packet_id=9, reason=0)
    publisher.send(publish("t", b"another", 2, 9, version))
    publisher.expect(PUBREC, packet_id=9, reason=0)
    client = server.back(absent)
    client.expect_message("t", b"once", 2)
    client.expect_message("t", b"another", 2)
    client.expect_nothing()


def test_pubrel_after_the_restart_ends_a_qos_2_message(servers: Servers, server: Server, crash: bool) -> None:
    absent = leave_session(server, "t")
    publisher = connected(server, **kept(5))
    publisher.send(publish("t", b"once", 2, 9))
    publisher.expect(PUBREC, packet_id=9, reason=0)
    server = servers.restart(server, crash)
    publisher = server.back(publisher.client_id)
    publisher.send(acknowledge(PUBREL, 9))
    publisher.expect(PUBCOMP, packet_id=9, reason=0)
    assert not server.rows("received")
    server = servers.restart(server, crash)
    publisher = server.back(publisher.client_id)
    publisher.send(acknowledge(PUBREL, 9))
    assert publisher.expect(PUBCOMP, packet_id=9).reason in (0, 0x92)
    client = server.back(absent)
    client.expect_message("t", b"once", 2)
    client.expect_nothing()


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_a_message_that_many_had_unacknowledged_is_sent_to_each_again(servers: Servers, crash: bool) -> None:
    """Sessions of two reactors, messages of two publishers; what each had is what each gets."""
    server = servers("rocksdb", 2)
    clients = [connected(server, receive_max=5, **kept(5)) for _ in range(6)]
    for client in clients:
        client.subscribe("t/#", 1)
    for name in ("a", "b"):
        publisher = connected(server)
        for number in range(10):
            publisher.publish(f"t/{name}", b"%d" % number, 1)
    before = [receive_messages(client, 5) for client in clients]
    server.wait_for_in_flight(30)
    server = servers.restart(server, crash)
    for client, sent in zip(clients, before, strict=True):
        again = server.back(client.client_id)
        messages = receive_messages(again, 20)
        assert [(each.packet_id, each.topic, each.payload) for each in messages[:5]] == [
            (each.packet_id, each.topic, each.payload) for each in sent
        ]
        assert all(each.dup for each in messages[:5])
        assert crash or not any(each.dup for each in messages[5:])
        for name in ("t/a", "t/b"):
            payloads = [each.payload for each in messages if each.topic == name]
            assert payloads == [b"%d" % number for number in range(10)]
        for each in messages:
            again.acknowledge(each)
    server.wait_until_empty()
