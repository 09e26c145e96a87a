"""Messages between nodes with stores: an acknowledgement waits for both, and a QoS 2 message comes once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.kit import connected, kept
from conformance.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Will, acknowledge, publish
from mesh import meshed, wait_for_drain
from waiting import wait_until

from tidemq.broker.durability import keeper
from tidemq.errors import StoreError

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server

LINKED = 512 * 1024  # bytes of a batch


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "RETRY_S", 0.005)


def two(servers: Servers, kind: str = "memory", reactors: int = 1) -> tuple[Server, Server]:
    return servers(kind, reactors, linked=LINKED), servers(kind, reactors, linked=LINKED)


def leave_session(server: Server, topic: str, qos: int = 2) -> str:
    """A session that subscribes, and whose client is away."""
    client = connected(server, **kept(5))
    client.subscribe(topic, qos)
    client.disconnect()
    return client.client_id


def carry(source: Server, target: Server) -> None:
    """By hand: what one has for the other, as nodes 0 and 1."""
    for _, batch in source.nodes.take(5) or []:
        assert target.nodes.give(0, batch)
        source.nodes.sent(0, len(batch))


@pytest.mark.parametrize("reactors", [1, 2])
@pytest.mark.parametrize(("qos", "answer"), [(1, PUBACK), (2, PUBREC)])
def test_the_acknowledgement_waits_for_the_other_store(
    servers: Servers, qos: int, answer: int, reactors: int
) -> None:
    one, other = two(servers, "memory", reactors)
    names = [leave_session(other, "a") for _ in range(4)]
    with meshed(one, other) as mesh:
        mesh.share_interest()
        publisher = connected(one, **kept(5))
        other.store.hold()
        publisher.send(publish("a", b"x", qos, 1, 5))
        assert other.store.at_gate.wait(90)
        publisher.expect_nothing()
        other.store.let_go()
        publisher.expect(answer, packet_id=1, reason=0)
        wait_for_drain(one, other)
    other = servers.restart(other, True)
    for name in names:
        client = other.back(name)
        client.expect_message("a", b"x", qos)
        assert client.rest() == []


def test_a_store_that_fails_there_is_told_here(servers: Servers) -> None:
    one, other = two(servers)
    leave_session(other, "a")
    with meshed(one, other) as mesh:
        mesh.share_interest()
        publisher, old = connected(one), connected(one, 4)
        other.store.failure = StoreError("the store cannot be written: Input/output error")
        publisher.send(publish("a", b"x", 1, 1, 5))
        publisher.expect(PUBACK, packet_id=1, reason=0x83)
        # that it fails may have been found out before, when the last of the session was to be stored
        wait_until(lambda: other.count("dropped_store_failed") + other.count("refused_store") > 0)
        publisher.send(publish("a", b"x", 1, 2, 5))  # it says so at once now
        publisher.expect(PUBACK, packet_id=2, reason=0x83)
        other.wait_for("refused_store")
        old.send(publish("a", b"y", 1, 1, 4))
        old.expect_closed()
        publisher.publish("a", b"z", 0)
        other.store.failure = None
        wait_until(lambda: not other.keeper.problem, "the store is well")


def test_the_note_of_a_qos_2_message_waits_for_the_node(servers: Servers) -> None:
    """If the node dies before, the publisher sends it again: here it comes once, and there twice."""
    one, other = servers(linked=LINKED, shutdown_s=0), servers(linked=LINKED)
    here = leave_session(one, "a")
    there = leave_session(other, "a")
    one.nodes.change_filters(0, [], ["a"])
    publisher = connected(one, **kept(5))
    publisher.send(publish("a", b"x", 2, 1, 5))
    carry(one, other)
    publisher.expect_nothing()
    assert one.rows("received") == {}
    one = servers.restart(one, True)
    one.nodes.change_filters(0, [], ["a"])
    publisher = one.back(publisher.client_id)
    publisher.send(publish("a", b"x", 2, 1, 5, dup=True))
    carry(one, other)
    wait_until(lambda: other.nodes.under_way(0) == 2 * 32, "two answers")  # one to the broker that has died
    carry(other, one)
    publisher.expect(PUBREC, packet_id=1, reason=0)
    assert len(one.rows("received")) == 1
    one.wait_for("node_answers_late")
    publisher.send(acknowledge(PUBREL, 1))
    publisher.expect(PUBCOMP, packet_id=1, reason=0)
    client = one.back(here)
    client.expect_message("a", b"x", 2)
    assert client.rest() == []
    client = other.back(there)
    client.expect_message("a", b"x", 2)
    client.expect_message("a", b"x", 2)
    assert client.rest() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_will_waits_for_the_node(servers: Servers, qos: int) -> None:
    one, other = two(servers)
    there = connected(other)
    there.subscribe("w", 2)
    with meshed(one, other) as mesh:
        mesh.share_interest()
        mesh.hold(0, 1)
        client = connected(one, will=Will("w", b"gone", qos), **kept(5))
        client.drop()
        one.wait_for("messages_to_nodes")
        mesh.let_go()
        there.expect_message("w", b"gone", qos)
        wait_for_drain(one, other)
        assert one.back(client.client_id).rest() == []
        assert there.rest() == []


def test_queues_keep_their_order_with_messages_of_both_nodes(servers: Servers) -> None:
    """What comes from another node gets an id of this one, whatever that node's clock says."""
    one, other = two(servers, "rocksdb", 2)
    name = leave_session(other, "#")
    with meshed(one, other) as mesh:
        mesh.share_interest()
        far, near = connected(one), connected(other)
        for number in range(50):
            far.publish("far", b"%d" % number, 1)
            near.publish("near", b"%d" % number, 1)
        wait_for_drain(one, other)
    other = servers.restart(other, True)
    client = other.back(name)
    for number in range(50):
        client.expect_message("far", b"%d" % number, 1)
        client.expect_message("near", b"%d" % number, 1)
    assert client.rest() == []
