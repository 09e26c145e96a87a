"""Another node is what another reactor is: messages of QoS 0, 1 and 2 between engines, and their answers."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import pytest
from adversity.test_memory_ceiling import CEILING, fill
from adversity.test_queue_limits import leave_session
from conformance.kit import Client, connected
from conformance.packets import PUBACK, PUBLISH, PUBREC, publish
from mesh import Mesh, meshed, wait_for_drain
from waiting import wait_until

from tidemq.engine.door.node_access import NODES_MAX, NodeAccess
from tidemq.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine

LINKED = 512 * 1024  # bytes of a batch


def two(
    start_engine: StartEngine, reactors: int = 1, **limits: int
) -> tuple[EngineUnderTest, EngineUnderTest]:
    return start_engine(reactors, linked=LINKED, **limits), start_engine(reactors, linked=LINKED, **limits)


def remote(here: EngineUnderTest, there: EngineUnderTest, mesh: Mesh, *filters: str, qos: int = 2) -> Client:
    """A subscriber on another node, whose filters are known here."""
    subscriber = connected(there)
    for each in filters:
        subscriber.subscribe(each, qos)
    mesh.share_interest()
    return subscriber


@pytest.mark.parametrize("reactors", [1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_subscriber_on_any_node_gets_a_message_once(
    start_engine: StartEngine, qos: int, reactors: int
) -> None:
    one, other = two(start_engine, reactors)
    with meshed(one, other) as mesh:
        here = connected(one)
        here.subscribe("a/#", 2)
        there = [remote(one, other, mesh, "a/+", "a/b", "#") for _ in range(2)]
        publisher = connected(one)
        publisher.publish("a/b", b"x", qos)
        for each in (here, *there):
            each.expect_message("a/b", b"x", qos)
        for each in (here, *there):
            assert each.rest() == []
        wait_for_drain(one, other)
    assert one.count("messages_to_nodes") == 1
    assert other.count("messages_from_nodes") == 1


def test_nothing_goes_to_a_node_that_does_not_want_it(start_engine: StartEngine) -> None:
    one, other = two(start_engine)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a")
        publisher = connected(one)
        publisher.publish("b", b"x", 1)
        there.unsubscribe("a")
        mesh.share_interest()
        publisher.publish("a", b"y", 1)
        there.expect_nothing()
    assert one.count("messages_to_nodes") == 0
    assert one.count("messages_unrouted") == 2


def test_a_mesh_of_three_passes_nothing_on(start_engine: StartEngine) -> None:
    engines = [start_engine(2, linked=LINKED) for _ in range(3)]
    with meshed(*engines) as mesh:
        clients = [connected(each) for each in engines]
        for client in clients:
            client.subscribe("t/#", 1)
        mesh.share_interest()
        for number, client in enumerate(clients):
            client.send(publish(f"t/{number}", b"x", 1, client.next_id(), 5))
        for client in clients:
            found = client.rest()
            while len([each for each in found if each.kind == PUBLISH]) < 3:
                found += client.rest()
            assert sorted(each.topic for each in found if each.kind == PUBLISH) == ["t/0", "t/1", "t/2"]
        wait_for_drain(*engines)
        for client in clients:
            assert [each for each in client.rest() if each.kind == PUBLISH] == []
    assert [each.count("messages_to_nodes") for each in engines] == [2, 2, 2]
    assert [each.count("messages_from_nodes") for each in engines] == [2, 2, 2]


def test_properties_and_expiry_survive(start_engine: StartEngine) -> None:
    one, other = two(start_engine)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a")
        publisher = connected(one)
        publisher.publish(
            "a",
            b"x" * 100_000,
            1,
            content_type="text/plain",
            user=[("k", "v"), ("k", "w")],
            message_expiry=100,
            retain=True,
        )
        message = there.expect_message("a", b"x" * 100_000, 1, retain=False)
        assert message.get("content_type") == "text/plain"
        assert message.all("user") == [("k", "v"), ("k", "w")]
        assert 0 < message.get("message_expiry") <= 100
        assert other.count("retained") == 0
        as_published = connected(other)
        as_published.subscribe("b", 1, 0x08)
        mesh.share_interest()
        publisher.publish("b", b"y", 1, retain=True)
        as_published.expect_message("b", b"y", 1, retain=True)


def test_sys_and_own_filters_stay_here(start_engine: StartEngine) -> None:
    one, other = two(start_engine)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "$SYS/#", "#")
        assert other.nodes.all_interest() == ["#"]
        one.nodes.change_filters(1, [], ["$SYS/#"])
        one.engine.publish("$SYS/broker/version", b"1")
        one.engine.publish("a", b"2", qos=1)
        there.expect_message("a", b"2", 1)
    assert one.count("messages_to_nodes") == 1


@pytest.mark.parametrize(("qos", "answer"), [(1, PUBACK), (2, PUBREC)])
def test_the_publisher_waits_for_the_node_and_not_longer(
    start_engine: StartEngine, qos: int, answer: int
) -> None:
    one, other = two(start_engine)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a")
        publisher = connected(one)
        mesh.hold(1, 0)  # its answers
        publisher.send(publish("a", b"x", qos, 1, 5))
        there.expect_message("a", b"x", qos)
        publisher.expect_nothing()
        mesh.let_go()
        publisher.expect(answer, packet_id=1, reason=0)


def test_a_node_that_never_answers_delays_only_its_own(start_engine: StartEngine) -> None:
    engines = [start_engine(2, linked=LINKED) for _ in range(3)]
    with meshed(*engines) as mesh:
        slow = remote(engines[0], engines[1], mesh, "a")
        good = remote(engines[0], engines[2], mesh, "b")
        here = connected(engines[0])
        here.subscribe("c", 1)
        publisher, other = connected(engines[0]), connected(engines[0])
        mesh.hold(1, 0)
        publisher.send(publish("a", b"1", 1, 1, 5))
        other.publish("b", b"2", 1)
        other.publish("c", b"3", 2)
        good.expect_message("b", b"2", 1)
        here.expect_message("c", b"3", 1)
        publisher.expect_nothing()
        engines[0].nodes.drop_node(1)
        engines[0].nodes.settle(1, 0)
        publisher.expect(PUBACK, packet_id=1, reason=0)
        publisher.publish("a", b"4", 1)  # nobody else wants it, and nobody is asked
        mesh.let_go()
        slow.expect_message("a", b"1", 1)
        engines[0].wait_for("node_answers_late")


def test_what_is_settled_can_be_refused(start_engine: StartEngine) -> None:
    one, other = two(start_engine)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a")
        mesh.hold(0, 1)
        publisher, old = connected(one), connected(one, 4)
        for packet_id in range(1, 11):
            publisher.send(publish("a", b"x", 1, packet_id, 5))
        old.send(publish("a", b"x", 1, 1, 4))
        old.ping()
        publisher.expect_nothing()
        one.nodes.settle(1, 0x80)
        for packet_id in range(1, 11):
            publisher.expect(PUBACK, packet_id=packet_id, reason=0x80)
        old.expect_closed()
        mesh.let_go()
        one.wait_for("node_answers_late", 11)
        assert len(there.rest()) == 11


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_node_has_no_memory_for_is_not_acknowledged(start_engine: StartEngine, qos: int) -> None:
    """To 3.1.1 neither, which is told so of what a full queue has dropped."""
    one = start_engine(1, linked=LINKED)
    other = start_engine(
        1, linked=LINKED, memory_bytes_max=CEILING, output_high_bytes=1 << 30, backpressure_s=600
    )
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a")
        receiver, filling = connected(other), connected(other)
        receiver.subscribe("t", 1)
        fill(other, filling)
        new, old = connected(one), connected(one, 4)
        new.send(publish("a", b"x", qos, 1, 5))
        new.expect(PUBREC if qos == 2 else PUBACK, packet_id=1, reason=0x80)
        old.send(publish("a", b"x", qos, 1, 4))
        old.expect_closed()
        assert there.rest() == []
    assert other.count("dropped_memory") == 2


def test_it_is_said_when_all_that_was_given_has_been_acted_on(start_engine: StartEngine) -> None:
    one, other = two(start_engine, 2)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a/#")
        before = other.nodes.given_so_far()
        assert before == [0, 0]
        assert other.nodes.has_acted_on(before)
        publisher = connected(one)
        for number in range(50):
            publisher.publish(f"a/{number}", b"x", 1)
        given = other.nodes.given_so_far()
        assert all(given)
        wait_until(lambda: other.nodes.has_acted_on(given), "all is acted on")
        assert not other.nodes.has_acted_on([given[0], given[1] + 1])
        assert len(there.rest()) == 50
        publisher.publish("a", b"x", 1)
        assert other.nodes.has_acted_on(given)
        assert sum(other.nodes.given_so_far()) > sum(given)


def test_that_a_queue_was_full_weighs_less_than_another_refusal(start_engine: StartEngine) -> None:
    """Of what only a full queue has dropped 3.1.1 gets an acknowledgement, of what a node lacks none."""
    one, other = two(start_engine)
    full = start_engine(1, linked=LINKED, queued_messages_max=1)
    with meshed(one, other, full) as mesh:
        there = remote(one, other, mesh, "a")
        leave_session(full, "a")
        mesh.share_interest()
        connected(one, 4).publish("a", b"fills it", 1)
        connected(one, 4).publish("a", b"is dropped", 1)
        mesh.hold(0, 1)
        mesh.hold(2, 0)
        old = connected(one, 4)
        old.send(publish("a", b"x", 1, 1, 4))
        full.wait_for("dropped_queue_full", 2)
        one.nodes.settle(1, 0x80)
        old.expect_nothing()
        mesh.let_go()
        old.expect_closed()
        for payload in (b"fills it", b"is dropped", b"x"):
            there.expect_message("a", payload, 1)


def test_what_came_of_a_node_is_not_said_of_the_next_one_with_its_number(start_engine: StartEngine) -> None:
    one, other = two(start_engine)
    with meshed(one, other) as mesh:
        subscriber = remote(other, one, mesh, "a")
        connected(other).publish("a", b"x", 1)
        subscriber.expect_message("a", b"x", 1)
        assert len(one.nodes.taken_so_far()) == 2
        one.nodes.drop_node(1)
        one.nodes.settle(1, 0x80)
        one.nodes.reset_node(1)
        assert len(one.nodes.taken_so_far()) == 1
        connected(other).publish("a", b"y", 1)
        subscriber.expect_message("a", b"y", 1)
        assert len(one.nodes.taken_so_far()) == 2


def test_very_much_is_settled_in_slices(start_engine: StartEngine) -> None:
    one = start_engine(2, linked=LINKED, receive_max=2000)
    one.nodes.change_filters(4, [], ["a"])
    clients = [connected(one) for _ in range(8)]
    for client in clients:
        client.send(*[publish("a", b"x", 1, packet_id, 5) for packet_id in range(1, 1501)])
    one.wait_for("messages_to_nodes", 8 * 1500)
    one.nodes.drop_node(4)
    one.nodes.settle(4, 0)
    for client in clients:
        for packet_id in range(1, 1501):
            client.expect(PUBACK, packet_id=packet_id, reason=0)


def test_a_node_that_is_full_loses_qos_0_and_holds_the_others(start_engine: StartEngine) -> None:
    one, other = two(start_engine, node_bytes_max=65_536, backpressure_s=0)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a", qos=2)
        mesh.hold(0, 1)
        publisher = connected(one)
        for _ in range(100):
            publisher.send(publish("a", b"0" * 1000, 0, 0, 5))
        publisher.ping()
        dropped = one.count("dropped_node_full")
        assert 100 - 65_536 // (32 + 1 + 1000) <= dropped <= 40  # the heads of batches count as well
        assert one.nodes.under_way(1) <= 65_536 + 100 * 16
        mesh.let_go()
        for _ in range(100 - dropped):
            there.expect_message("a", b"0" * 1000)
        mesh.hold(0, 1)
        for packet_id in range(1, 101):
            publisher.send(publish("a", b"%04d" % packet_id * 250, 1, packet_id, 5))
        one.wait_for("publishers_paused")
        bystander = connected(one)
        bystander.ping()
        mesh.let_go()
        for packet_id in range(1, 101):
            publisher.expect(PUBACK, packet_id=packet_id)
            there.expect_message("a", b"%04d" % packet_id * 250, 1)
    assert one.count("dropped_node_full") >= dropped


@pytest.mark.parametrize("qos", [0, 1])
def test_publishers_wait_for_a_node_before_anything_is_lost(start_engine: StartEngine, qos: int) -> None:
    one, other = two(start_engine, node_bytes_max=65_536, backpressure_s=600)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a")
        mesh.hold(0, 1)
        publisher = connected(one)
        publisher.send(*[publish("a", b"%04d" % each * 250, qos, each, 5) for each in range(1, 201)])
        one.wait_for("publishers_paused")
        one.engine.publish("a", b"x" * 20_000)  # nobody can hold this back, and there is room
        bystander = connected(one)
        bystander.publish("b", b"x", 1)
        mesh.let_go()
        found = [there.receive() for _ in range(201)]
        numbers = [int(each.payload[:4]) for each in found if each.payload[:1] != b"x"]
        assert numbers == list(range(1, 201))
    assert one.count("dropped_node_full") == 0


def test_publishers_of_qos_0_do_not_wait_for_ever(start_engine: StartEngine) -> None:
    one, other = two(start_engine, node_bytes_max=65_536, backpressure_s=1)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a", qos=0)
        mesh.hold(0, 1)
        publisher = connected(one)
        publisher.send(*[publish("a", b"x" * 1000, 0, 0, 5) for _ in range(100)])
        one.wait_for("publishers_paused")
        publisher.ping()
        assert one.count("dropped_node_full") > 0
        mesh.let_go()
        there.expect_message("a", b"x" * 1000)
        wait_for_drain(one, other)


def test_a_message_larger_than_the_limit_goes_alone(start_engine: StartEngine) -> None:
    one, other = two(start_engine, node_bytes_max=65_536)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "a")
        publisher = connected(one)
        for _ in range(3):
            publisher.publish("a", b"x" * 200_000, 1)
            there.expect_message("a", b"x" * 200_000, 1)
        wait_for_drain(one, other)


def test_batches_have_a_size(start_engine: StartEngine) -> None:
    one = start_engine(linked=1024)
    one.nodes.change_filters(0, [], ["a"])
    publisher = connected(one)
    for _ in range(100):
        publisher.send(publish("a", b"x" * 100, 0, 0, 5))
    publisher.send(publish("a", b"x" * 5000, 0, 0, 5))
    publisher.ping()
    taken: list[tuple[int, bytes]] = []
    while sum(len(batch) - 16 for _, batch in taken) < 100 * 133 + 5033:
        taken += one.nodes.take(0.5) or []
    sizes = [len(batch) for _, batch in taken]
    assert sum(each > 1024 for each in sizes) == 1
    assert max(sizes) == 16 + 5033
    assert one.nodes.under_way(0) == sum(sizes)
    one.nodes.sent(0, sum(sizes))
    with pytest.raises(UsageError, match="1 bytes cannot have left to node 0"):
        one.nodes.sent(0, 1)


@pytest.mark.parametrize(("here", "there"), [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_the_order_of_each_topic_holds_under_load(start_engine: StartEngine, here: int, there: int) -> None:
    one, other = start_engine(here, linked=LINKED), start_engine(there, linked=LINKED)
    with meshed(one, other) as mesh:
        subscribers = [remote(one, other, mesh, "t/#", qos=1) for _ in range(2)]
        publishers = [connected(one) for _ in range(3)]
        count = 600

        def feed(number: int) -> None:
            client = publishers[number]
            for at in range(count):
                client.send(publish(f"t/{number}/{at % 3}", b"%d" % at, 1, at + 1, 5))
            for at in range(count):
                client.expect(PUBACK, packet_id=at + 1, reason=0)

        threads = [threading.Thread(target=feed, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for subscriber in subscribers:
            found: dict[str, list[int]] = {}
            for _ in range(3 * count):
                message = subscriber.expect(PUBLISH, qos=1)
                subscriber.acknowledge(message)
                found.setdefault(message.topic, []).append(int(message.payload))
            expected = {
                f"t/{n}/{k}": list(range(k, count, 3)) for n, k in itertools.product(range(3), range(3))
            }
            assert found == expected
        for thread in threads:
            thread.join()


def test_a_node_is_dropped_while_messages_are_under_way(start_engine: StartEngine) -> None:
    one, other = two(start_engine, 2)
    with meshed(one, other) as mesh:
        there = remote(one, other, mesh, "#", qos=0)
        publisher = connected(one)
        ended = threading.Event()

        def feed() -> None:
            for packet_id in itertools.cycle(range(1, 60_001)):
                publisher.send(publish("a", b"x", 1, packet_id, 5))
                publisher.expect(PUBACK, packet_id=packet_id)
                if ended.is_set():
                    return

        thread = threading.Thread(target=feed)
        thread.start()
        for _ in range(20):
            before = one.count("messages_to_nodes")
            wait_until(lambda: one.count("messages_to_nodes") > before + 5)  # noqa: B023
            one.nodes.drop_node(1)
            one.nodes.settle(1, 0)
            one.nodes.change_filters(1, [], ["#"])
        ended.set()
        thread.join()
        wait_for_drain(one, other)
        assert there.rest()


@pytest.mark.parametrize("which", [0, 1])
def test_the_links_close_at_any_moment(start_engine: StartEngine, which: int) -> None:
    for moment in range(5):
        engines = two(start_engine, 2)
        with meshed(*engines) as mesh:
            there = remote(engines[0], engines[1], mesh, "#", qos=0)
            publisher = connected(engines[0])
            for packet_id in range(1, 200):
                publisher.send(publish("a", b"x", 1, packet_id, 5))
                if packet_id == 20 * moment + 1:
                    engines[which].nodes.close()
                    engines[which].nodes.close()
            if which == 1:  # what it was asked stays open
                engines[0].nodes.drop_node(1)
                engines[0].nodes.settle(1, 0)
            for packet_id in range(1, 200):
                publisher.expect(PUBACK, packet_id=packet_id)
            with pytest.raises(UsageError, match="closed"):
                engines[which].nodes.change_filters(0, [], ["a"])
            assert engines[which].nodes.take(1) is None
            there.rest()


def test_interest_is_filters_and_not_subscriptions(start_engine: StartEngine) -> None:
    one = start_engine(2, linked=LINKED)
    clients = [connected(one) for _ in range(40)]
    for client in clients[:20]:
        client.subscribe("a/+", 1)
        client.subscribe("$share/g/a/+", 1)
    assert sorted(one.nodes.all_interest()) == ["$share/g/a/+", "a/+"]
    for client in clients[20:]:
        client.subscribe("a/+", 1)
    clients[0].subscribe("b", 0)
    clients[0].unsubscribe("b")
    clients[0].subscribe("c", 0)
    one.nodes.change_filters(3, [], ["a/+", "d"])
    assert dict(one.nodes.interest_changes()) == {"b": False, "c": True}
    for client in clients[1:]:
        client.disconnect()
    wait_until(lambda: one.count("live_sessions") == 1)
    assert dict(one.nodes.interest_changes()) == {"$share/g/a/+": True}
    assert one.nodes.members_online(["$share/g/a/+", "$share/h/a"]) == [1, 0]
    clients[0].disconnect()
    wait_until(lambda: one.count("live_sessions") == 0)
    assert dict(one.nodes.interest_changes()) == {
        "a/+": False,
        "$share/g/a/+": False,
        "c": False,
    }
    assert one.nodes.all_interest() == []


def test_many_filters_come_and_go(start_engine: StartEngine) -> None:
    one = start_engine(linked=LINKED)
    filters = [f"{each}/+/x" for each in range(20_000)]
    one.nodes.change_filters(2, [], filters)
    one.nodes.change_filters(2, filters[:1], filters)
    one.nodes.change_filters(5, [], filters[:10])
    assert one.count("subscriptions") == 0
    publisher = connected(one)
    publisher.publish("7/a/x")
    assert one.count("messages_to_nodes") == 2
    one.nodes.drop_node(2)
    publisher.publish("7/a/x")
    assert one.count("messages_to_nodes") == 3
    one.nodes.drop_node(5)
    publisher.publish("7/a/x")
    assert one.count("messages_to_nodes") == 3


def test_what_is_wrong_is_said(start_engine: StartEngine) -> None:
    one = start_engine(linked=LINKED, subscriptions_total_max=3)
    with pytest.raises(UsageError, match="node is 16, must be 0 to 15"):
        one.nodes.change_filters(NODES_MAX, [], ["a"])
    with pytest.raises(UsageError, match="a shared group is changed with change_groups"):
        one.nodes.change_filters(0, [], ["$share/g/a"])
    with pytest.raises(UsageError, match="a/#/b"):
        one.nodes.change_filters(0, [], ["a", "a/#/b"])
    with pytest.raises(RefusedError, match="subscriptions_total_max, 3"):
        one.nodes.change_filters(0, [], ["a", "b", "c", "d"])
    with pytest.raises(UsageError, match="no shared group of a node"):
        one.nodes.change_groups(0, [("a", 1)])
    with pytest.raises(UsageError, match="no shared group of a node"):
        one.nodes.change_groups(0, [("$share/g/a", -2)])
    with pytest.raises(RefusedError, match="more groups than subscriptions_total_max"):
        one.nodes.change_groups(0, [(f"$share/g/{each}", 1) for each in range(4)])
    with pytest.raises(UsageError, match="reason is 16"):
        one.nodes.settle(0, 0x10)
    with pytest.raises(UsageError, match="before the engine starts"):
        NodeAccess(one.engine)
    one.nodes.poke()
    assert one.nodes.take(60) == []
