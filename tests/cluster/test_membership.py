"""Nodes that are members no more: forgotten while they are away, told so, and new when they come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster.nodes import START_NS, make_node, say
from cluster.test_host import Cluster, client
from cluster.test_status import run, states, status
from waiting import until

from tidemq.broker import Broker
from tidemq.cluster.members import SUSPECT_S
from tidemq.cluster.membership import DROP_S, Membership, Patience, struck_word
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Clear, Operation
from tidemq.errors import ClusterError
from tidemq.testing.ports import free_port

LATE_S = SUSPECT_S + 0.1


class NoLinks:
    """Who is dropped."""

    def __init__(self) -> None:
        self.dropped: list[int] = []

    def drop(self, incarnation: int) -> None:
        self.dropped.append(incarnation)


def written(node: Node, *operations: Operation) -> bytes:
    record = node.write(operations)
    node.rows.take_changes()
    node.synced(node.rows.vector)
    return record.encoded


def membership_of(node: Node, patience: Patience | None = None) -> tuple[Membership, NoLinks]:
    links: Any = NoLinks()

    def write(operations: list[Operation]) -> None:
        written(node, *operations)

    return Membership(node, links, write, lambda _applied, _address: None, patience or Patience()), links


def three_nodes() -> list[Node]:
    nodes = [make_node(index, 3) for index in range(3)]
    for node in nodes:
        say(node, [each for each in nodes if each is not node])
    return nodes


def test_a_node_that_is_forgotten_holds_up_no_log_any_more() -> None:
    one, two, _ = three_nodes()
    text = written(one, Clear("t", one.stamp()))
    two.receive(text)
    two.synced(two.rows.vector)
    say(two, [one])
    assert list(one.rows.log.of(1))  # the third node may want it
    membership, links = membership_of(one)
    assert membership.forget("n3", LATE_S, settled={3}) == "n3 (0000000000000003)"
    membership.advance(LATE_S)
    membership.advance(LATE_S + DROP_S + 0.1)
    assert (one.members.incarnations, links.dropped) == ([1, 2], [3])
    two.receive(one.record(1, 2) or b"")
    two.synced(two.rows.vector)
    assert two.members.incarnations == [1, 2]
    say(two, [one])
    assert not one.rows.log.of(1)
    assert list(one.rows.lines()) == list(two.rows.lines())


def test_nobody_who_may_be_there_is_forgotten() -> None:
    one, two, three = three_nodes()
    membership, _ = membership_of(one)

    def refused(who: str, now: float = LATE_S, settled: tuple[int, ...] = (2, 3)) -> str:
        with pytest.raises(ClusterError) as found:
            membership.forget(who, now, settled)
        return str(found.value)

    assert "n2 (0000000000000002) is alive" in refused("n2", 0.1)
    assert "this node" in refused("n1")
    assert "accepted: n1 (0000000000000001), n2 " in refused("n4")
    assert "are still being taken over" in refused("n3", settled=())
    two.hear(three.beat(LATE_S, START_NS), LATE_S)
    one.hear(two.beat(LATE_S, START_NS), LATE_S)
    assert "n2 hears it" in refused("0000000000000003")
    one.rows.members.put(2, None, "n3")
    assert "2 nodes of the name 'n3'" in refused("n3")
    assert [each for each, _, _ in one.rows.struck.all()] == []


def test_what_is_forgotten_stays_out_and_is_told_so() -> None:
    one, _, three = three_nodes()
    membership, _ = membership_of(one)
    membership.forget("n3", LATE_S, settled={3})
    with pytest.raises(ClusterError, match="no member of the cluster"):
        one.hear(three.beat(LATE_S, START_NS), LATE_S)
    assert not one.members.is_live(3, 0.0)
    assert membership.refuses(3)
    assert not membership.refuses(2)
    with pytest.raises(ClusterError, match="a member no more already"):
        membership.forget("n3", LATE_S, settled={3})
    theirs, _ = membership_of(three)
    assert theirs.verdict == ""
    theirs.hear_struck(1, struck_word(one), 0.0)
    assert "this node, n3 (0000000000000003), is no member of the cluster any more" in theirs.verdict


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


async def start_three(cluster: Cluster) -> list[Broker]:
    settings: dict[str, Any] = {"cluster_suspect_s": 2.0}
    started = [await cluster.start("one", admin_port=free_port(), **settings)]
    started += [await cluster.start(name, admin_port=free_port(), **settings) for name in ("two", "three")]
    await until(lambda: all(cluster.reached(name) == 2 for name in ("one", "two", "three")))
    return started


async def test_a_node_that_is_gone_for_good_is_forgotten(cluster: Cluster) -> None:
    one, two, three = await start_three(cluster)
    code, output = await run(one, "forget", "three", "--yes")
    assert (code, "is alive" in output) == (1, True), output
    await three.stop()
    async with client(two, "ann") as ann, client(one, "bob") as bob:
        await ann.subscribe("a/#", qos=1)
        for _ in range(5):
            await bob.publish("a/1", b"x", qos=1)

    async def is_forgotten() -> bool:  # once its sessions, of which there are none, are elsewhere
        return (await run(one, "forget", "three", "--yes"))[0] == 0

    await until(is_forgotten, "it may be forgotten", poll_s=0.2)
    for broker in (one, two):

        async def is_known(of: Broker = broker) -> bool:
            return set(await states(of)) == {"one", "two"} and (await status(of))["log_records"] == 0

        await until(is_known, "it is no member, and logs are short", poll_s=0.1)
    with pytest.raises(ClusterError, match="is no member of the cluster any more"):
        await cluster.start("three")
    again = await cluster.start("three")  # it begins anew
    await until(lambda: cluster.reached("three") == 2)
    async with client(again, "ann") as ann:
        assert (await anext(ann.messages)).payload == b"x"
