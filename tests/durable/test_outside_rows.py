"""Rows that another node has added to a queue, or removed from it; retained messages that it has changed."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import PUBACK, PUBLISH, acknowledge
from waiting import wait_until

from tidemq.errors import UsageError

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.nodes import Node

ELSEWHERE = 0x1122334455667788  # the incarnation of another node
BOTH = pytest.mark.parametrize("reactors", [1, 2])


def message_id(clock: int) -> bytes:
    return struct.pack(">QQ", clock, ELSEWHERE)


def message(payload: bytes, topic: bytes = b"t", qos: int = 1) -> bytes:
    return struct.pack(">BBqIII", qos, 0, 0, len(topic), 0, len(payload)) + topic + payload


class Queue:
    """A client's queue, to which rows come from elsewhere."""

    def __init__(self, node: Node, client_id: str) -> None:
        self.node = node
        self.number = node.session_rows(client_id).queue

    def key(self, clock: int) -> bytes:
        return struct.pack(">QB", self.number, 1) + message_id(clock)

    def add(self, *clocks: int) -> None:
        """Rows come; each message's payload is its clock."""
        for clock in clocks:
            value = struct.pack(">BBIqQ", 0, 1, 100, 0, 0)
            self.node.write(
                [
                    ("queue", self.key(clock), value),
                    ("payload", message_id(clock), message(b"%d" % clock)),
                ]
            )
        ids = [message_id(clock) for clock in clocks]
        self.node.access.note_added(self.number, ids, [100] * len(clocks))

    def remove(self, *clocks: int) -> None:
        """Rows go."""
        for clock in clocks:
            self.node.write([("queue", self.key(clock), None), ("payload", message_id(clock), None)])
        ids = [message_id(clock) for clock in clocks]
        self.node.access.note_removed(self.number, ids, [100] * len(clocks))


def subscribed(node: Node, **settings: int) -> Client:
    client = connected(node, client_id="c", **(kept(5) | settings))
    client.subscribe("t", 1)
    return client


def now() -> int:
    return time.time_ns() // 64 * 64


def clocks_of(client: Client, count: int) -> list[int]:
    """Of so many messages, which are acknowledged."""
    found = []
    for _ in range(count):
        packet = client.expect(PUBLISH)
        client.send(acknowledge(PUBACK, packet.packet_id))
        found.append(int(packet.payload))
    return found


@BOTH
def test_rows_that_come_are_delivered(servers: Servers, reactors: int) -> None:
    node = servers.node(reactors)
    client = subscribed(node)
    queue, first = Queue(node, "c"), now()
    queue.add(first, first + 64, first + 128)
    assert clocks_of(client, 3) == [first, first + 64, first + 128]
    client.ping()
    node.wait_until_empty()


def test_rows_that_come_for_who_is_away_wait(servers: Servers) -> None:
    node = servers.node()
    subscribed(node).disconnect()
    first = now()
    Queue(node, "c").add(first, first + 64)
    client = node.back("c")
    assert clocks_of(client, 2) == [first, first + 64]


@BOTH
def test_a_row_that_is_older_than_what_was_read_comes_all_the_same(servers: Servers, reactors: int) -> None:
    """What waits is sent in the order of ids again; what was sent before stays before."""
    node = servers.node(reactors)
    client = subscribed(node, receive_max=1)
    queue, first = Queue(node, "c"), now()
    clocks = [first + 64 * number for number in range(6)]
    queue.add(clocks[3])
    held = client.expect(PUBLISH, payload=b"%d" % clocks[3])
    queue.add(clocks[1], clocks[4])
    queue.add(clocks[5])
    node.wait_for("store_rows_read", 4)
    queue.add(clocks[2])
    queue.add(clocks[0])
    wait_until(lambda: len(node.rows("queue")) == 6, "all rows are there")
    node.keeper.ask(lambda: None).result()
    client.send(acknowledge(PUBACK, held.packet_id))
    assert clocks_of(client, 5) == [clocks[at] for at in (0, 1, 2, 4, 5)]
    client.expect_nothing()
    node.wait_until_empty()


