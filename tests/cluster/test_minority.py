"""`cluster_split = "pause_minority"`: only who hears more than half of the nodes goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster.test_host import Cluster
from cluster.test_keeping import Nodes, client, receive
from cluster.test_status import get
from conformance.kit import Client as MqttClient
from conformance.kit import connected, kept
from conformance.packets import PUBREC, SUBACK, publish, subscribe
from waiting import until

from tidemq.client import Client, PublishError, ServerRefusedError
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.members import Heartbeat, Members
from tidemq.cluster.minority import Minority, Split
from tidemq.testing.ports import free_port

SUSPECT_S = 1.5


def make_beat(incarnation: int, *, hears: bool = True) -> Heartbeat:
    """`hears`: the first node, whose view it is."""
    peers = {1: (1, hears)}
    return Heartbeat("c", 1, f"n{incarnation}", incarnation, 1, incarnation, "here", 0, 0, 0, {}, peers=peers)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


def minority(count: int, split: Split = "pause_minority") -> tuple[Minority, Members]:
    """Of a node that heard all others at 0 s."""
    clock = HybridClock(lambda: 0, skew_s_max=5, last_ns=0)
    members = Members(make_beat(1), clock, suspect_s=SUSPECT_S)
    for other in range(2, count + 1):
        members.hear(make_beat(other), 0.0)
    return Minority(members, split), members


@pytest.mark.parametrize(
    ("count", "heard", "pauses"),
    [(1, 1, False), (2, 2, False), (2, 1, True), (3, 2, False), (3, 1, True), (4, 3, False), (4, 2, True)],
)
def test_who_hears_more_than_half_goes_on(count: int, heard: int, pauses: bool) -> None:
    found, members = minority(count)
    assert not found.look(0.1)
    for other in range(2, heard + 1):
        members.hear(make_beat(other), 2.0)
    assert found.look(2.0) == pauses
    assert found.pauses == pauses
    assert not found.look(2.0)  # it began before
    assert found.problem.startswith(f"{heard} of {count} nodes are in touch") == pauses


@pytest.mark.parametrize(("deaf", "pauses"), [((2,), False), ((2, 3), True)])
def test_who_hears_the_others_and_is_not_heard_is_on_the_smaller_side(
    deaf: tuple[int, ...], pauses: bool
) -> None:
    """It pauses before they count as dead: then it would take their sessions, as they take its own."""
    found, members = minority(3)
    for beat in range(1, 4):
        now = beat * 0.4
        assert not found.look(now)  # they may be about to hear it
        for other in (2, 3):
            members.hear(make_beat(other, hears=other not in deaf), now)
    assert found.look(1.5) == pauses
    assert members.live(1.5) == [1, 2, 3]
    assert found.problem.startswith("1 of 3 nodes are in touch") == pauses


def test_it_pauses_before_anybody_is_taken_for_dead() -> None:
    """Heartbeats of others come at different times: the first that are missed are one node's."""
    found, members = minority(3)
    members.hear(make_beat(3), 0.3)
    assert members.is_live(2, SUSPECT_S - 0.01)
    found.look(SUSPECT_S - 0.01)
    assert found.pauses


def test_it_goes_on_when_it_has_heard_all_that_are_there() -> None:
    """Or it would take the sessions of one that it is about to hear."""
    found, members = minority(3)
    assert found.look(2.0)
    members.hear(make_beat(2), 2.0)
    assert not found.look(2.1)
    assert found.pauses
    members.hear(make_beat(3), 2.4)
    found.look(2.0 + SUSPECT_S / 3 + 0.01)
    assert not found.pauses


def test_without_it_all_sides_go_on() -> None:
    found, _ = minority(3, "go_on")
    assert not found.look(60.0)
    assert not found.pauses


def home(nodes: Nodes, name: str, client_id: str) -> int:
    """Where a session is at home, as a node knows."""
    session = nodes.ask(name, lambda keeper: keeper.rows.sessions.get(client_id, None))
    return int(session.row.home)


