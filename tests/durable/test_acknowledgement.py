"""An acknowledgement leaves only after the commit that holds what it is about; all else goes on meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, Silence, connected, kept
from conformance.packets import (
    CONNACK,
    PING,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    acknowledge,
    connect,
    publish,
    subscribe,
    unsubscribe,
)
from waiting import WAIT_S

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server


def leave_session(server: Server, topic: str, qos: int = 2) -> str:
    """A client that subscribes and goes; its session stays."""
    client = connected(server, **kept(5))
    client.subscribe(topic, qos)
    client.disconnect()
    return client.client_id


def expect_after_commit(server: Server, client: Client, packet: bytes, kind: int, packet_id: int) -> None:
    """The packet is handled, as the PINGRESP behind it shows, but answered when the store has written."""
    server.store.hold()
    client.send(packet, PING)
    client.expect(PINGRESP)
    assert server.store.at_gate.wait(WAIT_S)
    client.expect_nothing()
    server.store.let_go()
    client.expect(kind, packet_id=packet_id)


@pytest.fixture(params=[1, 2], ids=["1-reactor", "2-reactors"])
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """A server in whose store a test can hold up the writes."""
    return servers("memory", request.param)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("session", ["kept", "clean"])
def test_puback_and_pubrec(server: Server, version: int, session: str) -> None:
    absent = [leave_session(server, "t") for _ in range(3)]
    publisher = connected(server, version, **(kept(version) if session == "kept" else {}))
    expect_after_commit(server, publisher, publish("t", b"1", 1, 1, version), PUBACK, 1)
    expect_after_commit(server, publisher, publish("t", b"2", 2, 2, version), PUBREC, 2)
    for client_id in absent:
        client = server.back(client_id)
        client.expect_message("t", b"1", 1)
        client.expect_message("t", b"2", 2)


def test_puback_of_a_retained_message(server: Server) -> None:
    publisher = connected(server)
    expect_after_commit(server, publisher, publish("t", b"1", 1, 1, retain=True), PUBACK, 1)
    assert list(server.rows("retained")) == [b"t"]
    expect_after_commit(server, publisher, publish("t", b"", 1, 2, retain=True), PUBACK, 2)
    assert not server.rows("retained")


def test_suback_and_unsuback(server: Server) -> None:
    client = connected(server, **kept(5))
    expect_after_commit(server, client, subscribe(1, ("a", 1), ("b", 2)), SUBACK, 1)
    assert len(server.rows("subscription")) == 2
    expect_after_commit(server, client, unsubscribe(2, "a"), UNSUBACK, 2)
    assert len(server.rows("subscription")) == 1


def retained_messages(server: Server, count: int) -> None:
    """So many under `r/`."""
    client = connected(server)
    client.send(*(publish(f"r/{number}", b"x", 1, number + 1, retain=True) for number in range(count)))
    for _ in range(count):
        client.expect(PUBACK)


def test_what_waits_for_several_commits_comes_in_order(server: Server) -> None:
    client = connected(server, **kept(5))
    client.publish("settled", b"", 1, retain=True)  # what was recorded before is in the store
    server.store.hold()
    for number in range(1, 4):
        client.send(subscribe(number, (f"t/{number}", 1)), PING)
        client.expect(PINGRESP)
        assert server.store.at_gate.wait(WAIT_S)
    server.store.let_go()
    for number in range(1, 4):
        client.expect(SUBACK, packet_id=number)


def test_no_retained_messages_come_after_the_unsuback(server: Server) -> None:
    """[MQTT-3.10.4-2]"""
    retained_messages(server, 500)
    client = connected(server, **kept(5))
    client.send(subscribe(1, ("r/#", 1)), unsubscribe(2, "r/#"), PING)
    kinds = []
    while UNSUBACK not in kinds or PINGRESP not in kinds:
        kinds.append(client.receive().kind)
    assert SUBACK in kinds
    client.expect_nothing()


def test_subscribed_again_before_the_commit_it_gets_each_retained_message_once(server: Server) -> None:
    retained_messages(server, 100)
    client = connected(server, **kept(5))
    again = subscribe(3, ("r/#", 1))
    expect_after_commit(
        server, client, subscribe(1, ("r/#", 1)) + unsubscribe(2, "r/#") + again, SUBACK, packet_id=1
    )
    client.expect(UNSUBACK, packet_id=2)
    client.expect(SUBACK, packet_id=3)
    topics = set()
    for _ in range(100):
        message = client.expect(PUBLISH, retain=True)
        client.acknowledge(message)
        topics.add(message.topic)
    client.expect_nothing()
    assert len(topics) == 100


@pytest.mark.parametrize("session", ["kept", "clean"])
@pytest.mark.parametrize("handling", [1, 2])
def test_a_subscription_replaced_without_retained_messages_still_gets_those_of_the_first(
    server: Server, handling: int, session: str
) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]"""
    retained_messages(server, 100)
    client = connected(server, **(kept(5) if session == "kept" else {}))
    client.send(subscribe(1, ("r/#", 1)), subscribe(2, ("r/#", 1 | handling << 4)))
    topics = set()
    for _ in range(102):
        packet = client.receive()
        if packet.kind == PUBLISH:
            client.acknowledge(packet)
            topics.add(packet.topic)
    client.expect_nothing()
    assert len(topics) == 100


