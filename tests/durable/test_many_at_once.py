"""100,000 of what may be due in one moment: it all happens, over turns that others do not notice. What bounds
a turn shows in the build that counts steps (`make assert`), which ends where one takes too many.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from conformance.kit import Client, connected, kept
from conformance.packets import PING, PUBACK, PUBLISH, PUBREC, Will, publish
from waiting import WAIT_S, wait_until

from tidemq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from durable.conftest import Servers
    from durable.server import Server

    from tidemq.store import Write

COUNT = 100_000
PIECE = 1000
FIELDS = ">QIqqIqI"  # of a session's row, see docs/store.md
DUE_S = 3  # after the restart has begun


def publish_all(publisher: Client, count: int) -> None:
    """So many messages of a 3.1.1 client at QoS 1, all acknowledged when this returns."""
    packets = b"".join(publish("t", b"%d" % n, 1, n + 1, 4) for n in range(PIECE))
    publisher.socket.settimeout(WAIT_S)
    for _ in range(count // PIECE):
        publisher.send(packets)
        answered = 0
        while answered < 4 * PIECE:
            answered += len(publisher.socket.recv(1 << 16))


def test_sessions_that_expire_and_wills_that_are_due(servers: Servers) -> None:
    server = servers("memory")
    client = connected(server, will=Will("will", b"gone", 1, properties=[("will_delay", 900)]), **kept(5))
    client.drop()
    wait_until(lambda: any(b"gone" in row for row in server.rows("session").values()), "the will is stored")
    (row,) = server.rows("session").values()
    fields, will = struct.unpack_from(FIELDS, row), row[struct.calcsize(FIELDS) :]
    due_ms = int((time.time() + DUE_S) * 1000)
    copies = [
        ("session", b"c%d" % n, struct.pack(FIELDS, 1_000_000 + n, 900, due_ms, due_ms, *fields[4:]) + will)
        for n in range(COUNT)
    ]
    server.store.write(copies, sync=False)
    server = servers.restart(server, crash=True)
    wait_until(lambda: server.count("sessions_ended") == COUNT, "all sessions have ended")
    assert server.count("messages_unrouted") == COUNT, "wills were lost"
    wait_until(lambda: len(server.rows("session")) == 1, "they have left the store")


def make_subscribers(servers: Servers, **settings: int) -> Server:
    """A server, on two reactors, with so many sessions whose clients are away and subscribe to `t`."""
    server = servers("memory", 2, **settings)
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    client.disconnect()
    (session,) = server.rows("session").values()
    (subscription,) = server.rows("subscription").values()
    copies = []
    for n in range(COUNT):
        name = b"c%d" % n
        row = struct.pack(">Q", 1_000_000 + n) + session[8:]
        copies.append(("session", name, row))
        copies.append(("subscription", struct.pack(">H", len(name)) + name + b"t", subscription))
    server.store.write(copies, sync=False)
    return servers.restart(server, crash=True)


def test_messages_for_as_many_subscribers(servers: Servers) -> None:
    """A few fill a turn; those that come with them, or are in the mail, wait for the next ones."""
    server = make_subscribers(servers)
    publisher = connected(server)
    publisher.send(*(publish("t", b"%d" % n) for n in range(60)), PING)
    publisher.expect_bytes(b"\xd0\x00")
    wait_until(lambda: server.count("dropped_offline_qos_0") == 60 * (COUNT + 1), "all came")
    publisher.publish("t", b"1", 1)
    publisher.publish("t", b"2", 2)
    assert len(server.rows("queue")) == 2 * (COUNT + 1)
    client = server.back("c5")
    client.expect_message("t", b"1", 1)
    client.expect_message("t", b"2", 2)


def test_a_message_for_as_many_subscribers_that_cannot_be_stored(servers: Servers) -> None:
    server = make_subscribers(servers)
    publisher = connected(server)
    server.store.failure = StoreError("the store cannot be written")
    publisher.send(publish("t", b"1", 1, 1))
    publisher.expect(PUBACK, packet_id=1, reason=0x83)
    wait_until(lambda: server.count("dropped_store_failed") == COUNT + 1, "all is undone")
    server.store.failure = None
    wait_until(lambda: not server.keeper.failure, "the store works again")
    publisher.publish("t", b"2", 1)
    client = server.back("c5")
    client.expect_message("t", b"2", 1)


def test_as_many_messages_that_cannot_be_stored(servers: Servers) -> None:
    """What one publisher sent is undone in a time that is not the square of their number."""
    count = 60_000  # a publisher has no more packet identifiers than 65,535
    server = servers("memory", receive_max=65_535)
    absent = connected(server, **kept(5))
    absent.subscribe("t", 2)
    absent.disconnect()
    publisher = connected(server)
    server.store.hold()
    for first in range(1, count, PIECE):
        publisher.send(*(publish("t", b"x", 2, n) for n in range(first, first + PIECE)))
    wait_until(lambda: server.count("messages_received") >= count, "all came")
    server.store.failure = StoreError("the store cannot be written")
    server.store.let_go()
    for number in range(1, count + 1):
        publisher.expect(PUBREC, packet_id=number, reason=0x83)
    server.store.failure = None
    wait_until(lambda: not server.keeper.failure, "the store works again")
    assert server.count("dropped_store_failed") == count


def test_what_came_while_the_store_was_slow_is_stored_in_pieces(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next batch would take as much longer, and what comes meanwhile be the one after it."""
    count, piece, publishers = 50_000, 32_768, 3
    server = servers("memory", receive_max=65_535)
    for index in range(publishers):
        absent = connected(server, client_id=f"absent{index}", **kept(5))
        absent.subscribe(f"t/{index}", 1)
        absent.disconnect()
    server.store.hold()
    clients = [connected(server) for _ in range(publishers)]
    for first in range(1, count, PIECE):
        for index, client in enumerate(clients):
            client.send(*(publish(f"t/{index}", b"%d" % n, 1, n) for n in range(first, first + PIECE)))
    wait_until(lambda: server.count("messages_received") >= publishers * count, "all came")
    sizes: list[int] = []
    write = server.store.inner.write

    def note(batch: Sequence[Write], *, sync: bool) -> None:
        sizes.append(sum(family == "queue" for family, *_ in batch))
        write(batch, sync=sync)

    monkeypatch.setattr(server.store.inner, "write", note)
    server.store.let_go()
    for client in clients:
        for number in range(1, count + 1):
            client.expect(PUBACK, packet_id=number, reason=0)
    assert max(sizes) < 2 * piece
    assert sum(sizes) == publishers * count == len(server.rows("queue"))


