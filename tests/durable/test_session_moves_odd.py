"""Sessions that leave in the midst of something: each such thing ends well, and nothing of it is lost."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from conformance.kit import Client, connected, kept, refused
from conformance.packets import (
    CONNACK,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Will,
    acknowledge,
    connect,
    publish,
    subscribe,
)
from durable.nodes import Rows
from durable.test_delayed import waiting, with_rules
from waiting import LATE_S, wait_until

from tidemq.engine import Replaying, SubscribeRequest

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.nodes import Node, Rows

TAKEN_OVER = 0x8E
BACKLOG = 128  # option of a subscription whose retained messages have not all been sent
E = TypeVar("E")


def two(servers: Servers, reactors: int = 1, **settings: Any) -> tuple[Node, Node]:
    return servers.node(reactors, **settings), servers.node(reactors, **settings)


def event_of(node: Node, kind: type[E]) -> E:
    """Waits for an event; those before it are dropped."""
    found: list[E] = []

    def look() -> bool:
        found.extend(event for event in node.engine.events() if isinstance(event, kind))
        return bool(found)

    wait_until(look, kind.__name__)
    return found[0]


@pytest.mark.parametrize("count", [3, 10_000])
def test_what_it_held_of_a_shared_group_goes_to_the_others(servers: Servers, count: int) -> None:
    """However much it is: so many messages go back in a turn. What has begun at QoS 2 stays its own."""
    first, second = two(servers, receive_max=65535, inflight_max=65535)
    client = connected(first, client_id="c", **kept(5))
    client.subscribe("$share/g/t", 1)
    client.subscribe("own", 2)
    sender = connected(first)
    sender.publish("own", b"own", 2)
    own = client.expect(PUBLISH, payload=b"own")
    for at in range(0, count, 1000):
        here = range(at, min(at + 1000, count))
        sender.send(*(publish("t", b"%d" % number, 1, number + 1) for number in here))
        for _ in here:
            sender.expect(PUBACK)
    for _ in range(count):
        client.expect(PUBLISH, topic="t")
    other = connected(first, receive_max=65535)
    other.subscribe("$share/g/t", 1)
    rows = first.hand_over("c", second)
    assert len(rows.inflight) == 1
    assert not rows.idle
    got = [int(other.expect(PUBLISH, topic="t").payload) for _ in range(count)]
    assert got == list(range(count))
    second.back("c").expect(PUBLISH, payload=b"own", packet_id=own.packet_id, dup=True)


def test_retained_messages_go_on_to_a_new_subscription(servers: Servers) -> None:
    first, second = two(servers, output_high_bytes=4096)
    payload = bytes(1000)
    for node in (first, second):
        sender = connected(node)
        for number in range(40):
            sender.publish(f"t/{number}", payload, 1, retain=True)
    client = connected(first, client_id="c", receive_max=1, **kept(5))
    client.send(subscribe(1, ("t/#", 1)))
    client.receive()
    client.receive()
    rows = first.hand_over("c", second)
    assert rows.subscriptions[0][1][0] & BACKLOG
    client = second.back("c")
    topics: set[str] = set()
    while len(topics) < 40:
        message = client.expect(PUBLISH)
        client.send(acknowledge(PUBACK, message.packet_id))
        topics.add(message.topic)
    wait_until(
        lambda: not second.session_rows("c").subscriptions[0][1][0] & BACKLOG, "the store knows the end"
    )


def test_a_subscribe_that_waits_for_its_authorisation_is_void(servers: Servers) -> None:
    first, second = two(servers)
    client = connected(first, client_id="c", **kept(5))
    first.engine.ask_subscribe = True
    client.send(subscribe(1, ("t", 1)))
    request = event_of(first, SubscribeRequest)
    rows = first.hand_over("c", second)
    first.engine.answer_subscribe(request.connection, [0])
    client.expect_closed(TAKEN_OVER)
    assert not rows.subscriptions
    assert first.count("subscriptions") == 0


def test_a_replay_goes_on_where_it_was_acknowledged(servers: Servers) -> None:
    first, second = two(servers)
    client = connected(first, client_id="c", **kept(5))
    first.engine.ask_subscribe = True
    name = "$stream/s/first/t"
    client.send(subscribe(1, (name, 1)))
    request = event_of(first, SubscribeRequest)
    first.engine.answer_subscribe(request.connection, [0], starts=struct.pack(">BQQ", 1, 7, 100))
    event = event_of(first, Replaying)
    messages = b"".join(struct.pack(">QIII", 100 + at, 1, 0, 1) + b"t%d" % at for at in range(3))
    first.engine.feed(event.request.connection, name, messages, 103)
    packets = [client.receive() for _ in range(4)]  # SUBACK among them
    first_one = next(packet for packet in packets if packet.payload == b"0")
    client.send(acknowledge(PUBACK, first_one.packet_id))
    client.ping()
    first.hand_over("c", second)
    client = second.back("c")
    event = event_of(second, Replaying)
    assert (event.epoch, event.offset, event.asked) == (7, 101, False)
    second.engine.feed(event.request.connection, name, messages, 103)
    assert [client.expect(PUBLISH, dup=True).payload for _ in range(2)] == [b"1", b"2"]


def test_a_session_that_moves_between_reactors_leaves_from_where_it_is(servers: Servers) -> None:
    first, second = two(servers, 2)
    receiver = first.connected_on(1)
    receiver.subscribe("t", 0)
    moved = first.count("publishers_moved")
    for turn in range(8):
        client = first.connected_on(0, client_id="c", **kept(5))
        client.send(*(publish("t", b"x") for _ in range(1000)))
        if turn % 2:
            first.wait_for("publishers_moved", moved + 1)
        moved = first.count("publishers_moved")
        first.hand_over("c", second)
        client.drop()
        second.back("c").disconnect()
        second.release("c")
        first.forget("c")
        second.forget("c")


@pytest.mark.parametrize("reactors", [1, 2])
def test_it_waits_for_its_messages_of_qos_2_that_are_offered(servers: Servers, reactors: int) -> None:
    """They are stored with their identifier before it leaves, and come to nobody again."""
    first, second = two(servers, reactors)
    receivers = [first.connected_on(at, **kept(5)) for at in range(reactors)]
    for receiver in receivers:
        receiver.subscribe("t", 2)
    client = connected(first, client_id="c", **kept(5))
    first.wait_for_rows("session", reactors + 1)
    first.store.hold()
    client.send(publish("t", b"once", 2, 5))
    assert first.store.at_gate.wait(LATE_S)
    assert first.access.release(b"c")
    client.expect_closed(TAKEN_OVER)
    assert not first.access.left
    first.store.let_go()
    wait_until(lambda: first.access.left, "it has left")
    rows = first.session_rows("c")
    assert [key[8:] for key in rows.received] == [b"\0\5"]
    second.write(rows.writes())
    assert second.adopt(rows, first.access.left[0][1])
    client = second.back("c")
    client.send(publish("t", b"once", 2, 5, dup=True))
    client.expect(PUBREC, packet_id=5)
    client.send(acknowledge(PUBREL, 5))
    client.expect(PUBCOMP, packet_id=5)
    for receiver in receivers:
        receiver.expect_message("t", b"once", 2)
        receiver.expect_nothing()
    second.wait_until_empty()


def test_it_waits_for_messages_of_qos_2_that_are_offered_to_it(servers: Servers) -> None:
    first = servers.node(2)
    for at in range(2):
        first.connected_on(at, client_id=f"c{at}", **kept(5)).subscribe("t", 2)
    sender = connected(first, **kept(5))
    first.wait_for_rows("session", 3)
    first.store.hold()
    sender.send(publish("t", b"once", 2, 5))
    assert first.store.at_gate.wait(LATE_S)
    for at in range(2):
        assert first.access.release(b"c%d" % at)
    assert not first.access.left
    first.store.let_go()
    wait_until(lambda: len(first.access.left) == 2, "both have left")
    sender.expect(PUBREC, packet_id=5)
    for at in range(2):
        rows = first.session_rows(f"c{at}")
        assert len(rows.idle) + len(rows.inflight) == 1


def test_a_client_that_comes_while_its_session_leaves_is_sent_away(servers: Servers) -> None:
    node = servers.node(2)
    receivers = [node.connected_on(at, **kept(5)) for at in range(2)]
    for receiver in receivers:
        receiver.subscribe("t", 2)
    client = connected(node, client_id="c", **kept(5))
    node.wait_for_rows("session", 3)
    node.store.hold()
    client.send(publish("t", b"once", 2, 5))
    assert node.store.at_gate.wait(LATE_S)
    assert node.access.release(b"c")
    client.expect_closed(TAKEN_OVER)
    again = node.back("c")
    again.expect_closed(TAKEN_OVER)
    node.store.let_go()
    wait_until(lambda: node.access.left, "it has left")
    assert node.access.left[0][2]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean", [False, True])
def test_nobody_gets_a_session_that_was_handed_over(servers: Servers, version: int, clean: bool) -> None:
    """Whose CONNECT was answered a moment before: what it did here would be lost."""
    node = servers.node(2)
    client = connected(node, version, client_id="c", **kept(version))
    client.subscribe("t", 1)
    client.disconnect()
    assert node.access.release(b"c", keep=True)
    wait_until(lambda: node.access.left, "it is handed over")
    rows = node.session_rows("c")
    late = Client(node.port, version)
    late.send(connect("c", version, **(kept(version) | {"clean": clean})))
    refused(late, 0x88 if version == 5 else 3)
    connected(node).publish("t", b"1", 1)
    wait_until(lambda: len(node.session_rows("c").idle) == 1, "it goes on to take what comes")
    assert node.session_rows("c").subscriptions == rows.subscriptions
    assert node.access.release(b"c")
    wait_until(lambda: len(node.access.left) == 2, "it has left")
    client = connected(node, version, client_id="c", clean=True)
    client.ping()


@pytest.mark.parametrize("reactors", [1, 2])
def test_a_session_that_nobody_took_is_its_client_s_again(servers: Servers, reactors: int) -> None:
    node = servers.node(reactors)
    client = connected(node, client_id="c", **kept(5))
    client.subscribe("t", 1)
    client.disconnect()
    assert node.access.release(b"c", keep=True)
    wait_until(lambda: node.access.left, "it is handed over")
    sender = connected(node)
    sender.publish("t", b"1", 1)
    node.access.take_back(b"c")
    sender.publish("t", b"2", 1)
    client = connected(node, client_id="c", **kept(5))
    for payload in (b"1", b"2"):
        client.expect_message("t", payload, 1)
    node.access.take_back(b"nobody")
    client.ping()


def leave(node: Node, *, expiry_s: int, delay_s: int) -> Client:
    """The client `c` of a session with a will has gone; returns another one, which waits for the will."""
    there = connected(node, client_id="heir", **kept(5))
    there.subscribe("will", 1)
    will = Will("will", b"gone", 1, properties=[("will_delay", delay_s)])
    connected(node, client_id="c", clean=False, session_expiry=expiry_s, will=will).drop()
    wait_until(lambda: node.count("connections_closed") == 1, "the client has gone")
    return there


@pytest.mark.parametrize(("expiry_s", "delay_s"), [(3600, 1), (1, 3600)], ids=["will", "end"])
def test_what_falls_due_while_a_session_is_handed_over_waits(
    servers: Servers, expiry_s: int, delay_s: int
) -> None:
    """Its new home has it, and publishes the will, or ends it, if its client has not come. Where nobody has
    taken it, that happens when it is taken back.
    """
    node = servers.node()
    there = leave(node, expiry_s=expiry_s, delay_s=delay_s)
    assert node.access.release(b"c", keep=True)
    wait_until(lambda: node.access.left, "it is handed over")
    time.sleep(1.5)
    there.expect_nothing()
    assert b"c" in node.rows("session")
    node.access.take_back(b"c")
    there.expect_message("will", b"gone", 1)
    wait_until(lambda: (b"c" in node.rows("session")) == (expiry_s > 1), "it has ended, or goes on")


def handed_over(first: Node, second: Node) -> Rows:
    """The rows of the session `c`, which the other node's store has from now on."""
    assert first.access.release(b"c", keep=True)
    wait_until(lambda: first.access.left, "it is handed over")
    rows = first.session_rows("c").renumbered(second.access.new_queue())
    second.write(rows.writes())
    return rows


