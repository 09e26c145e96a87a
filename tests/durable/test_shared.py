"""Nobody who is away holds up a message of a shared group: it goes to a member on whatever reactor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.kit import connected, kept
from conformance.packets import PUBACK, PUBLISH, acknowledge, publish

if TYPE_CHECKING:
    from durable.conftest import Servers

FILTER = "$share/g/t"


@pytest.mark.parametrize("kind", ["none", "rocksdb"])
@pytest.mark.parametrize("there", [0, 1], ids=["same reactor", "another reactor"])
def test_what_waited_for_a_member_goes_to_one_that_comes(servers: Servers, kind: str, there: int) -> None:
    server = servers(kind, 2)
    away = server.connected_on(0, **kept(5), receive_max=3)
    away.subscribe(FILTER, 1)
    publisher = connected(server)
    for number in range(8):
        publisher.publish("t", b"%d" % number, 1)
    assert [away.expect(PUBLISH).payload for _ in range(3)] == [b"0", b"1", b"2"]
    away.drop()  # it held three, five waited for it
    other = server.connected_on(there, **kept(5))
    other.subscribe(FILTER, 1)
    for number in range(8):
        other.expect_message("t", b"%d" % number, 1)
    publisher.publish("t", b"next", 1)
    other.expect_message("t", b"next", 1)
    back = server.back(away.client_id)
    back.expect_nothing()


@pytest.mark.parametrize("there", [0, 1], ids=["same reactor", "another reactor"])
def test_very_many_held_go_back_whole_and_in_order(servers: Servers, there: int) -> None:
    """More than one turn hands back; what was not handed back when the session ended is not lost either."""
    count = 6000
    server = servers("none", 2, inflight_max=count)
    away = server.connected_on(0, **kept(5))
    away.subscribe(FILTER, 1)
    publisher = connected(server)
    for first in range(0, count, 500):
        part = range(first, first + 500)
        publisher.send(*(publish("t", b"%d" % number, 1, number - first + 1) for number in part))
        for _ in part:
            publisher.expect(PUBACK)
        for _ in part:
            away.expect(PUBLISH)
    away.drop()
    other = server.connected_on(there, **kept(5), receive_max=100)
    other.subscribe(FILTER, 1)
    ended = connected(server, client_id=away.client_id, clean=True)
    for number in range(count):
        other.expect_message("t", b"%d" % number, 1)
    other.expect_nothing()
    ended.expect_nothing()


def test_who_leaves_a_group_takes_nothing_from_others(servers: Servers) -> None:
    """The end of the group's queue, and the acknowledgement of what was in flight, count a message's
    reference once: it is still there for the client that was away.
    """
    server = servers("memory", 1)
    absent = connected(server, **kept(5))
    absent.subscribe("t", 2)
    absent.disconnect()
    member = connected(server, **kept(5))
    member.subscribe(FILTER, 1)
    publisher = connected(server, **kept(5))
    publisher.publish("t", b"for both", 2)
    message = member.expect(PUBLISH)
    member.unsubscribe(FILTER)
    server.wait_for_rows("shared", 0)
    member.send(acknowledge(PUBACK, message.packet_id))
    member.ping()
    publisher.publish("t", b"next", 1)  # what came before is in the store then
    server.wait_for_rows("queue", 2)
    server = servers.restart(server, crash=True)
    back = server.back(absent.client_id)
    back.expect_message("t", b"for both", 2)
    back.expect_message("t", b"next", 1)
    assert server.count("store_corrupt_rows") == 0
    server.wait_until_empty()


def test_what_a_member_holds_goes_with_its_session(servers: Servers) -> None:
    """Though the group ended before."""
    server = servers("memory", 1)
    member = connected(server, **kept(5))
    member.subscribe(FILTER, 1)
    connected(server).publish("t", b"1", 1)
    member.expect(PUBLISH)
    member.unsubscribe(FILTER)
    server.wait_for_rows("shared", 0)
    member.drop()
    connected(server, client_id=member.client_id, clean=True).disconnect()
    server.wait_for_rows("queue", 0)
    server.wait_until_empty()