def payload_bytes_of_batches(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, how many bytes of payloads each batch has that the store takes."""
    sizes: list[int] = []
    write = server.store.inner.write

    def note(batch: Sequence[Write], *, sync: bool) -> None:
        sizes.append(sum(len(value or b"") for family, _, value in batch if family == "payload"))
        write(batch, sync=sync)

    monkeypatch.setattr(server.store.inner, "write", note)
    return sizes


def test_large_messages_that_came_while_the_store_was_slow_are_stored_in_pieces(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that several get: what a cluster sends of a batch at once is bounded."""
    count, size, piece = 80, 900_000, 16 << 20
    server = servers("memory", receive_max=65_535)
    for name in ("one", "other"):
        absent = connected(server, client_id=name, **kept(5))
        absent.subscribe("t", 1)
        absent.disconnect()
    client = connected(server)
    server.store.hold()
    client.send(publish("t", bytes(size), 1, 1))
    assert server.store.at_gate.wait(WAIT_S)
    sizes = payload_bytes_of_batches(server, monkeypatch)
    for number in range(2, count + 1):
        client.send(publish("t", bytes(size), 1, number))
    wait_until(lambda: server.count("messages_received") >= count, "all came")
    server.store.let_go()
    for number in range(1, count + 1):
        client.expect(PUBACK, packet_id=number, reason=0)
    assert max(sizes) < 2 * piece
    assert sum(sizes) >= count * size  # each once
    assert len(sizes) < 10, "a message for two counts once"


def test_large_messages_that_are_done_by_then_make_no_pieces(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is taken back counts no more."""
    count, size = 40, 900_000
    server = servers("memory", receive_max=65_535)
    there = connected(server, **kept(5))
    there.subscribe("t", 1)
    client = connected(server)
    server.store.hold()
    client.send(publish("t", bytes(size), 1, 1))
    assert server.store.at_gate.wait(WAIT_S)
    there.acknowledge(there.expect(PUBLISH))
    sizes = payload_bytes_of_batches(server, monkeypatch)
    for number in range(2, count + 1):
        client.send(publish("t", bytes(size), 1, number))
        there.acknowledge(there.expect(PUBLISH))
    there.ping()
    server.store.let_go()
    for number in range(1, count + 1):
        client.expect(PUBACK, packet_id=number, reason=0)
    assert sum(sizes[1:]) == 0
    assert len(sizes) < 4


def test_messages_that_a_session_holds_when_it_ends(servers: Servers) -> None:
    server = servers("none")
    absent = connected(server, **kept(5))
    absent.subscribe("t", 1)
    absent.disconnect()
    publisher = connected(server, 4)
    publish_all(publisher, COUNT)
    assert server.count("live_entries") == COUNT
    connected(server, client_id=absent.client_id, clean=True).ping()
    wait_until(lambda: server.count("live_messages") == 0, "they are let go of")
    assert server.count("dropped_session_ended") == COUNT
    assert server.count("live_entries") == 0


def test_messages_that_go_before_those_in_flight(servers: Servers) -> None:
    """The oldest that may be dropped is found at once, though all before it have been sent."""
    server = servers(
        "none", queue_full="drop_oldest", inflight_max=20_000, backpressure_s=0, queued_messages_max=30_000
    )
    receiver = connected(server, 4, **kept(4))
    receiver.subscribe("t", 1)
    publisher = connected(server, 4)
    publish_all(publisher, 40_000)
    receiver.drop()
    again = server.back(receiver.client_id, 4)  # all that was sent waits again, and is not dropped
    publish_all(publisher, 10_000)
    assert server.count("dropped_queue_full") == 20_000
    again.drop()