def test_a_will_that_falls_due_on_the_way_goes_out_once(servers: Servers) -> None:
    first, second = two(servers)
    here = leave(first, expiry_s=3600, delay_s=1)
    there = connected(second, client_id="heir", **kept(5))
    there.subscribe("will", 1)
    assert second.adopt(handed_over(first, second))
    there.expect_message("will", b"gone", 1)
    here.expect_nothing()


@pytest.mark.parametrize("comes", [False, True])
def test_a_session_has_time_until_its_client_can_have_it(servers: Servers, comes: bool) -> None:
    """It was due before all of it had come; its client's CONNECT has waited for it."""
    first, second = two(servers)
    leave(first, expiry_s=1, delay_s=1)
    there = connected(second, client_id="heir", **kept(5))
    there.subscribe("will", 1)
    rows = handed_over(first, second)
    time.sleep(1.5)
    assert second.adopt(rows, older_may_come=True)
    there.expect_nothing()
    if comes:
        client = second.back("c")
        second.access.all_came(rows.queue)
        there.expect_nothing()
        client.ping()
    else:
        second.access.all_came(rows.queue)
        there.expect_message("will", b"gone", 1)
        wait_until(lambda: b"c" not in second.rows("session"), "it has ended")


def test_a_session_leaves_once_however_often_it_is_told_to(servers: Servers) -> None:
    node = servers.node(2)
    connected(node, client_id="c", **kept(5))
    asked = sum(node.access.release(b"c") for _ in range(5))
    assert asked
    wait_until(lambda: len(node.access.left) == asked, "all are answered")
    assert [here for _, _, here in node.access.left] == [True] + [False] * (asked - 1)


