"""A shared group's queue outlives the broker, and its members: each message goes to one of them, in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, Silence, connected, kept
from conformance.packets import PUBLISH
from waiting import WAIT_S, wait_until

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server

FILTER = "$share/g/t/#"


def join(server: Server, qos: int = 1, **settings: Any) -> Client:
    """A member with a session that is kept."""
    client = connected(server, **(kept(5) | settings))
    client.subscribe(FILTER, qos)
    return client


def publish_numbers(server: Server, numbers: range, qos: int = 1) -> None:
    publisher = connected(server)
    for number in numbers:
        publisher.publish("t/x", b"%d" % number, qos)


def take(clients: list[Client], count: int) -> list[list[int]]:
    """What each gets until they have so many together; all is acknowledged."""
    got: list[list[int]] = [[] for _ in clients]
    deadline = time.monotonic() + WAIT_S
    while sum(map(len, got)) < count:
        for client, numbers in zip(clients, got, strict=True):
            try:
                while True:
                    message = client.receive(0.02)
                    assert message.kind == PUBLISH
                    numbers.append(int(message.payload))
                    client.acknowledge(message)
            except Silence:
                continue
        assert time.monotonic() < deadline, f"nothing more comes after {got}"
    return got


@pytest.mark.parametrize("qos", [1, 2])
def test_what_came_while_no_member_was_there(servers: Servers, server: Server, crash: bool, qos: int) -> None:
    members = [join(server, qos), join(server, qos)]
    for member in members:
        member.disconnect()
    publish_numbers(server, range(20), qos)
    server = servers.restart(server, crash)
    publish_numbers(server, range(20, 30), qos)
    client = server.back(members[1].client_id)  # one is enough
    [numbers] = take([client], 30)
    assert [number for number in numbers if number < 20] == list(range(20))  # of one publisher
    assert [number for number in numbers if number >= 20] == list(range(20, 30))
    server.wait_until_empty()
    client.ping()


def test_what_a_member_had_not_acknowledged_goes_to_another(
    servers: Servers, server: Server, crash: bool
) -> None:
    """At QoS 1, when it is gone: also when the broker went first."""
    slow = join(server, receive_max=5)
    publish_numbers(server, range(10))
    held = [slow.expect(PUBLISH) for _ in range(5)]
    assert [int(each.payload) for each in held] == list(range(5))
    slow.drop()
    wait_until(lambda: not server.count("live_connections"), "it is gone")
    other = join(server)
    for number in range(3):
        other.expect_message("t/x", b"%d" % number, 1)
    server.wait_for_rows("queue", 7)
    other.drop()
    server = servers.restart(server, crash)
    third = server.back(other.client_id)
    [numbers] = take([third], 7)
    assert sorted(numbers) == list(range(3, 10))
    server.wait_until_empty()
    server.back(slow.client_id).ping()


def test_qos_2_stays_with_the_member_that_has_it(servers: Servers, server: Server, crash: bool) -> None:
    """Its delivery has begun [5.0 section 4.8.2]."""
    first = join(server, 2, receive_max=1)
    publish_numbers(server, range(4), 2)
    begun = first.expect(PUBLISH, payload=b"0")
    server = servers.restart(server, crash)
    second = join(server, 2)
    for number in range(1, 4):
        second.expect_message("t/x", b"%d" % number, 2)
    again = server.back(first.client_id)
    again.expect_message("t/x", b"0", 2, dup=True, packet_id=begun.packet_id)
    server.wait_until_empty()
    second.ping()


def test_two_members_empty_the_queue_together(servers: Servers, server: Server, crash: bool) -> None:
    members = [join(server), join(server)]
    for member in members:
        member.disconnect()
    publish_numbers(server, range(60))
    server = servers.restart(server, crash)
    got = take([server.back(member.client_id, receive_max=2) for member in members], 60)
    assert sorted(got[0] + got[1]) == list(range(60))
    for numbers in got:
        assert numbers == sorted(numbers)
    server.wait_until_empty()


def test_a_group_that_ends_leaves_nothing(servers: Servers, server: Server, crash: bool) -> None:
    member = join(server)
    member.disconnect()
    publish_numbers(server, range(20))
    assert len(server.rows("queue")) == 20
    client = server.back(member.client_id)
    client.drop()
    server.back(member.client_id, session_expiry=0).drop()
    server.wait_for_rows("session", 0)
    server = servers.restart(server, crash)
    server.wait_until_empty()
    server.wait_for_rows("shared", 0)
