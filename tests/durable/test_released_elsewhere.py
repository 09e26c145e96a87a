"""QoS 2 messages whose identifier the client has released at another node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, connected
from conformance.packets import CONNACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, acknowledge, publish
from durable.nodes import AskingNode, asking
from waiting import wait_until

if TYPE_CHECKING:
    from durable.conftest import Servers


def let_in(node: AskingNode, client_id: str) -> Client:
    client, request = asking(node, client_id)
    node.access.session_ready(request.connection)
    client.expect(CONNACK, reason=0)
    return client


def sends(client: Client, payload: bytes, *, dup: bool = False) -> None:
    """Under the same identifier, and gets its PUBREC."""
    client.send(publish("t", payload, 2, 7, dup=dup))
    client.expect(PUBREC, packet_id=7)


def taken_at_qos_2(client: Client) -> bytes:
    """The next message, which is acknowledged."""
    packet = client.expect(PUBLISH, qos=2)
    client.send(acknowledge(PUBREC, packet.packet_id))
    client.expect(PUBREL, packet_id=packet.packet_id)
    client.send(acknowledge(PUBCOMP, packet.packet_id))
    return packet.payload


@pytest.mark.parametrize("reactors", [1, 2])
def test_an_identifier_that_is_used_again_on_a_new_connection_is_of_a_new_message(
    servers: Servers, reactors: int
) -> None:
    node = servers.node(reactors, asks=True)
    subscriber = let_in(node, "s")
    subscriber.subscribe("t", 2)
    sends(let_in(node, "p"), b"first")
    subscriber.expect_message("t", b"first", 2)
    client = let_in(node, "p")
    sends(client, b"first", dup=True)
    subscriber.expect_nothing()
    sends(client, b"second")
    subscriber.expect_message("t", b"second", 2)
    sends(client, b"second", dup=True)
    client.send(acknowledge(PUBREL, 7))
    client.expect(PUBCOMP, packet_id=7, reason=0)
    subscriber.expect_nothing()
    assert node.count("identifiers_released_elsewhere") == 1
    assert node.rows("received") == {}


def test_another_message_is_new_also_where_it_is_sent_again(servers: Servers) -> None:
    """Its first PUBLISH went to the other node, or got lost. The store remembers what it was."""
    node: Any = servers.node(asks=True)
    let_in(node, "s").subscribe("t", 2)
    sends(let_in(node, "p"), b"first")
    wait_until(lambda: [len(value) for value in node.rows("received").values()] == [6], "it is stored")
    node = servers.restart(node, True)
    subscriber = let_in(node, "s")
    assert taken_at_qos_2(subscriber) == b"first"
    client = let_in(node, "p")
    sends(client, b"first", dup=True)
    subscriber.expect_nothing()
    sends(client, b"second", dup=True)
    assert taken_at_qos_2(subscriber) == b"second"
    sends(let_in(node, "p"), b"second", dup=True)
    subscriber.expect_nothing()
    assert node.count("identifiers_released_elsewhere") == 1


def test_the_fingerprint_moves_with_the_session(servers: Servers) -> None:
    one, two = (servers.node(asks=True) for _ in range(2))
    let_in(two, "s").subscribe("t", 2)
    let_in(one, "s").subscribe("t", 2)
    sends(let_in(one, "p"), b"first")
    rows = one.hand_over("p", two)
    assert [len(key) for key in rows.received] == [16]
    client = let_in(two, "p")
    sends(client, b"first", dup=True)
    assert two.rows("queue") == {}
    sends(client, b"second", dup=True)
    assert two.count("identifiers_released_elsewhere") == 1


def test_on_one_connection_an_identifier_is_of_one_message(servers: Servers) -> None:
    """[MQTT-4.3.3-10]"""
    node = servers.node(asks=True)
    subscriber, client = let_in(node, "s"), let_in(node, "p")
    subscriber.subscribe("t", 2)
    sends(client, b"first")
    sends(client, b"second")
    subscriber.expect_message("t", b"first", 2)
    subscriber.expect_nothing()


def test_without_other_nodes_an_identifier_is_of_one_message(servers: Servers) -> None:
    server = servers.node()
    subscriber, client = connected(server), connected(server, session_expiry=100)
    subscriber.subscribe("t", 2)
    sends(client, b"first")
    sends(server.back(client.client_id), b"second")
    subscriber.expect_message("t", b"first", 2)
    subscriber.expect_nothing()
    assert server.count("identifiers_released_elsewhere") == 0
