"""100,000 of what may be due in one moment: it all happens, over turns that others do not notice. What bounds
a turn shows in the build that counts steps (`make steps`), which ends where one takes too many.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from conformance.kit import Client, connected, kept
from conformance.packets import Will, publish
from durable.server import wait_until

if TYPE_CHECKING:
    from durable.conftest import Servers

COUNT = 100_000
PIECE = 1000
WAIT_S = 60
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
    wait_until(lambda: server.count("sessions_ended") == COUNT, "all sessions have ended", WAIT_S)
    assert server.count("messages_unrouted") == COUNT, "wills were lost"
    wait_until(lambda: len(server.rows("session")) == 1, "they have left the store", WAIT_S)


def test_messages_that_a_session_holds_when_it_ends(servers: Servers) -> None:
    server = servers("none")
    absent = connected(server, **kept(5))
    absent.subscribe("t", 1)
    absent.disconnect()
    publisher = connected(server, 4)
    publish_all(publisher, COUNT)
    assert server.count("live_entries") == COUNT
    connected(server, client_id=absent.client_id, clean=True).ping()
    wait_until(lambda: server.count("live_messages") == 0, "they are let go of", WAIT_S)
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