def test_a_broker_that_closes_frees_what_is_on_its_way(servers: Servers) -> None:
    first, second = two(servers, 2)
    connected(first, client_id="c", **kept(5))
    first.release("c")
    rows = large(first.session_rows("c"), 5000, 100)
    assert second.access.adopt(*parts(rows)) == []
    assert second.access.release(b"c")
    second.stop()  # which looks for what is left


def large(rows: Rows, subscriptions: int, inflight: int) -> Rows:
    """The same session with very many of both."""
    filters = [b"\0\1c" + b"f/%d" % at for at in range(subscriptions)]
    flying = []
    for at in range(inflight):
        key = rows.value[:8] + struct.pack(">BQQ", 2, 64 * (at + 1), 9)
        value = struct.pack(">BBIqQ", 8, 1, 100, 0, 2 * at)
        payload = struct.pack(">BBqIII", 1, 0, 0, 1, 0, 4) + b"t" + struct.pack(">I", at)
        flying.append((key, value, payload))
    return Rows(b"c", rows.value, [(each, b"\1\0\0\0\0") for each in filters], rows.received, flying, [])  # type: ignore[arg-type]


def parts(rows: Rows) -> tuple[Any, ...]:
    return rows.client_id, rows.value, rows.subscriptions, rows.received, rows.inflight


