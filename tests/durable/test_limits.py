"""What a full queue, or a full store, does not take is refused or dropped by the policy, told to the
publisher where its protocol can say it, and counted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, acknowledge, publish
from waiting import wait_until

from tidemq.broker.durability import keeper

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server

POLICIES = ("drop_newest", "drop_oldest", "reject")
LIMIT = 5
SENT = 8


def leave_session(server: Server, topic: str, qos: int = 2) -> str:
    """A client that subscribes and goes; its session stays."""
    client = connected(server, **kept(5))
    client.subscribe(topic, qos)
    client.disconnect()
    return client.client_id


def offer(client: Client, payload: bytes, qos: int, packet_id: int) -> int:
    """Publishes, and finishes the handshake of what is accepted; the reason code that comes back."""
    client.send(publish("t", payload, qos, packet_id, client.version))
    packet = client.receive()
    assert packet.kind == (PUBACK if qos == 1 else PUBREC)
    assert packet.packet_id == packet_id
    if qos == 2 and packet.reason < 0x80:
        client.send(acknowledge(PUBREL, packet_id))
        client.expect(PUBCOMP, packet_id=packet_id, reason=0)
    return packet.reason


def expected(policy: str) -> list[int]:
    """Which of the messages a queue holds in the end."""
    return list(range(SENT - LIMIT, SENT) if policy == "drop_oldest" else range(LIMIT))


def receive_numbers(client: Client, count: int) -> list[int]:
    """The payloads of the next messages, which are acknowledged."""
    numbers = []
    for _ in range(count):
        message = client.expect(PUBLISH)
        client.acknowledge(message)
        numbers.append(int(message.payload.split()[0]))
    client.ping()  # nothing else has come
    return numbers


@pytest.fixture(params=["memory", "none"])
def kind(request: pytest.FixtureRequest) -> str:
    """Where queues are kept; `none`: there is no store."""
    value: str = request.param
    return value


@pytest.mark.parametrize("reactor", [0, 1], ids=["together", "apart"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_count(servers: Servers, kind: str, policy: str, qos: int, reactor: int) -> None:
    """`apart`: publisher and queue are on different reactors."""
    server = servers(kind, 2, queue_full=policy, queued_messages_max=LIMIT)
    absent = server.connected_on(0, **kept(5))
    absent.subscribe("t", 2)
    absent.disconnect()
    publisher = server.connected_on(reactor)
    reasons = [offer(publisher, b"%d" % number, qos, number + 1) for number in range(SENT)]
    told = 0 if policy == "drop_oldest" else 0x97
    assert reasons == [0] * LIMIT + [told] * (SENT - LIMIT)
    assert server.wait_for("dropped_queue_full", SENT - LIMIT) == SENT - LIMIT
    client = server.back(absent.client_id)
    assert receive_numbers(client, LIMIT) == expected(policy)
    assert offer(publisher, b"100", qos, 100) == 0
    assert receive_numbers(client, 1) == [100]
    server.wait_until_empty()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_publisher_of_3_1_1(servers: Servers, kind: str, policy: str, qos: int) -> None:
    """Is acknowledged what was dropped, unless the policy is to reject: then its connection ends."""
    server = servers(kind, 1, queue_full=policy, queued_messages_max=LIMIT)
    absent = leave_session(server, "t")
    publisher = connected(server, 4, **kept(4))
    for number in range(LIMIT):
        publisher.publish("t", b"%d" % number, qos)
    if policy == "reject":
        publisher.send(publish("t", b"refused", qos, 100, 4))
        publisher.expect_closed()
    else:
        for number in range(LIMIT, SENT):
            publisher.publish("t", b"%d" % number, qos)
    client = server.back(absent)
    assert receive_numbers(client, LIMIT) == expected(policy)
    if policy == "reject":  # its client sends it again
        publisher = server.back(publisher.client_id, 4)
        publisher.send(publish("t", b"7", qos, 100, 4, dup=True))
        publisher.expect(PUBACK if qos == 1 else PUBREC, packet_id=100)
        assert receive_numbers(client, 1) == [7]


@pytest.mark.parametrize("policy", POLICIES)
def test_bytes(servers: Servers, kind: str, policy: str) -> None:
    server = servers(kind, 1, queue_full=policy, queued_bytes_max=100_000)
    absent = leave_session(server, "t")
    publisher = connected(server)
    reasons = [offer(publisher, b"%d " % number + bytes(10_000), 1, number + 1) for number in range(20)]
    dropped = server.count("dropped_queue_full")
    assert 20 - 11 <= dropped <= 20 - 9
    assert reasons.count(0x97) == (0 if policy == "drop_oldest" else dropped)
    numbers = receive_numbers(server.back(absent), 20 - dropped)
    assert numbers == list(range(dropped, 20) if policy == "drop_oldest" else range(20 - dropped))
    server.wait_until_empty()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_in_flight_counts_and_is_never_dropped(servers: Servers, kind: str, policy: str) -> None:
    """For a client that is there, takes two messages at a time, and is not waited for."""
    server = servers(
        kind,
        1,
        queue_full=policy,
        queued_messages_max=LIMIT,
        queue_window_messages=2,
        backpressure_s=0,
    )
    client = connected(server, receive_max=2, **kept(5))
    client.subscribe("t", 1)
    publisher = connected(server)
    for number in range(SENT):
        offer(publisher, b"%d" % number, 1, number + 1)
    numbers = receive_numbers(client, LIMIT)
    assert numbers == ([0, 1, 5, 6, 7] if policy == "drop_oldest" else [0, 1, 2, 3, 4])
    assert server.count("dropped_queue_full") == SENT - LIMIT
    server.wait_until_empty()


@pytest.mark.parametrize("policy", POLICIES)
def test_only_the_full_queue_refuses(servers: Servers, kind: str, policy: str) -> None:
    """A client that keeps up gets everything at QoS 1, whatever becomes of the absent one."""
    server = servers(kind, 2, queue_full=policy, queued_messages_max=LIMIT)
    absent = leave_session(server, "t", 1)
    there = connected(server, **kept(5))
    there.subscribe("t", 1)
    publisher = connected(server)
    for number in range(SENT):
        offer(publisher, b"%d" % number, 1, number + 1)
        there.expect_message("t", b"%d" % number, 1)
    assert receive_numbers(server.back(absent), LIMIT) == expected(policy)
    server.wait_until_empty()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_limits_know_what_was_queued_before_the_restart(servers: Servers, policy: str, crash: bool) -> None:
    server = servers("rocksdb", queue_full=policy, queued_messages_max=LIMIT)
    absent = leave_session(server, "t")
    publisher = connected(server)
    for number in range(LIMIT - 1):
        offer(publisher, b"%d" % number, 1, number + 1)
    server = servers.restart(server, crash)
    publisher = connected(server)
    reasons = [offer(publisher, b"%d" % number, 2, number + 1) for number in range(LIMIT - 1, SENT)]
    assert reasons == [0, *[0 if policy == "drop_oldest" else 0x97] * (SENT - LIMIT)]
    assert receive_numbers(server.back(absent), LIMIT) == expected(policy)
    server.wait_until_empty()


def test_the_oldest_go_while_a_window_is_read(servers: Servers) -> None:
    """Far more than the queue holds, for a client that takes them one by one: always the next ones it has not
    lost, in order, and the last of all in the end."""
    server = servers(
        "memory",
        2,
        queue_full="drop_oldest",
        queued_messages_max=20,
        queue_window_messages=4,
        backpressure_s=0,
    )
    client = connected(server, receive_max=1, **kept(5))
    client.subscribe("t", 1)
    publisher = connected(server)
    numbers: list[int] = []
    for number in range(300):
        assert offer(publisher, b"%d" % number, 1, number + 1) == 0
        if number % 7 == 0:
            message = client.expect(PUBLISH)
            client.acknowledge(message)
            numbers.append(int(message.payload))
    while numbers[-1] != 299:
        message = client.expect(PUBLISH)
        client.acknowledge(message)
        numbers.append(int(message.payload))
    client.expect_nothing()
    assert numbers == sorted(set(numbers))
    assert numbers[-19:] == list(range(281, 300))
    assert server.count("dropped_queue_full") == 300 - len(numbers)
    server.wait_until_empty()


def test_who_comes_back_to_a_full_queue_gets_more_than_one_window(servers: Servers) -> None:
    """Though a message is dropped for each that comes meanwhile: the window that is being read is not thrown
    away for that."""
    server = servers(
        "memory",
        2,
        queue_full="drop_oldest",
        queued_messages_max=2000,
        queue_window_messages=100,
        backpressure_s=0,
    )
    absent = leave_session(server, "t", 1)
    publisher = connected(server)
    done = threading.Event()

    def publish_on() -> None:
        number = 0
        while not done.is_set():
            publisher.send(*(publish("t", b"%d" % (number + n), 1, n + 1) for n in range(100)))
            for _ in range(100):
                assert publisher.expect(PUBACK).reason == 0
            number += 100

    publishing = threading.Thread(target=publish_on)
    publishing.start()
    try:
        server.wait_for("dropped_queue_full", 1000)
        client = server.back(absent)
        numbers = []
        for _ in range(3000):
            message = client.expect(PUBLISH)
            client.acknowledge(message)
            numbers.append(int(message.payload))
    finally:
        done.set()
        publishing.join()
    assert numbers == sorted(set(numbers))


def test_a_full_store_takes_nothing_that_it_would_have_to_keep(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SWEEP_S", 0.01)
    server = servers("memory", 2, store_bytes_max=1000)
    server.store.size = 10
    absent = leave_session(server, "t")
    there = connected(server)
    there.subscribe("other", 1)
    publisher, old = connected(server), connected(server, 4)
    assert offer(publisher, b"1", 1, 1) == 0
    server.store.size = 1001
    wait_until(lambda: offer(publisher, b"2", 1, 2) == 0x97, "the store is full")
    assert offer(publisher, b"not kept", 2, 3) == 0x97
    old.send(publish("t", b"not kept", 1, 1, 4))
    old.expect_closed()
    publisher.publish("t", b"QoS 0", 0)
    publisher.publish("other", b"goes on", 1)
    there.expect_message("other", b"goes on", 1)
    before = len(server.rows("queue"))
    client = server.back(absent)
    assert receive_numbers(client, before) == [1] + [2] * (before - 1)
    server.store.size = 999
    wait_until(lambda: offer(publisher, b"3", 1, 4) == 0, "the store has room again")
    assert receive_numbers(client, 1) == [3]
