"""Replay at QoS 1: a session goes on where its client has acknowledged, whatever comes between."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from client.servers import Server
from conformance.kit import Client, kept, unique
from conformance.packets import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBLISH,
    SUBACK,
    Packet,
    acknowledge,
    connect,
    publish,
    subscribe,
)
from waiting import wait_until

SETTINGS = """\
[[streams]]
name = "all"
filters = ["t/#"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests, each of which has topics of its own."""
    server = Server("tidemq", tmp_path_factory.mktemp("replays"), settings=SETTINGS, store="rocksdb").start()
    yield server
    server.kill()


class Topics:
    """What one test publishes and replays, in a stream that others use, too."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = unique("t/")
        self.filter = f"$stream/all/first/{self.name}/#"
        self.count = 0

    def fill(self, count: int) -> None:
        """All of these are in the stream when it returns."""
        client = Client(self.server.port)
        client.connect()
        numbers = range(self.count, self.count + count)
        self.count += count
        client.send(*(publish(f"{self.name}/x", b"%d" % each, 1, each % 9_999 + 1) for each in numbers))
        for _ in numbers:
            client.expect(PUBACK)
        client.disconnect()


@pytest.fixture
def topics(server: Server) -> Topics:
    return Topics(server)


def reader(server: Server, client_id: str, version: int = 5, **settings: Any) -> Client:
    """With a session that is kept."""
    client = Client(server.port, version)
    client.connect(client_id, **(kept(version) | settings))
    return client


def messages(client: Client, count: int) -> list[Packet]:
    """So many, none of which is acknowledged."""
    return [client.expect(PUBLISH, qos=1) for _ in range(count)]


def numbers(packets: Sequence[Packet]) -> list[int]:
    return [int(each.payload) for each in packets]


def acknowledge_all(client: Client, packets: Sequence[Packet]) -> None:
    """Returns when the store has it: with a message to be stored that came behind."""
    packet_id = client.next_id()
    mark = publish("mark", b"", 1, packet_id, client.version, retain=True)
    client.send(*(acknowledge(PUBACK, each.packet_id) for each in packets), mark)
    client.expect(PUBACK, packet_id=packet_id)


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_goes_on_after_a_reconnection(server: Server, topics: Topics, version: int) -> None:
    topics.fill(10)
    name = unique("reader")
    client = reader(server, name, version)
    client.replay(topics.filter)
    came = messages(client, 10)
    assert numbers(came) == list(range(10))
    assert not any(each.dup for each in came)
    client.send(*(acknowledge(PUBACK, each.packet_id) for each in came[:4]))
    client.ping()
    client.drop()
    topics.fill(2)
    client = reader(server, name, version)
    again = messages(client, 8)
    assert numbers(again) == list(range(4, 12))
    assert [each.dup for each in again] == [True] * 6 + [False] * 2
    # what was sent keeps its packet identifier [MQTT-4.4.0-1]
    assert [each.packet_id for each in again[:6]] == [each.packet_id for each in came[4:]]
    client.expect_nothing()


def test_and_after_the_broker_was_killed(server: Server, topics: Topics) -> None:
    topics.fill(10)
    name = unique("reader")
    client = reader(server, name)
    client.replay(topics.filter, subscription_id=7)
    acknowledge_all(client, messages(client, 10)[:4])
    server.kill()
    server.start()
    client = reader(server, name)
    again = messages(client, 6)
    assert numbers(again) == list(range(4, 10))
    assert all(each.dup for each in again)
    assert all(each.get("subscription_id") == 7 for each in again)
    acknowledge_all(client, again)
    client.disconnect()
    server.kill()
    server.start()
    topics.fill(1)
    client = reader(server, name)
    assert numbers(messages(client, 1)) == [10]
    client.expect_nothing()


def test_a_client_that_subscribes_again_goes_on_and_one_that_unsubscribed_begins_anew(
    server: Server, topics: Topics
) -> None:
    topics.fill(3)
    name = unique("reader")
    client = reader(server, name)
    client.replay(topics.filter)
    acknowledge_all(client, messages(client, 3))
    client.drop()
    client = reader(server, name)
    client.replay(topics.filter)
    client.expect_nothing()
    topics.fill(1)
    assert numbers(messages(client, 1)) == [3]
    assert client.unsubscribe(topics.filter).reasons == [0]
    client.drop()
    topics.fill(1)
    client = reader(server, name)
    [sent] = messages(client, 1)  # what was sent before UNSUBSCRIBE is completed [MQTT-3.10.4-3]
    assert (sent.dup, numbers([sent])) == (True, [3])
    client.expect_nothing()
    client.replay(topics.filter)
    assert numbers(messages(client, 5)) == list(range(5))


def test_a_client_may_subscribe_in_one_piece_with_connect(server: Server, topics: Topics) -> None:
    """The broker then asks about the replay that goes on and about the one that is asked for at once."""
    topics.fill(1)
    name = unique("reader")
    reader(server, name).replay(topics.filter)
    for _ in range(20):
        client = Client(server.port, 5)
        client.send(connect(name, 5, **kept(5)), subscribe(1, (topics.filter, 1)))
        packets = [client.receive() for _ in range(3)]
        assert sorted(packet.kind for packet in packets) == sorted([CONNACK, PUBLISH, SUBACK])
        (suback,) = (packet for packet in packets if packet.kind == SUBACK)
        assert suback.reasons == [1], str(suback)
        client.drop()


def test_no_more_is_under_way_than_receive_maximum(server: Server, topics: Topics) -> None:
    topics.fill(400)
    client = reader(server, unique("reader"), receive_max=5)
    client.replay(topics.filter)
    found: list[Packet] = []
    while len(found) < 400:
        came = messages(client, 5)
        if len(found) < 20:
            client.expect_nothing()
        found += came
        client.send(*(acknowledge(PUBACK, each.packet_id) for each in came))
    assert numbers(found) == list(range(400))
    assert not any(each.dup for each in found)


def test_a_session_that_is_taken_over_goes_on(server: Server, topics: Topics) -> None:
    topics.fill(200)
    name = unique("reader")
    first = reader(server, name, receive_max=10)
    first.replay(topics.filter)
    came = messages(first, 10)
    first.send(*(acknowledge(PUBACK, each.packet_id) for each in came[:3]))
    found = numbers(came[:3])
    second = reader(server, name)
    while (packet := first.receive()).kind == PUBLISH:
        pass  # what the acknowledgements let come
    assert (packet.kind, packet.reason) == (DISCONNECT, 0x8E)
    while len(found) < 200:
        packet = second.expect(PUBLISH, qos=1)
        second.acknowledge(packet)
        if int(packet.payload) not in found:
            found.append(int(packet.payload))
    assert found == list(range(200))
    second.expect_nothing()


def test_it_ends_with_its_session(server: Server, topics: Topics) -> None:
    topics.fill(2)
    name = unique("reader")
    client = reader(server, name)
    client.replay(topics.filter)
    messages(client, 2)
    client.drop()
    client = Client(server.port)
    assert not client.connect(name, clean=True, session_expiry=0).session_present
    client.expect_nothing()
    client.replay(topics.filter)
    assert numbers(messages(client, 2)) == [0, 1]
    client.drop()
    client = reader(server, name)
    client.expect_nothing()


def test_it_ends_when_its_session_has_expired(server: Server, topics: Topics) -> None:
    """Nothing of it is left, also after a restart: who subscribes again begins at the beginning."""
    topics.fill(2)
    name = unique("reader")
    client = reader(server, name, session_expiry=1)
    client.replay(topics.filter)
    acknowledge_all(client, messages(client, 2)[:1])

    def gone() -> bool:
        nonlocal client
        client.drop()
        time.sleep(1.5)  # it lives on with each connection
        client = Client(server.port)
        return not client.connect(name, **(kept(5) | {"session_expiry": 1})).session_present

    wait_until(gone, "the session has expired")
    client.expect_nothing()
    server.kill()
    server.start()
    client = reader(server, name)
    client.expect_nothing()
    client.replay(topics.filter)
    assert numbers(messages(client, 2)) == [0, 1]


def test_acknowledgements_out_of_order_leave_nothing_out(server: Server, topics: Topics) -> None:
    topics.fill(4)
    name = unique("reader")
    client = reader(server, name)
    client.replay(topics.filter)
    came = messages(client, 4)
    acknowledge_all(client, (came[1], came[3]))
    client.drop()
    client = reader(server, name)
    again = messages(client, 2)
    assert numbers(again) == [0, 2]
    acknowledge_all(client, again[:1])
    server.kill()
    server.start()
    client = reader(server, name)
    # how far it goes without a gap is what survives a crash
    assert numbers(messages(client, 2)) == [2, 3]
    client.expect_nothing()


def test_other_messages_of_the_session_come_beside_it(server: Server, topics: Topics) -> None:
    name = unique("reader")
    client = reader(server, name)
    client.replay(topics.filter)
    client.subscribe(f"{topics.name}/#", 1)
    topics.fill(50)
    came = messages(client, 100)
    live = [each for each in came if each.topic.startswith("t/")]
    replayed = [each for each in came if each.topic.startswith("$stream/")]
    assert numbers(live) == numbers(replayed) == list(range(50))
    client.drop()
    client = reader(server, name)
    assert [(each.topic, each.payload) for each in messages(client, 100)] == [
        (each.topic, each.payload) for each in came
    ]


def test_at_qos_0_a_replay_ends_and_the_session_has_none(server: Server, topics: Topics) -> None:
    topics.fill(1)
    name = unique("reader")
    client = reader(server, name)
    client.replay(topics.filter)
    acknowledge_all(client, messages(client, 1))
    client.replay(topics.filter, 0)
    client.expect_message(f"{topics.filter[:-2]}/x", b"0", 0)
    client.drop()
    topics.fill(1)
    client = reader(server, name)
    client.expect_nothing()


def test_qos_2_is_granted_1(server: Server, topics: Topics) -> None:
    client = reader(server, unique("reader"))
    client.send(subscribe(1, (topics.filter, 2)))
    assert client.expect(SUBACK).reasons == [1]
