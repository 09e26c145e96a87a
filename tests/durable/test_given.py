"""What waits for a shared group and nobody serves is given to the group again: here, or on other nodes; and a
queue whose group has members online on other nodes alone, or none that is known, is let go.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import CONNACK
from durable.nodes import asking, taken
from mesh import meshed
from waiting import wait_until

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.nodes import Node

LINKED = 512 * 1024
GROUP = "$share/g/a"
ELSEWHERE = 0x1122334455667788  # the incarnation of another node
BOTH = pytest.mark.parametrize("reactors", [1, 2])


def give(node: Node, *payloads: bytes, group: str = GROUP, first: int = 1) -> list[int]:
    """Messages, with tokens from `first` on; returns the reason codes."""
    tokens = range(first, first + len(payloads))
    for token, payload in zip(tokens, payloads, strict=True):
        message = struct.pack(">BBqIII", 1, 0, 0, 1, 0, len(payload)) + b"a" + payload
        key = struct.pack(">QBQQ", 99, 1, 64 * token, ELSEWHERE)
        assert node.access.give(group, (key, struct.pack(">BBIqQ", 0, 1, 100, 0, 0), message), token)
    wait_until(lambda: set(tokens) <= node.access.given.keys(), "all are answered for")
    return [node.access.given[token] for token in tokens]


def member(node: Node, name: str | None = None) -> Client:
    client = connected(node, client_id=name, **(kept(5) if name else {}))
    client.subscribe(GROUP, 1)
    return client


@BOTH
def test_it_goes_to_a_member_or_waits_here(servers: Servers, reactors: int) -> None:
    node = servers.node(reactors, linked=LINKED)
    client = member(node, "m")
    assert give(node, b"0", b"1", b"2") == [0, 0, 0]
    assert taken(client, 3) == [b"0", b"1", b"2"]
    client.disconnect()
    wait_until(lambda: node.count("live_connections") == 0)
    assert give(node, b"3", b"4", first=4) == [0, 0]
    assert len(node.rows("queue")) == 2
    node = servers.restart(node, True)
    assert taken(node.back("m"), 2) == [b"3", b"4"]


@BOTH
def test_it_goes_to_members_on_other_nodes(servers: Servers, reactors: int) -> None:
    one, other = (servers.node(reactors, linked=LINKED) for _ in range(2))
    with meshed(one, other) as mesh:
        client = member(other)
        mesh.share_interest()
        assert give(one, *(b"%d" % number for number in range(20))) == [0] * 20
        assert taken(client, 20) == [b"%d" % number for number in range(20)]
    assert one.rows("queue") == {}


@BOTH
def test_a_group_that_nobody_is_in_takes_nothing(servers: Servers, reactors: int) -> None:
    node = servers.node(reactors, linked=LINKED)
    member(node)
    assert give(node, b"x", group="$share/h/a") == [0x83]
    assert give(node, b"x", group="$share/g/b", first=2) == [0x83]
    assert not node.access.give(GROUP, (bytes(25), bytes(22), b"no message"), 3)
    assert not node.access.give(GROUP, (bytes(25), bytes(22), None), 4)


@BOTH
def test_a_queue_whose_members_are_all_elsewhere_is_let_go(servers: Servers, reactors: int) -> None:
    one, other = (servers.node(reactors, linked=LINKED) for _ in range(2))
    with meshed(one, other) as mesh:
        away = member(one, "m")
        away.disconnect()
        wait_until(lambda: one.count("live_connections") == 0)
        publisher = connected(one)
        for number in range(10):
            publisher.publish("a", b"%d" % number, 1)
        assert one.access.let_go == []
        client = member(other)
        mesh.share_interest()
        wait_until(lambda: one.access.let_go, "it is let go")
        [number] = one.access.let_go
        assert {int.from_bytes(key[:8]) for key in one.rows("queue")} == {number}
        publisher.publish("a", b"10", 1)
        assert taken(client, 1) == [b"10"]
        back = one.back("m")
        mesh.share_interest()
        back.expect_nothing()  # they are the keeper's to give


@BOTH
@pytest.mark.parametrize("asks", [True, False])
def test_a_queue_without_a_member_is_let_go_where_there_are_other_nodes(
    servers: Servers, reactors: int, asks: bool
) -> None:
    """Its last one may have gone to one of them. Without other nodes it ends."""
    node = servers.node(reactors, asks=asks)
    if asks:
        client, request = asking(node, "m")
        node.access.session_ready(request.connection)
        client.expect(CONNACK, reason=0)
        client.subscribe(GROUP, 1)
    else:
        client = member(node, "m")
    client.disconnect()
    wait_until(lambda: node.count("live_connections") == 0)
    assert give(node, *(b"%d" % number for number in range(10))) == [0] * 10
    assert node.release("m")[1]
    wait_until(lambda: len(node.rows("shared")) == bool(asks) == len(node.access.let_go))
    node.wait_for_rows("queue", 10 if asks else 0)  # these go in batches after the row of the group
    assert node.count("dropped_no_group_member") == (0 if asks else 10)
    assert node.count("live_sessions") == 0
