"""A receiver that is there and reads loses nothing because its queue is full: its publishers wait, on
whatever reactor, whether its queue is in memory or in the store, its own or a shared group's.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, Silence, connected, kept
from conformance.packets import PUBACK, PUBLISH, acknowledge, publish
from waiting import WAIT_S, wait_until

from tidemq.engine import Dropped

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server

LIMITS = {"queued_messages_max": 500, "inflight_max": 50}
PUBLISHERS = 3
COUNT = 5000  # of each
PIECE = 1000


def flood(client: Client, number: int, refused: list[int]) -> None:
    """Publishes at QoS 1 as fast as the broker takes it, a thousand messages at a time."""
    client.socket.settimeout(WAIT_S)
    for start in range(0, COUNT, PIECE):
        client.send(*(publish("t", b"%d %d" % (number, start + n), 1, n + 1) for n in range(PIECE)))
        for _ in range(PIECE):
            packet = client.receive(60)
            assert packet.kind == PUBACK
            if packet.reason:
                refused.append(packet.reason)


def start_flood(server: Server, reactor: int) -> tuple[list[threading.Thread], list[int]]:
    """Publishers of one reactor at work; the reasons that they were refused with."""
    refused: list[int] = []
    threads = []
    for number in range(PUBLISHERS):
        client = server.connected_on(reactor)
        threads.append(threading.Thread(target=flood, args=(client, number, refused)))
    for thread in threads:
        thread.start()
    return threads, refused


def read_slowly(client: Client, received: list[tuple[int, int]], most: int) -> None:
    """Takes messages at less than the pace at which they are published, until there are so many, or none."""
    while len(received) < most:
        if len(received) % 100 == 0:
            time.sleep(0.003)
        message = client.expect(PUBLISH)
        client.send(acknowledge(PUBACK, message.packet_id))
        number, count = message.payload.split()
        received.append((int(number), int(count)))


@pytest.mark.parametrize("kind", ["memory", "none"])
@pytest.mark.parametrize("stored", [False, True], ids=["fleeting", "stored"])
@pytest.mark.parametrize(("reactors", "place"), [(1, 0), (2, 0), (2, 1)])
def test_who_reads_loses_nothing(
    servers: Servers, kind: str, stored: bool, reactors: int, place: int
) -> None:
    server = servers(kind, reactors, **LIMITS)
    settings = kept(5) if stored else {}
    receiver = server.connected_on(place, **settings)
    receiver.subscribe("t", 1)
    threads, refused = start_flood(server, 0)
    received: list[tuple[int, int]] = []
    read_slowly(receiver, received, PUBLISHERS * COUNT)
    for thread in threads:
        thread.join()
    for number in range(PUBLISHERS):
        assert [count for of, count in received if of == number] == list(range(COUNT))
    assert not refused
    assert server.count("dropped_queue_full") == 0
    assert server.count("publishers_paused") > 0


def test_who_reads_steadily_is_waited_for_as_long_as_it_takes(servers: Servers) -> None:
    """For twice `backpressure_s` there is always somebody who waits."""
    server = servers("none", 1, queued_messages_max=200, inflight_max=50, backpressure_s=2)
    receiver, publisher = connected(server), connected(server)
    receiver.subscribe("t", 1)
    publisher.send(*(publish("t", b"%d" % n, 1, n + 1) for n in range(2000)))
    for number in range(2000):
        if number % 10 == 0:
            time.sleep(0.02)
        receiver.expect_message("t", b"%d" % number, 1)
    assert server.count("dropped_queue_full") == 0


@pytest.mark.parametrize("kind", ["memory", "none"])
@pytest.mark.parametrize(("reactors", "place"), [(1, 0), (2, 1)])
def test_a_group_that_reads_loses_nothing(servers: Servers, kind: str, reactors: int, place: int) -> None:
    server = servers(kind, reactors, **LIMITS)
    members = [server.connected_on(place, **kept(5)) for _ in range(2)]
    for member in members:
        member.subscribe("$share/g/t", 1)
    threads, refused = start_flood(server, 0)
    lists: list[list[tuple[int, int]]] = [[], []]
    done = threading.Event()

    def read(member: Client, received: list[tuple[int, int]]) -> None:
        while not done.is_set():
            try:
                message = member.receive(0.05)
            except Silence:
                continue
            member.send(acknowledge(PUBACK, message.packet_id))
            number, count = message.payload.split()
            received.append((int(number), int(count)))

    readers = [threading.Thread(target=read, args=pair) for pair in zip(members, lists, strict=True)]
    for reader in readers:
        reader.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: sum(map(len, lists)) == PUBLISHERS * COUNT, "all are there")
    done.set()
    for reader in readers:
        reader.join()
    assert len({*lists[0], *lists[1]}) == PUBLISHERS * COUNT
    assert not refused
    assert server.count("dropped_queue_full") == 0


@pytest.mark.parametrize("kind", ["memory", "none"])
def test_who_is_there_and_does_not_read_is_named(servers: Servers, kind: str) -> None:
    """When patience has run out its queue fills up to its limit, and the events say whose messages went."""
    server = servers(kind, 1, **LIMITS, backpressure_s=0)
    stalled = connected(server, **kept(5))
    stalled.subscribe("t", 1)
    threads, refused = start_flood(server, 0)
    for thread in threads:
        thread.join()
    lost = PUBLISHERS * COUNT - LIMITS["queued_messages_max"]
    assert server.count("dropped_queue_full") == lost == len(refused)
    found: list[Dropped] = []

    def look() -> bool:
        found.extend(event for event in server.engine.events() if isinstance(event, Dropped))
        return bool(found)

    wait_until(look, "an event tells of it")
    assert (found[0].client_id, found[0].counter) == (stalled.client_id, "dropped_queue_full")
    assert 0 < found[0].messages <= lost