def test_rows_of_others_and_own_messages_each_come_once(servers: Servers) -> None:
    """However they are mixed, with a client that is slow and one that comes and goes."""
    node = servers.node(2, queue_window_messages=10)
    client = subscribed(node, receive_max=3)
    queue, sender = Queue(node, "c"), connected(node)
    added, seen = set(), set()
    base = now() - 10**9
    for turn in range(30):
        late = [base + 64 * (1000 - 10 * turn + at) for at in range(3)]
        queue.add(*late)
        sender.publish("t", b"%d" % turn, 1)
        added |= {*late, turn}
        if turn % 10 == 9:
            client.drop()
            client = node.back("c", receive_max=3)
        for clock in clocks_of(client, 2):
            seen.add(clock)
    while len(seen) < len(added):
        seen |= set(clocks_of(client, 1))
    assert seen == added
    client.ping()
    node.wait_until_empty()


@BOTH
def test_rows_that_go_are_not_delivered(servers: Servers, reactors: int) -> None:
    """Whether they wait in memory or in the store alone; what is in flight stays so."""
    node = servers.node(reactors, queue_window_messages=2)
    client = subscribed(node, receive_max=1)
    queue, first = Queue(node, "c"), now()
    clocks = [first + 64 * number for number in range(8)]
    queue.add(*clocks)
    held = client.expect(PUBLISH, payload=b"%d" % clocks[0])
    node.wait_for("store_rows_read", 2)
    queue.remove(clocks[0], clocks[1], clocks[6])
    node.keeper.ask(lambda: None).result()
    client.send(acknowledge(PUBACK, held.packet_id))
    assert clocks_of(client, 5) == [clocks[at] for at in (2, 3, 4, 5, 7)]
    client.expect_nothing()
    node.wait_until_empty()


def test_what_is_said_of_a_queue_that_is_not_here_is_ignored(servers: Servers) -> None:
    node = servers.node()
    node.access.note_added(99, [message_id(64)], [100])
    node.access.note_removed(99, [message_id(64)], [100])
    for ids, sizes in (([b"short"], [1]), ([message_id(64)], [])):
        with pytest.raises(UsageError, match="16 bytes"):
            node.access.note_added(1, ids, sizes)


# --- retained messages -----------------------------------------------------------------------------------


def test_a_retained_message_comes_and_goes(servers: Servers) -> None:
    node = servers.node(2)
    first = now()
    assert node.access.retain(b"t", message_id(first) + message(b"1"))
    assert node.count("retained") == 1
    client = connected(node)
    client.subscribe("t", 1)
    client.expect_message("t", b"1", 1, retain=True)
    assert node.rows("retained") == {}  # whoever says so has written it
    assert node.access.retain(b"t", message_id(first - 64))
    assert node.count("retained") == 1, "what is newer than its removal stays"
    for _ in range(2):
        assert node.access.retain(b"t", message_id(first))
        assert node.count("retained") == 0


def test_an_older_retained_message_changes_nothing(servers: Servers) -> None:
    node = servers.node()
    first = now() - 10**9
    connected(node).publish("t", b"own", 1, retain=True)
    assert node.access.retain(b"t", message_id(first) + message(b"older"))
    client = connected(node)
    client.subscribe("t", 1)
    client.expect_message("t", b"own", 1, retain=True)
    assert node.access.retain(b"t", message_id(now() + 10**9) + message(b"newer"))
    client = connected(node)
    client.subscribe("t", 1)
    client.expect_message("t", b"newer", 1, retain=True)


@pytest.mark.parametrize("value", [b"", b"short", message_id(64) + message(b"1")[:-1]])
def test_what_cannot_be_read_is_not_retained(servers: Servers, value: bytes) -> None:
    node = servers.node()
    assert not node.access.retain(b"t", value)
    assert not node.access.retain(b"other", message_id(64) + message(b"1"))
    assert node.count("retained") == 0
