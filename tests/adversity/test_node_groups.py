"""A shared group has members on several nodes: each message goes to one of them, wherever it is published."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import PUBACK, PUBLISH, PUBREC, publish
from mesh import meshed, wait_for_drain
from waiting import wait_until

from tidemq.errors import RefusedError

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine

LINKED = 512 * 1024
GROUP = "$share/g/a/+"
BOTH = pytest.mark.parametrize("reactors", [1, 2])


def members(engine: EngineUnderTest, count: int, text: str = GROUP) -> list[Client]:
    made = [connected(engine) for _ in range(count)]
    for each in made:
        each.subscribe(text, 1)
    return made


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.rest() if packet.kind == PUBLISH]


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_of_any_node(
    start_engine: StartEngine, reactors: int, qos: int
) -> None:
    engines = [start_engine(reactors, linked=LINKED) for _ in range(3)]
    with meshed(*engines) as mesh:
        there = [members(engine, count) for engine, count in zip(engines, (1, 2, 3), strict=True)]
        mesh.share_interest()
        for engine in engines:
            publisher = connected(engine)
            for number in range(120):
                publisher.publish("a/b", b"%d" % number, qos)
        wait_for_drain(*engines)
        found = [[payloads(client) for client in each] for each in there]
        every = sorted(itertools.chain.from_iterable(itertools.chain.from_iterable(found)))
        assert every == sorted(b"%d" % number for number in range(120) for _ in engines)
        shares = [sum(len(each) for each in at) for at in found]
        assert shares[0] < shares[2]  # 60 and 180 of 360 are to be expected
        assert min(shares) > 20


@BOTH
def test_where_nobody_is_the_message_goes_to_another_node(start_engine: StartEngine, reactors: int) -> None:
    one, other = start_engine(reactors, linked=LINKED), start_engine(reactors, linked=LINKED)
    with meshed(one, other) as mesh:
        [member] = members(other, 1)
        mesh.share_interest()
        publisher = connected(one)
        for number in range(20):
            publisher.publish("a/b", b"%d" % number, 1)
        wait_for_drain(one, other)
        assert payloads(member) == [b"%d" % number for number in range(20)]
        away = connected(one, **kept(5))
        away.subscribe(GROUP, 1)
        away.disconnect()
        mesh.share_interest()
        publisher.publish("a/b", b"still", 1)  # a member that is away has nothing of it
        wait_for_drain(one, other)
        assert payloads(member) == [b"still"]


@BOTH
def test_while_all_members_are_away_it_waits_where_one_is_at_home(
    start_engine: StartEngine, reactors: int
) -> None:
    one, other = start_engine(reactors, linked=LINKED), start_engine(reactors, linked=LINKED)
    with meshed(one, other) as mesh:
        member = connected(other, client_id="m", **kept(5))
        member.subscribe(GROUP, 1)
        member.disconnect()
        wait_until(lambda: other.count("live_connections") == 0)
        mesh.share_interest()
        publisher = connected(one)
        publisher.publish("a/b", b"x", 1)
        connected(other, client_id="m", **kept(5)).expect(PUBLISH, payload=b"x")


@BOTH
def test_own_members_are_preferred_where_told_so(start_engine: StartEngine, reactors: int) -> None:
    one = start_engine(reactors, linked=LINKED, prefers_own=True)
    other = start_engine(reactors, linked=LINKED)
    with meshed(one, other) as mesh:
        [here], [there] = members(one, 1), members(other, 1)
        mesh.share_interest()
        publisher = connected(one)
        for number in range(50):
            publisher.publish("a/b", b"%d" % number, 1)
        assert len(payloads(here)) == 50
        assert payloads(there) == []
        here.disconnect()
        wait_until(lambda: one.nodes.members_online([GROUP]) == [0])
        publisher.publish("a/b", b"x", 1)
        assert payloads(there) == [b"x"]


@BOTH
@pytest.mark.parametrize(("qos", "answer"), [(1, PUBACK), (2, PUBREC)])
def test_where_the_last_member_has_just_gone_it_is_refused(
    start_engine: StartEngine, reactors: int, qos: int, answer: int
) -> None:
    one, other = start_engine(reactors, linked=LINKED), start_engine(reactors, linked=LINKED)
    with meshed(one, other) as mesh:
        [member] = members(other, 1)
        mesh.share_interest()
        member.unsubscribe(GROUP)
        publisher = connected(one)
        publisher.send(publish("a/b", b"x", qos, 1, 5))
        publisher.expect(answer, packet_id=1, reason=0x83)
        mesh.share_interest()
        publisher.send(publish("a/b", b"x", qos, 2, 5))
        publisher.expect(answer, packet_id=2, reason=0x10)  # no matching subscribers


@BOTH
def test_plain_subscribers_and_several_groups_get_their_own(start_engine: StartEngine, reactors: int) -> None:
    one, other = start_engine(reactors, linked=LINKED), start_engine(reactors, linked=LINKED)
    with meshed(one, other) as mesh:
        [plain], [first], [second] = (members(other, 1, text) for text in ("a/b", GROUP, "$share/h/#"))
        mesh.share_interest()
        publisher = connected(one)
        for number in range(20):
            publisher.publish("a/b", b"%d" % number, 1 + number % 2)
        wait_for_drain(one, other)
        for each in (plain, first, second):
            assert payloads(each) == [b"%d" % number for number in range(20)]


def test_a_node_that_is_dropped_has_no_members(start_engine: StartEngine) -> None:
    one = start_engine(linked=LINKED)
    one.nodes.change_groups(0, [(GROUP, 3), ("$share/h/a/b", 0)])
    publisher = connected(one)
    publisher.publish("a/b", b"x")
    assert one.count("messages_to_nodes") == 2
    one.nodes.drop_node(0)
    publisher.publish("a/b", b"x")
    assert one.count("messages_to_nodes") == 2
    assert one.count("subscriptions") == 0
    assert one.nodes.all_interest() == []


def test_groups_of_a_node_change_and_go_however_many_there_are(start_engine: StartEngine) -> None:
    """Only what is new counts against `subscriptions_total_max`."""
    one = start_engine(linked=LINKED, subscriptions_total_max=3)
    known = [f"$share/g{each}/a/b" for each in range(3)]
    one.nodes.change_groups(0, [(text, 0) for text in known])
    one.nodes.change_groups(0, [(text, 2) for text in known])
    one.nodes.change_groups(0, [(known[0], -1), ("$share/other/a/b", 1)])
    with pytest.raises(RefusedError, match="subscriptions_total_max"):
        one.nodes.change_groups(0, [(known[0], 1), (known[1], 1)])
    connected(one).publish("a/b", b"x")
    assert one.count("messages_to_nodes") == 3
    one.nodes.drop_node(0)
    assert one.nodes.all_interest() == []
    one.nodes.change_groups(0, [(text, 0) for text in known])


def test_topics_of_this_node_go_to_members_here(start_engine: StartEngine) -> None:
    one = start_engine(linked=LINKED)
    one.nodes.change_groups(0, [("$share/g/$SYS/#", 3), ("$share/h/$SYS/#", 1)])
    [member] = members(one, 1, "$share/g/$SYS/#")
    for _ in range(10):
        one.engine.publish("$SYS/x", b"y")
    assert payloads(member) == [b"y"] * 10
    assert one.count("messages_to_nodes") == 0
