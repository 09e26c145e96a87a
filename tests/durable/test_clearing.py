"""A session that was taken without a word of its old home: before a QoS 2 message goes out under a packet
identifier its client is told to release it, and has said so, for it may hold it for another message.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet, acknowledge

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.nodes import Node

NOT_FOUND = 0x92


def taken_over(servers: Servers, waiting: int = 0, qos: int = 2, version: int = 5, **more: Any) -> Node:
    """The node that has the session of `c` now, subscribed to `t`."""
    first: Node = servers.node(1)
    node: Node = servers.node(1)
    client = connected(first, version, client_id="c", **kept(version))
    client.subscribe("t", qos)
    client.disconnect()
    publish(first, *range(waiting), qos=qos)
    first.hand_over("c", node, **{"unasked": True, **more})
    return node


def publish(node: Node, *numbers: int, qos: int = 2) -> None:
    sender = connected(node)
    for number in numbers:
        sender.publish("t", b"%d" % number, qos)
    sender.disconnect()


def asked(client: Client, count: int) -> list[int]:
    """The identifiers that it is told to release."""
    return [client.expect(PUBREL).packet_id for _ in range(count)]


def message(client: Client) -> Packet:
    """The next one; what it is told to release meanwhile, a few identifiers ahead, it does."""
    while (packet := client.receive()).kind == PUBREL:
        clear(client, [packet.packet_id])
    assert (packet.kind, packet.qos) == (PUBLISH, 2)
    return packet


def clear(client: Client, identifiers: list[int]) -> None:
    reason = NOT_FOUND if client.version == 5 else 0
    client.send(*(acknowledge(PUBCOMP, each, reason) for each in identifiers))


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_goes_when_the_client_has_released_its_identifier(servers: Servers, version: int) -> None:
    node = taken_over(servers, 3, version=version)
    client = node.back("c", version)
    identifiers = asked(client, 8)
    assert identifiers == list(range(identifiers[0], identifiers[0] + 8))
    client.expect_nothing()
    clear(client, identifiers[:7])
    client.expect_nothing()
    clear(client, identifiers[7:])
    came = [message(client) for _ in range(3)]
    assert [(each.packet_id, each.payload) for each in came] == [
        (identifiers[number], b"%d" % number) for number in range(3)
    ]


def test_one_that_was_asked_for_is_sent_what_it_was_sent_all_along(servers: Servers) -> None:
    client = taken_over(servers, 1, unasked=False).back("c")
    client.expect_message("t", b"0", 2)


def test_quality_of_service_1_is_not_held_up(servers: Servers) -> None:
    client = taken_over(servers, 1, qos=1).back("c")
    client.expect_message("t", b"0", 1)
    client.expect_nothing()


def test_who_comes_back_is_asked_anew(servers: Servers) -> None:
    """What it has said on the connection before counts no more, but for what was complete."""
    node = taken_over(servers, 1)
    client = node.back("c")
    identifiers = asked(client, 8)
    clear(client, identifiers[:4])
    client.ping()
    client.drop()
    client = node.back("c")
    identifiers = asked(client, 8)
    client.expect_nothing()
    clear(client, identifiers)
    assert message(client).packet_id == identifiers[0]


def test_who_ends_its_connection_each_time_gets_its_messages_all_the_same(servers: Servers) -> None:
    node = taken_over(servers, 1)
    for _ in range(5):
        client = node.back("c")
        asked(client, 8)
        client.drop()
    client = node.back("c")
    client.expect_message("t", b"0", 2)
    assert node.count("identifiers_not_cleared") == 1


@pytest.mark.long
def test_who_does_not_answer_gets_its_messages_after_a_while(servers: Servers) -> None:
    """And what it answers then is no answer to a message."""
    node = taken_over(servers, 2)
    client = node.back("c")
    identifiers = asked(client, 8)
    began = time.monotonic()
    came = [client.expect(PUBLISH, qos=2) for _ in range(2)]
    assert time.monotonic() - began > 15
    assert node.count("identifiers_not_cleared") == 1
    clear(client, identifiers)
    for each in came:
        client.send(acknowledge(PUBREC, each.packet_id))
        client.expect(PUBREL, packet_id=each.packet_id)
        client.send(acknowledge(PUBCOMP, each.packet_id))
    publish(node, 2)
    client.expect_message("t", b"2", 2)


def test_what_was_in_flight_keeps_its_identifier(servers: Servers) -> None:
    first, node = servers.node(1), servers.node(1)
    client = connected(first, client_id="c", **kept(5))
    client.subscribe("t", 2)
    publish(first, 0)
    before = client.expect(PUBLISH, payload=b"0", qos=2)
    client.drop()
    first.hand_over("c", node, unasked=True, gap=100)
    client = node.back("c")
    again = client.expect(PUBLISH, payload=b"0", qos=2, dup=True)
    assert again.packet_id == before.packet_id
    publish(node, 1)
    identifiers = asked(client, 8)
    assert identifiers[0] == before.packet_id + 101
    clear(client, identifiers)
    came = message(client)
    assert (came.packet_id, came.payload) == (identifiers[0], b"1")


def test_a_client_that_turns_out_to_have_been_elsewhere_is_asked_from_then_on(servers: Servers) -> None:
    first, node = servers.node(1), servers.node(1)
    client = connected(first, client_id="c", **kept(5))
    client.subscribe("t", 2)
    client.disconnect()
    queue = first.hand_over("c", node).queue
    client = node.back("c")
    publish(node, 0)
    client.expect_message("t", b"0", 2)
    node.access.clear_identifiers(queue)
    node.access.clear_identifiers(queue + 1000)
    client.ping()
    publish(node, 1)
    clear(client, asked(client, 8))
    assert message(client).payload == b"1"


def test_a_place_that_was_asked_for_may_be_taken_at_quality_of_service_1(servers: Servers) -> None:
    """The answer comes when that is in flight, or when it has been acknowledged and more places are taken."""
    node = taken_over(servers, 1)
    client = node.back("c")
    clear(client, asked(client, 8))
    ahead = asked(client, 8)
    assert client.expect(PUBLISH, payload=b"0", qos=2).packet_id == ahead[0] - 8
    publish(node, *range(1, 30), qos=1)
    for number in range(1, 30):
        came = client.expect(PUBLISH, payload=b"%d" % number, qos=1)
        if number % 2:
            client.send(acknowledge(PUBACK, came.packet_id))
    publish(node, 30)
    client.expect_nothing()
    clear(client, ahead)
    assert (message(client)).payload == b"30"