def test_retained_messages_come_after_the_suback(server: Server) -> None:
    connected(server).publish("t", b"retained", 1, retain=True)
    client = connected(server, **kept(5))
    expect_after_commit(server, client, subscribe(1, ("t", 1)), SUBACK, 1)
    client.expect_message("t", b"retained", 1, retain=True)


def test_pubcomp(server: Server) -> None:
    """Before it, the client must not use the packet identifier for another message."""
    leave_session(server, "t")
    publisher = connected(server, **kept(5))
    publisher.send(publish("t", b"1", 2, 5))
    publisher.expect(PUBREC, packet_id=5)
    expect_after_commit(server, publisher, acknowledge(PUBREL, 5), PUBCOMP, 5)
    assert not server.rows("received")


def test_pubrel(server: Server) -> None:
    """After it the client forgets the message: after a crash it must not get it again."""
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    connected(server).publish("t", b"1", 2)
    message = client.expect(PUBLISH, payload=b"1")
    expect_after_commit(server, client, acknowledge(PUBREC, message.packet_id), PUBREL, message.packet_id)
    client.send(acknowledge(PUBCOMP, message.packet_id))
    server.wait_until_empty()


def test_pubrec_sent_again_is_answered_when_the_first_is(server: Server) -> None:
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    connected(server).publish("t", b"1", 2)
    packet_id = client.expect(PUBLISH, payload=b"1").packet_id
    server.store.hold()
    client.send(acknowledge(PUBREC, packet_id))
    assert server.store.at_gate.wait(WAIT_S)
    client.send(acknowledge(PUBREC, packet_id))
    client.expect_nothing()
    server.store.let_go()
    client.expect(PUBREL, packet_id=packet_id)
    client.expect(PUBREL, packet_id=packet_id)


def test_connack_that_says_that_a_session_is_gone(server: Server) -> None:
    old = leave_session(server, "t")
    client = Client(server.port)
    server.store.hold()
    client.send(connect(old, clean=True), PING)
    assert server.store.at_gate.wait(WAIT_S)
    with pytest.raises(Silence):
        client.receive(0.05)
    server.store.let_go()
    client.expect(CONNACK, reason=0, session_present=False)
    client.expect(PINGRESP)
    assert not server.rows("subscription")


@pytest.mark.parametrize(
    ("packet", "kind"),
    [
        (unsubscribe(1, "unknown"), UNSUBACK),
        (subscribe(1, ("t" * 5000, 1)), SUBACK),
        (publish("t", b"1", 2, 1, dup=True), PUBREC),
    ],
    ids=["unsubscribe", "refused subscribe", "publish sent again"],
)
def test_what_has_nothing_to_store_is_answered_at_once(server: Server, packet: bytes, kind: int) -> None:
    """Also by an idle broker, on a session that is stored."""
    leave_session(server, "t")
    client = connected(server, **kept(5))
    client.send(publish("t", b"1", 2, 1))
    client.expect(PUBREC, packet_id=1)
    client.send(packet)
    client.expect(kind, packet_id=1)


def test_a_message_that_nobody_keeps_does_not_wait_for_the_store(server: Server) -> None:
    leave_session(server, "kept")
    there = connected(server)
    there.subscribe("t", 2)
    busy, free = connected(server), connected(server)
    server.store.hold()
    busy.send(publish("kept", b"1", 1, 1))
    assert server.store.at_gate.wait(WAIT_S)
    for number, qos in enumerate((0, 1, 2)):
        free.publish("t", b"%d" % number, qos)
        there.expect_message("t", b"%d" % number, qos)
    free.publish("nobody", b"", 1)
    free.subscribe("of a session that ends", 1)
    busy.expect_nothing()
    server.store.let_go()
    busy.expect(PUBACK, packet_id=1, reason=0)


def test_delivery_to_those_who_are_there_goes_on_meanwhile(server: Server) -> None:
    """QoS 0 and 1 to sessions that are stored; QoS 2 comes when it is stored."""
    client = connected(server, **kept(5))
    client.subscribe("t/#", 2)
    publisher = connected(server)
    server.store.hold()
    publisher.send(publish("t/1", b"first", 1, 1))
    assert server.store.at_gate.wait(WAIT_S)  # acknowledged before it is there, it needs no store
    client.expect_message("t/1", b"first", 1)
    publisher.send(publish("t/1", b"second", 1, 2), publish("t/0", b"third", 0))
    client.expect_message("t/1", b"second", 1)
    client.expect_message("t/0", b"third", 0)
    publisher.expect_nothing()
    publisher.send(publish("t/2", b"fourth", 2, 3))
    publisher.expect_nothing()
    client.expect_nothing()
    server.store.let_go()
    for kind, packet_id in ((PUBACK, 1), (PUBACK, 2), (PUBREC, 3)):
        publisher.expect(kind, packet_id=packet_id, reason=0)
    client.expect_message("t/2", b"fourth", 2)
    server.wait_until_empty()


