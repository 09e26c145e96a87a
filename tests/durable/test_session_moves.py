"""A session leaves a running broker, and goes on in another one, exactly where it was."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Will,
    acknowledge,
    publish,
)
from waiting import LATE_S, wait_until

from tidemq.engine import Engine, StoreAccess
from tidemq.errors import StoreError, UsageError
from tidemq.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable.conftest import Servers
    from durable.nodes import Node, Rows

TAKEN_OVER = 0x8E
BOTH = pytest.mark.parametrize("reactors", [1, 2])


def two(servers: Servers, reactors: int = 1, **settings: Any) -> tuple[Node, Node]:
    """Two nodes; the second has other queue numbers already."""
    first, second = servers.node(reactors, **settings), servers.node(reactors, **settings)
    for _ in range(5):
        second.access.new_queue()
    return first, second


@BOTH
def test_a_session_goes_on_exactly_where_it_was(servers: Servers, reactors: int) -> None:
    """In flight at QoS 1 and 2, released, received, waiting: with the same packet identifiers."""
    first, second = two(servers, reactors)
    client = connected(first, client_id="c", receive_max=4, **kept(5))
    client.subscribe("t/#", 2)
    sender = connected(first)
    for number, qos in enumerate((1, 2, 2, 1, 1, 2)):
        sender.publish(f"t/{number}", b"%d" % number, qos)
    sent = [client.expect(PUBLISH, payload=b"%d" % number) for number in range(4)]
    client.send(acknowledge(PUBREC, sent[1].packet_id))
    client.expect(PUBREL, packet_id=sent[1].packet_id)
    client.send(publish("u", b"once", 2, 77))
    client.expect(PUBREC, packet_id=77)
    client.drop()
    wait_until(lambda: first.count("connections_closed") == 1, "the client has gone")
    rows = first.hand_over("c", second)
    assert len(rows.inflight) == 4
    assert len(rows.idle) == 2

    client = second.back("c")
    for number, message in enumerate(sent):
        if number == 1:
            client.expect(PUBREL, packet_id=message.packet_id)
        else:
            client.expect(
                PUBLISH, payload=message.payload, qos=message.qos, packet_id=message.packet_id, dup=True
            )
    last = [client.expect(PUBLISH, payload=b"%d" % number, dup=False) for number in (4, 5)]
    client.send(publish("u", b"once", 2, 77, dup=True))
    client.expect(PUBREC, packet_id=77)
    client.send(acknowledge(PUBREL, 77))
    client.expect(PUBCOMP, packet_id=77)
    assert second.count("messages_unrouted") == 0  # it was not published again
    following = max(message.packet_id for message in sent)
    assert [message.packet_id for message in last] == [
        following + 3,
        following + 4,
    ]  # those places were theirs
    client.send(acknowledge(PUBCOMP, sent[1].packet_id))
    for message in [sent[0], *sent[2:], *last]:
        client.acknowledge(message)
    sender = connected(second)
    sender.publish("t/after", b"after", 1)
    client.expect_message("t/after", b"after", 1)
    client.ping()
    second.wait_until_empty()
    assert second.count("sessions_adopted") == first.count("sessions_released") == 1


def test_the_rows_stay_where_the_session_was(servers: Servers) -> None:
    first, second = two(servers)
    client = connected(first, client_id="c", **kept(5))
    client.subscribe("t", 1)
    client.disconnect()
    connected(first).publish("t", b"1", 1)
    first.hand_over("c", second)
    rows = first.session_rows("c")
    assert (len(rows.subscriptions), len(rows.idle)) == (1, 1)
    assert first.count("subscriptions") == 0
    connected(first).publish("t", b"2", 1)  # it has no receiver here any more
    assert first.session_rows("c") == rows


@BOTH
@pytest.mark.parametrize("version", [4, 5])
def test_a_connected_client_is_taken_over(servers: Servers, reactors: int, version: int) -> None:
    first, second = two(servers, reactors)
    client = connected(first, version, client_id="c", **kept(version))
    client.subscribe("t", 1)
    first.hand_over("c", second)
    client.expect_closed(*([TAKEN_OVER] if version == 5 else []))
    assert first.count("sessions_taken_over") == 1
    client = second.back("c", version)
    connected(second).publish("t", b"1", 1)
    client.expect_message("t", b"1", 1)


def test_a_session_goes_and_comes_back(servers: Servers) -> None:
    first, second = two(servers)
    connected(first, client_id="c", **kept(5)).subscribe("t", 1)
    seen: list[int] = []
    for here, there in [(first, second), (second, first)] * 3:
        here.hand_over("c", there)
        here.forget("c")
        client = there.back("c")
        connected(there).publish("t", b"%d" % len(seen), 1)
        message = client.expect(PUBLISH)
        client.send(acknowledge(PUBACK, message.packet_id))
        client.ping()
        seen.append(message.packet_id)
    assert seen == [1, 2, 3, 4, 5, 6]  # an identifier is not used again at once


def test_a_session_that_is_not_stored_ends(servers: Servers) -> None:
    node = servers.node()
    client = connected(node, client_id="c")
    client.subscribe("t", 1)
    assert node.release("c") == (0, True)
    client.expect_closed(TAKEN_OVER)
    assert node.count("subscriptions") == 0
    assert node.count("sessions_ended") == 1


def test_who_is_not_here_is_said_at_once(servers: Servers) -> None:
    node = servers.node()
    assert not node.access.release(b"c")
    client = connected(node, client_id="c", **kept(5))
    client.disconnect()
    assert node.release("c") == (0, True)
    assert not node.access.release(b"c")


def test_what_is_being_removed_has_left_when_it_is_removed(servers: Servers) -> None:
    node = servers.node(2)
    client = connected(node, client_id="c", **kept(5))
    node.store.hold()
    client.disconnect(session_expiry=0)
    assert node.store.at_gate.wait(LATE_S)
    assert node.access.release(b"c")
    time.sleep(0.05)
    assert not node.access.left
    node.store.let_go()
    wait_until(lambda: node.access.left, "it has left")
    assert node.access.left == [(b"c", 0, False)]
    assert b"c" not in node.rows("session")


def test_it_has_left_only_when_the_store_has_all_of_it(servers: Servers) -> None:
    node = servers.node()
    client = connected(node, client_id="c", **kept(5))
    node.store.hold()
    client.disconnect()
    assert node.access.release(b"c")
    time.sleep(0.05)
    assert not node.access.left
    node.store.let_go()
    wait_until(lambda: node.access.left, "it has left")


def test_after_a_failure_it_has_left_when_the_rest_is_stored(servers: Servers) -> None:
    node = servers.node()
    client = connected(node, client_id="c", **kept(5))
    client.subscribe("t", 1)
    node.store.failure = StoreError("no room")
    assert node.access.release(b"c")
    client.expect_closed(TAKEN_OVER)
    wait_until(lambda: node.store.failed >= 2, "the store fails")
    assert not node.access.left
    node.store.failure = None
    wait_until(lambda: node.access.left, "it has left")
    assert node.access.left == [(b"c", 0, True)]


# --- its time ------------------------------------------------------------------------------------------


def test_a_session_whose_client_may_be_connected_elsewhere_expires_when_it_is_let(servers: Servers) -> None:
    first, second = two(servers)
    queues, stay_connected = [], []  # a client that nobody holds closes its connection, and its time begins
    for name in ("c", "d"):
        there = connected(first, client_id=name, clean=False, session_expiry=1)
        there.subscribe("t", 1)
        stay_connected.append(there)
        rows = first.session_rows(name).renumbered(second.access.new_queue())
        second.write(rows.writes())
        assert second.adopt(rows, stays=True)
        queues.append(rows.queue)
    time.sleep(1.5)
    client = connected(second, client_id="d", clean=False, session_expiry=1)
    assert set(second.rows("session")) == {b"c", b"d"}
    for queue in (*queues, max(queues) + 1000):
        second.access.let_expire(queue)
    wait_until(lambda: set(second.rows("session")) == {b"d"}, "what is let expire ends")
    client.ping()
    client.disconnect()
    wait_until(lambda: not second.rows("session"), "a client that was here leaves a session like any other")


# --- the will ------------------------------------------------------------------------------------------


def with_will(node: Node, delay_s: int, **settings: Any) -> Client:
    will = Will("will", b"gone", 1, properties=[("will_delay", delay_s)] if delay_s else ())
    return connected(node, client_id="c", will=will, **(kept(5) | settings))


def heir(node: Node) -> Client:
    client = connected(node, client_id="heir", **kept(5))
    client.subscribe("will", 1)
    return client


@BOTH
def test_a_will_without_delay_goes_out_before_the_session_leaves(servers: Servers, reactors: int) -> None:
    first, second = two(servers, reactors)
    here = heir(first)
    with_will(first, 0)
    rows = first.hand_over("c", second)
    assert len(rows.value) == 44  # the row has it no more
    here.expect_message("will", b"gone", 1)


def test_a_will_with_a_delay_is_cancelled_where_the_session_goes_on(servers: Servers) -> None:
    first, second = two(servers)
    here, there = heir(first), heir(second)
    with_will(first, 3600)
    first.hand_over("c", second)
    second.back("c")
    here.expect_nothing()
    there.expect_nothing()


def test_a_will_with_a_delay_goes_out_where_the_session_begins_anew(servers: Servers) -> None:
    first, second = two(servers)
    here, there = heir(first), heir(second)
    with_will(first, 3600)
    first.hand_over("c", second)
    second.back("c", clean=True, present=False)
    there.expect_message("will", b"gone", 1)
    here.expect_nothing()


def test_a_will_goes_out_when_it_is_due_wherever_the_session_is(servers: Servers) -> None:
    first, second = two(servers)
    here, there = heir(first), heir(second)
    with_will(first, 1)
    first.hand_over("c", second)
    there.expect_message("will", b"gone", 1)
    here.expect_nothing()


def test_a_will_that_is_being_stored_is_waited_for(servers: Servers) -> None:
    """At QoS 2 and on two reactors it is offered first; nobody else is to publish it again."""
    first, second = two(servers, 2)
    heirs = []
    for _ in range(4):
        client = connected(first, **kept(5))
        client.subscribe("will", 2)
        heirs.append(client)
    will = Will("will", b"gone", 2)
    for _ in range(10):
        connected(first, client_id="c", will=will, **kept(5))
        rows = first.hand_over("c", second)
        assert len(rows.value) == 44
        for client in heirs:
            client.expect_message("will", b"gone", 2)
        second.hand_over("c", first)
        second.forget("c")


# --- what is refused -----------------------------------------------------------------------------------


def test_a_session_that_is_here_is_not_adopted(servers: Servers) -> None:
    first, second = two(servers)
    connected(first, client_id="c", **kept(5)).disconnect()
    own = connected(second, client_id="c", **kept(5))
    first.release("c")
    rows = first.session_rows("c").renumbered(second.access.new_queue())
    assert not second.adopt(rows)
    own.ping()
    assert second.count("adoptions_refused") == 1
    other = second.session_rows("c")
    assert not second.adopt(other)  # nor one with a queue that another has


def test_new_queues_are_nobody_elses(servers: Servers) -> None:
    node = servers.node(2)
    given = {node.access.new_queue() for _ in range(5)}
    for _ in range(5):
        connected(node, **kept(5))
        given.add(node.access.new_queue())
    wait_until(lambda: len(node.rows("session")) == 5, "the sessions are stored")
    queues = {value[:8] for value in node.rows("session").values()}
    assert len(given) == 10
    assert not {number.to_bytes(8) for number in given} & queues


def test_a_queue_that_has_come_is_given_to_nobody(servers: Servers) -> None:
    first, second = two(servers)
    connected(first, client_id="c", **kept(5)).disconnect()
    first.release("c")
    rows = first.session_rows("c").renumbered(1000)
    second.write(rows.writes())
    assert second.adopt(rows)
    assert second.access.new_queue() > 1000


def test_only_a_running_engine_with_a_store_moves_sessions(servers: Servers) -> None:
    engine = Engine(Limits(), reactors=1)
    access = StoreAccess(engine)
    with pytest.raises(UsageError, match="engines that run"):
        access.release(b"c")
    with pytest.raises(UsageError, match="engines that run"):
        access.retain(b"t", bytes(16))
    engine.close()
    node = servers.node()
    with pytest.raises(UsageError, match="next_place"):
        node.access.adopt(b"c", b"", [], [], [], next_place=-1)


@BOTH
def test_places_go_on_where_they_are_told_to(servers: Servers, reactors: int) -> None:
    """With nothing in flight from there, with something no lower: no identifier means two messages."""
    first, second = two(servers, reactors)
    client = connected(first, client_id="c", receive_max=2, **kept(5))
    client.subscribe("t", 1)
    first.hand_over("c", second, gap=32768)
    client = second.back("c", receive_max=3)
    sender = connected(second)
    sender.publish("t", b"0", 1)
    held = client.expect(PUBLISH, payload=b"0", packet_id=32769)
    client.drop()
    place, _ = second.release("c")
    assert place == 32769
    rows = second.session_rows("c")
    third = servers.node(reactors)
    third.write(rows.writes())
    assert third.adopt(rows, place + 32768)
    client = third.back("c")
    client.expect(PUBLISH, payload=b"0", packet_id=held.packet_id, dup=True)
    connected(third).publish("t", b"1", 1)
    following = client.expect(PUBLISH, payload=b"1", dup=False)
    assert following.packet_id == (place + 32768) % 65535 + 1
    client.send(acknowledge(PUBACK, held.packet_id), acknowledge(PUBACK, following.packet_id))
    client.ping()
    third.wait_until_empty()


def test_after_a_crash_what_waits_may_have_been_sent(servers: Servers) -> None:
    first, second = two(servers)
    client = connected(first, client_id="c", **kept(5))
    client.subscribe("t", 1)
    client.disconnect()
    connected(first).publish("t", b"1", 1)
    place, _ = first.release("c")
    rows = first.session_rows("c")
    second.write(rows.writes())
    assert second.adopt(rows, place, crashed=True)
    second.back("c").expect(PUBLISH, payload=b"1", dup=True)


def broken_rows(rows: Rows) -> Iterator[tuple[str, dict[str, Any]]]:
    """What of a session's rows cannot be, and whose family is to be named."""
    (key, value, payload), second = rows.inflight[0], rows.inflight[1]
    assert payload is not None
    yield "session", {"value": rows.value[:-1]}
    yield "session", {"value": bytes(8) + rows.value[8:]}
    yield "session", {"value": rows.value[:40] + b"\0\0\0\7" + rows.value[44:]}
    yield "subscription", {"subscriptions": [(b"\0\1x" + rows.subscriptions[0][0][3:], b"\1\0\0\0\0")]}
    yield "subscription", {"subscriptions": [*rows.subscriptions, (rows.subscriptions[0][0], b"\1")]}
    yield "subscription", {"subscriptions": rows.subscriptions * 2}
    yield "received", {"received": [rows.value[:8] + b"\0"]}
    yield "received", {"received": [rows.value[:8] + b"\0\0"]}
    yield "received", {"received": [bytes(8) + b"\0\1"]}
    yield "received", {"received": [rows.value[:8] + b"\0\1short"]}
    yield "queue", {"inflight": [second, (key, value, payload)]}
    yield "queue", {"inflight": [(key, value, payload)] * 2}
    yield "queue", {"inflight": [(key[:-1], value, payload)]}
    yield "queue", {"inflight": [(bytes(8) + key[8:], value, payload)]}
    yield "queue", {"inflight": [(key[:8] + b"\1" + key[9:], value, payload)]}
    yield "queue", {"inflight": [(key, value[:-1], payload)]}
    yield "queue", {"inflight": [(key, value, payload[:-1])]}
    yield "queue", {"inflight": [(key, value, None)]}
    far = value[:14] + (70_000).to_bytes(8) + value[22:]
    yield "queue", {"inflight": [(key, value, payload), (second[0], far, second[2])]}


def test_rows_that_cannot_be_read_are_refused_whole(servers: Servers) -> None:
    first, second = two(servers)
    client = connected(first, client_id="c", **kept(5))
    client.subscribe("t", 1)
    sender = connected(first)
    for number in range(2):
        sender.publish("t", b"%d" % number, 1)
        client.expect(PUBLISH, payload=b"%d" % number)
    first.release("c")
    rows = first.session_rows("c").renumbered(second.access.new_queue())
    second.write(rows.writes())
    for family, changes in broken_rows(rows):
        parts = {
            "value": rows.value,
            "subscriptions": rows.subscriptions,
            "received": rows.received,
            "inflight": rows.inflight,
        } | changes
        unreadable = second.access.adopt(b"c", **parts)
        assert unreadable
        assert unreadable[0][0] == family
    far_place = second.access.adopt(
        b"c", rows.value, rows.subscriptions, rows.received, rows.inflight, next_place=1 << 40
    )
    assert far_place
    assert not second.access.arrived
    assert second.count("live_sessions") == second.count("live_messages") == 0
    assert second.adopt(rows)
    client = second.back("c")
    for number in range(2):
        client.expect(PUBLISH, payload=b"%d" % number, dup=True)
