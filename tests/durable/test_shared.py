"""Nobody who is away holds up a message of a shared group: it goes to a member on whatever reactor."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, Silence, connected, kept
from conformance.packets import PUBACK, PUBLISH, acknowledge, publish
from waiting import LATE_S, wait_until

from tidemq.broker.durability import keeper
from tidemq.errors import StoreError

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


@pytest.mark.parametrize("kind", ["none", "memory"])
def test_a_message_on_its_way_to_a_member_that_goes_waits_for_it(servers: Servers, kind: str) -> None:
    """Its reactor has no member any more when it comes: it is in the group's queue there."""
    piece, pieces = 2000, 10
    server = servers(kind, 2, queued_messages_max=2 * piece * pieces)
    member = server.connected_on(1, **kept(5))
    member.subscribe(FILTER, 1)
    publisher = server.connected_on(0, 4)
    ranges = [range(first, first + piece) for first in range(0, piece * pieces, piece)]
    packets = [b"".join(publish("t", b"%d" % n, 1, n % piece + 1, 4) for n in part) for part in ranges]

    def publish_all() -> None:  # as much of the time as can be the publisher's reactor is at work
        for each in packets:
            publisher.send(each)
            acknowledged = 0
            while acknowledged < piece * len(acknowledge(PUBACK, 1)):
                acknowledged += len(publisher.socket.recv(1 << 16))

    publishing = threading.Thread(target=publish_all)
    publishing.start()
    while publishing.is_alive():
        member.drop()
        member = server.back(member.client_id)
        time.sleep(0.001)
    publishing.join()
    assert server.count("dropped_no_group_member") == 0
    got: set[bytes] = set()
    take(member, got, piece * pieces)
    assert len(got) == piece * pieces


def take(member: Client, got: set[bytes], most: int) -> None:
    """Acknowledges what comes, until it has so many different ones, or nothing comes any more."""
    while len(got) < most:
        try:
            message = member.receive(LATE_S)
        except Silence:
            return
        got.add(message.payload)
        member.send(acknowledge(PUBACK, message.packet_id))


def test_a_group_whose_members_go_one_by_one_does_not_count_as_one_that_reads(servers: Servers) -> None:
    """What they held goes back to the queue: nobody has taken it, and its publisher waits no longer for
    that."""
    server = servers("none", 1, queued_messages_max=200, backpressure_s=2)
    members = [connected(server, receive_max=1) for _ in range(16)]
    for member in members:
        member.subscribe(FILTER, 1)
    publisher = connected(server)
    publisher.send(*(publish("t", b"%d" % number, 1, number + 1) for number in range(1000)))
    server.wait_for("publishers_paused")
    for member in members[:-1]:  # more often than it would have to read to be waited for
        member.drop()
        time.sleep(0.25)
    assert server.count("dropped_queue_full") > 0


@pytest.mark.parametrize("applied", [False, True], ids=["not written", "written all the same"])
def test_what_a_member_gets_of_the_queue_while_the_store_fails_is_not_lost(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """It goes from one queue into another, and is no new message that could be undone."""
    monkeypatch.setattr(keeper, "RETRY_S", 0.005)
    server = servers("memory", 1)
    members = []
    for _ in range(2):
        member = connected(server, **kept(5))
        member.subscribe(FILTER, 2)
        member.disconnect()
        members.append(member.client_id)
    publisher = connected(server)
    for number in range(5):
        publisher.publish("t", b"%d" % number, 2)
    full = server.back(members[0], receive_max=1)  # all are read from the store for it, and it takes one
    assert full.expect(PUBLISH).payload == b"0"
    server.store.applied = applied
    server.store.failure = StoreError("the store cannot be written: Input/output error")
    other = server.back(members[1])
    wait_until(lambda: server.store.failed > 2, "failures")
    server.store.failure = None
    for number in range(1, 5):
        other.expect_message("t", b"%d" % number, 2)