def test_acknowledgements_keep_the_order_of_the_messages(server: Server) -> None:
    """Those of messages that nobody keeps wait for those before them [MQTT-4.6.0-2]."""
    leave_session(server, "kept")
    publisher = connected(server)
    server.store.hold()
    publisher.send(publish("kept", b"", 1, 1), publish("nobody", b"", 1, 2), publish("kept", b"", 1, 3), PING)
    publisher.expect(PINGRESP)
    publisher.expect_nothing()
    server.store.let_go()
    for packet_id, reason in ((1, 0), (2, 0x10), (3, 0)):
        publisher.expect(PUBACK, packet_id=packet_id, reason=reason)


def test_a_publisher_that_is_owed_receive_max_is_not_read_from(servers: Servers) -> None:
    server = servers("memory", receive_max=4)
    leave_session(server, "t")
    publisher = connected(server, 4)
    server.store.hold()
    publisher.send(*(publish("t", b"%d" % number, 1, number, 4) for number in range(1, 21)), PING)
    assert server.wait_for("messages_received", 4) == 4
    with pytest.raises(Silence):
        publisher.receive(0.05)
    assert server.count("messages_received") == 4
    server.store.let_go()
    for number in range(1, 21):
        publisher.expect(PUBACK, packet_id=number)
    publisher.expect(PINGRESP)


def test_many_messages_share_a_commit(server: Server) -> None:
    """What comes while the store writes goes into the next batch."""
    leave_session(server, "t")
    publishers = [connected(server) for _ in range(10)]
    server.store.hold()
    publishers[0].send(publish("t", b"first", 1, 100))
    assert server.store.at_gate.wait(WAIT_S)
    before = server.count("store_batches")
    for publisher in publishers:
        publisher.send(*(publish("t", b"%d" % number, 1, number) for number in range(1, 21)), PING)
        publisher.expect(PINGRESP)
    server.store.let_go()
    publishers[0].expect(PUBACK, packet_id=100)
    for publisher in publishers:
        for number in range(1, 21):
            publisher.expect(PUBACK, packet_id=number, reason=0)
    assert server.count("store_batches") - before <= 1 + 2 * server.reactors


def test_what_is_acknowledged_meanwhile_is_never_written(server: Server) -> None:
    """A message that its only receiver has had before the store has time for it."""
    leave_session(server, "kept")
    client = connected(server, **kept(5))
    client.subscribe("t", 1)
    publisher = connected(server)
    server.store.hold()
    publisher.send(publish("kept", b"first", 1, 100))
    assert server.store.at_gate.wait(WAIT_S)
    before = server.count("store_writes")
    publisher.send(*(publish("t", b"%d" % number, 1, number) for number in range(1, 51)))
    for number in range(1, 51):
        client.expect_message("t", b"%d" % number, 1)
    client.ping()
    server.store.let_go()
    for number in (100, *range(1, 51)):
        publisher.expect(PUBACK, packet_id=number, reason=0)
    assert server.count("store_writes") - before < 50


def test_a_publisher_that_leaves_before_its_acknowledgement_harms_nobody(server: Server) -> None:
    absent = leave_session(server, "t")
    publisher = connected(server, **kept(5))
    server.store.hold()
    publisher.send(publish("t", b"1", 1, 1), publish("t", b"2", 2, 2), PING)
    publisher.expect(PINGRESP)
    publisher.drop()
    other = connected(server)
    other.send(publish("t", b"3", 1, 1))
    other.expect_nothing()
    server.store.let_go()
    other.expect(PUBACK, packet_id=1, reason=0)
    publisher = server.back(publisher.client_id)
    publisher.send(publish("t", b"2", 2, 2, dup=True))
    publisher.expect(PUBREC, packet_id=2, reason=0)
    client = server.back(absent)
    received = [client.receive() for _ in range(3)]
    assert sorted(each.payload for each in received) == [b"1", b"2", b"3"]
    client.expect_nothing()


def test_a_stop_waits_for_the_store_and_says_what_it_has(servers: Servers, server: Server) -> None:
    absent = leave_session(server, "t")
    publisher = connected(server)
    server.store.hold()
    publisher.send(publish("t", b"1", 1, 1), PING)
    publisher.expect(PINGRESP)
    server.engine.stop()
    server.store.let_go()
    publisher.expect(PUBACK, packet_id=1, reason=0)
    publisher.expect_closed(0x8B)
    server = servers.restart(server, crash=False)
    server.back(absent).expect_message("t", b"1", 1)