@pytest.mark.parametrize("reactors", [1, 2])
def test_a_large_session_arrives_over_several_turns(servers: Servers, reactors: int) -> None:
    """Its client, who comes meanwhile, waits for all of it; others are served."""
    first, second = two(servers, reactors, inflight_max=65535, receive_max=65535)
    connected(first, client_id="c", **kept(5))
    first.release("c")
    rows = large(first.session_rows("c"), 20_000, 3_000)
    other = connected(second)
    assert second.access.adopt(*parts(rows), next_place=8_000) == []
    client = Client(second.port)
    client.send(connect("c", **kept(5)))
    other.ping()
    assert client.expect(CONNACK, reason=0).session_present
    assert second.access.arrived or second.count("sessions_adopted")
    assert second.count("subscriptions") == 20_000
    for at in range(3_000):
        client.expect(PUBLISH, packet_id=2 * at + 1, dup=True, payload=struct.pack(">I", at))
    other.publish("f/19999", b"new", 1)
    client.expect(PUBLISH, payload=b"new", packet_id=8_001, dup=False)
    place, here = second.release("c")
    assert (place, here) == (8_001, True)
    wait_until(lambda: second.count("subscriptions") == 0, "the index has forgotten it")


@pytest.mark.parametrize("begun", [False, True])
def test_a_session_may_leave_while_it_arrives(servers: Servers, begun: bool) -> None:
    """It arrives first, also where no reactor knows of it yet."""
    first, second = two(servers, 2)
    connected(first, client_id="c", **kept(5))
    first.release("c")
    rows = large(first.session_rows("c"), 5000, 10)
    assert second.access.adopt(*parts(rows)) == []
    if begun:
        wait_until(lambda: second.count("live_sessions") > 0, "it arrives")
    assert second.access.release(b"c")
    wait_until(lambda: second.access.left, "it has left")
    assert second.access.arrived == [(b"c", True)]
    assert second.access.left == [(b"c", 19, True)]


def test_a_filter_that_somebody_else_has_to_itself_is_given_up(servers: Servers) -> None:
    first, second = (with_rules(node) for node in two(servers))
    connected(first, client_id="c", **kept(5)).subscribe("$exclusive/t", 1)
    other = connected(second, client_id="other", **kept(5))
    other.subscribe("$exclusive/t", 1)
    first.hand_over("c", second)  # type: ignore[attr-defined]
    wait_until(lambda: len(second.rows("subscription")) == 1, "the row has gone")
    assert second.count("refused_exclusive") == 1
    connected(first, client_id="next", **kept(5)).subscribe("$exclusive/t", 1)  # it is free there


def test_a_delayed_message_moves(servers: Servers) -> None:
    first, second = (with_rules(node) for node in two(servers))
    for node in (first, second):
        watcher = connected(node, client_id="watcher", **kept(5))
        watcher.subscribe("late", 1)
        watcher.disconnect()
    sender = connected(first)
    sender.send(publish("$delayed/2/late", b"soon", 1, 5))
    sender.expect(PUBACK, packet_id=5, reason=0)
    [name] = [key for key in first.rows("session") if key.startswith(b"\0delayed/")]
    began = time.monotonic()
    first.hand_over(name.decode(), second)  # type: ignore[attr-defined]
    assert first.count("live_delayed") == 0
    assert second.count("live_delayed") == 1
    second.wait_for_rows("queue", 1)
    assert time.monotonic() - began > 0.5
    second.back("watcher").expect_message("late", b"soon", 1)
    first.back("watcher").expect_nothing()
    wait_until(lambda: not waiting(second), "it has left")
