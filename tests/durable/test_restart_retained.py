"""Retained messages are there after a restart as they were: what was last retained, and nothing that was
removed.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import QUIET_S, Client, Silence, connected, kept
from conformance.packets import PUBACK, PUBLISH, Packet, publish
from waiting import WAIT_S, wait_until

from tidemq.broker.durability import keeper
from tidemq.errors import StoreError

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server


def retained_messages(server: Server, topic_filter: str, count: int) -> dict[str, Packet]:
    """The messages that a new subscription gets, by topic."""
    client = connected(server)
    client.subscribe(topic_filter, 2)
    messages = []
    for _ in range(count):
        messages.append(client.expect(PUBLISH, retain=True))
        client.acknowledge(messages[-1])
    client.expect_nothing()
    return {message.topic: message for message in messages}


def test_with_qos_and_properties(servers: Servers, server: Server, crash: bool) -> None:
    publisher = connected(server)
    properties: dict[str, Any] = {
        "content_type": "text/plain",
        "user": [("a", "1"), ("a", "2")],
        "response_topic": "r",
    }
    for qos in (0, 1, 2):
        publisher.publish(f"t/{qos}", b"%d" % qos, qos, retain=True, **properties)
    connected(server, 4).publish("t/old", b"x" * 100_000, 1, retain=True)
    server.wait_for_rows("retained", 4)  # nothing acknowledges QoS 0
    server = servers.restart(server, crash)
    messages = retained_messages(server, "t/+", 4)
    for qos in (0, 1, 2):
        message = messages[f"t/{qos}"]
        assert (message.payload, message.qos) == (b"%d" % qos, qos)
        for name, value in properties.items():
            assert message.all(name) == (value if isinstance(value, list) else [value])
    assert messages["t/old"].payload == b"x" * 100_000
    assert messages["t/old"].properties == []


def test_the_last_of_each_topic(servers: Servers, server: Server, crash: bool) -> None:
    publisher = connected(server)
    for number in range(5):
        for topic in ("a/b", "a", "a//b", "/a"):
            publisher.publish(topic, b"%d" % number, 1, retain=True)
    publisher.publish("a//b", b"", 1, retain=True)
    publisher.publish("never/there", b"", 1, retain=True)
    publisher.publish("a", b"", 1, retain=True)
    publisher.publish("a", b"again", 1, retain=True)
    server = servers.restart(server, crash)
    messages = retained_messages(server, "#", 3)
    assert {topic: message.payload for topic, message in messages.items()} == {
        "a/b": b"4",
        "a": b"again",
        "/a": b"4",
    }


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_what_was_removed_after_a_restart_does_not_come_back(servers: Servers, crash: bool) -> None:
    server = servers("rocksdb")
    connected(server).publish("t/1", b"1", 1, retain=True)
    connected(server).publish("t/2", b"2", 1, retain=True)
    server = servers.restart(server, crash)
    connected(server).publish("t/1", b"", 1, retain=True)
    connected(server).publish("t/2", b"3", 1, retain=True)
    server = servers.restart(server, crash)
    assert {topic: each.payload for topic, each in retained_messages(server, "#", 1).items()} == {"t/2": b"3"}


def test_messages_of_the_broker_itself_are_not_kept(servers: Servers) -> None:
    server = servers("memory")
    server.engine.publish("$SYS/broker/uptime", b"1", retain=True)
    assert len(retained_messages(server, "$SYS/#", 1)) == 1
    connected(server).publish("t", b"1", 1, retain=True)
    assert list(server.rows("retained")) == [b"t"]
    server = servers.restart(server, crash=False)
    retained_messages(server, "$SYS/#", 0)


def test_publishers_on_two_reactors_agree_with_the_store(servers: Servers) -> None:
    """Whoever was last in memory is last in the store."""
    server = servers("rocksdb", 2)
    topics = [f"t/{number}" for number in range(20)]

    def publish_all(client: Client, name: bytes) -> None:
        for _ in range(10):
            client.send(*(publish(topic, name, 1, at + 1, retain=True) for at, topic in enumerate(topics)))
            for at in range(len(topics)):
                client.expect(PUBACK, packet_id=at + 1)

    clients = [server.connected_on(reactor) for reactor in (0, 1)]
    threads = [
        threading.Thread(target=publish_all, args=(client, b"%d" % number))
        for number, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = retained_messages(server, "#", 20)
    server = servers.restart(server, crash=True)
    after = retained_messages(server, "#", 20)
    assert {topic: each.payload for topic, each in after.items()} == {
        topic: each.payload for topic, each in before.items()
    }


@pytest.mark.parametrize("end", ["drop", "stop", "crash"])
@pytest.mark.parametrize("qos", [1, 2])
def test_retained_messages_of_which_most_are_not_queued_yet(servers: Servers, end: str, qos: int) -> None:
    """A session's subscription begins anew with those that had not all gone out, until they have."""
    server = servers("rocksdb", output_high_bytes=20_000)
    publisher = connected(server)
    topics = {f"t/{number}" for number in range(100)}
    for topic in topics:
        publisher.publish(topic, bytes(1000), 2, retain=True)
    client = connected(server, receive_max=5, **kept(5))
    client.subscribe("other/#", qos)
    client.subscribe("t/#", qos)
    for _ in range(5):
        client.expect(PUBLISH)
    client.drop()
    wait_until(lambda: len(server.rows("queue")) >= 5, "what was sent at QoS 1 is stored")
    assert len(server.rows("queue")) < 50
    if end != "drop":
        server = servers.restart(server, crash=end == "crash")
    client = server.back(client.client_id)
    got: list[str | None] = []
    with contextlib.suppress(Silence):
        while True:
            message = client.receive(WAIT_S if set(got) != topics else QUIET_S)
            assert (message.kind, message.retain, message.qos) == (PUBLISH, True, qos)
            got.append(message.topic)
            client.acknowledge(message)
    assert set(got) == topics
    assert len(got) < len(topics) + 50  # those that were queued before the end come twice
    server.wait_until_empty()
    assert [value[0] for value in server.rows("subscription").values()] == [qos, qos]
    server = servers.restart(server, crash=True)
    server.back(client.client_id).expect_nothing()


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_retained_messages_that_had_not_all_gone_out(servers: Servers, crash: bool) -> None:
    """What a kept session's subscription was still to get is in its queue, or came already."""
    server = servers("rocksdb", queue_window_messages=5)
    publisher = connected(server)
    for number in range(30):
        publisher.publish(f"t/{number}", b"%d" % number, 1, retain=True)
    client = connected(server, receive_max=3, **kept(5))
    client.subscribe("t/#", 1)
    for _ in range(3):
        client.expect(PUBLISH)
    server.wait_for_rows("queue", 30)
    client.drop()
    server = servers.restart(server, crash)
    client = server.back(client.client_id)
    topics = set()
    for _ in range(30):
        message = client.expect(PUBLISH)
        topics.add(message.topic)
        client.acknowledge(message)
    assert topics == {f"t/{number}" for number in range(30)}
    server.wait_until_empty()
    client.ping()  # nothing else has come


@pytest.mark.parametrize("applied", [False, True], ids=["not written", "written all the same"])
def test_one_that_was_refused_is_what_the_store_has(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """Whoever subscribes may see it though its publisher was refused, and sees the same after a crash."""
    monkeypatch.setattr(keeper, "RETRY_S", 0.005)
    server = servers("memory", 2)
    absent = connected(server, **kept(5))
    absent.subscribe("kept", 1)  # so that the message waits for the store
    absent.disconnect()
    publisher = connected(server)
    publisher.publish("kept", b"1", 1, retain=True)
    server.store.applied = applied
    server.store.failure = StoreError("the store cannot be written: Input/output error")
    publisher.send(publish("kept", b"2", 1, 11, retain=True))
    assert publisher.expect(PUBACK, packet_id=11).reason >= 0x80
    server.store.failure = None
    wait_until(lambda: not server.keeper.failure, "the store works again")
    publisher.publish("another", b"", 1, retain=True)  # what came before it is stored
    before = retained_messages(server, "kept", 1)["kept"].payload
    server = servers.restart(server, crash=True)
    assert retained_messages(server, "kept", 1)["kept"].payload == before
    server.back(absent.client_id).expect_message("kept", b"1", 1)