async def test_the_smaller_side_stores_nothing_and_takes_nobody_s_sessions(nodes: Nodes) -> None:
    await nodes.meet("one", "two", "three", suspect_s=SUSPECT_S, split="pause_minority")
    one = nodes.brokers["one"]
    keeper = nodes.keepers["one"]
    for name, broker in nodes.brokers.items():
        async with client(broker, f"of {name}") as subscriber:
            await subscriber.subscribe("a/#", qos=1)
    await until(partial(nodes.agree, "one", "two", "three"))
    url = f"mqtt://127.0.0.1:{one.ports[0]}"
    async with Client(url) as bob, Client(url) as eve:
        await eve.subscribe("a/#")
        nodes.links.cut.add(keeper.node.incarnation)
        await until(lambda: nodes.ask("one", lambda keeper: keeper.minority.pauses), "it pauses")
        with pytest.raises(PublishError) as refused:
            await bob.publish("a/1", b"not stored", qos=1)
        assert refused.value.reason == 0x83
        await bob.publish("a/1", b"goes on")
        assert await receive(eve) == b"goes on"
        for name in ("of one", "of two"):
            with pytest.raises(ServerRefusedError) as unavailable:
                async with client(one, name, reconnect=False):
                    pass
            assert unavailable.value.reason == 0x88
        assert nodes.count("one", "entry") == 0
        assert [each for each in keeper.problems if each.startswith("1 of 3 nodes are in touch")]
    await until(lambda: home(nodes, "two", "of one") != keeper.node.incarnation, "it is taken over")
    async with client(nodes.brokers["two"], "ann") as ann:
        await ann.publish("a/1", b"stored", qos=1)
    nodes.links.cut.clear()
    await until(lambda: not keeper.minority.pauses, "it goes on")
    await until(partial(nodes.agree, "one", "two", "three"))
    assert keeper.moves.counts["cluster_sessions_taken_over"] == 0
    assert keeper.counts["cluster_pauses"] == 1
    async with client(one, "of one") as ann:
        await ann.publish("a/1", b"x", qos=1)


async def test_a_node_that_pauses_is_not_ready_and_grants_nothing_that_is_stored(cluster: Cluster) -> None:
    settings: dict[str, Any] = {"cluster_split": "pause_minority", "cluster_suspect_s": 2.0}
    one = await cluster.start("one", admin_port=free_port(), **settings)
    two = await cluster.start("two", **settings)
    await until(lambda: not cluster.hosts["one"].problems(), "it goes on")

    def begin() -> tuple[MqttClient, MqttClient, MqttClient]:
        ann = connected(one, client_id="ann", **kept(5))
        ann.subscribe("a/#", qos=2)
        return ann, connected(one, 5), connected(one, 4)

    ann, bob, old = await asyncio.to_thread(begin)
    await two.stop()
    await until(cluster.hosts["one"].problems, "it pauses")
    code, text = await asyncio.to_thread(get, one, "/ready")
    problem = "1 of 2 nodes are in touch here, no more than half: what would have to be stored is refused"
    assert (code, json.loads(text)["problems"]) == (503, [problem])

    def ask() -> None:
        ann.send(subscribe(7, ("b", 1)))
        ann.expect(SUBACK, packet_id=7, reasons=[0x83])
        bob.subscribe("b", qos=1)  # its session is not stored
        bob.send(publish("a/1", b"refused", 2, 7))
        bob.expect(PUBREC, packet_id=7, reason=0x83)
        bob.publish("a/1", b"goes on", 0)
        assert ann.receive().payload == b"goes on"
        old.send(publish("a/1", b"refused", 1, 7, version=4))
        old.expect_closed()

    await asyncio.to_thread(ask)
    await cluster.start("two", **settings)

    async def is_ready() -> bool:
        return (await asyncio.to_thread(get, one, "/ready"))[0] == 200

    await until(is_ready, "it goes on", poll_s=0.1)


def test_a_node_that_starts_alone_pauses_until_it_hears_others() -> None:
    clock = HybridClock(time.time_ns, skew_s_max=5, last_ns=0)
    members = Members(make_beat(1), clock, before=(2, 3), suspect_s=SUSPECT_S)
    assert Minority(members, "pause_minority").look(0.0)
