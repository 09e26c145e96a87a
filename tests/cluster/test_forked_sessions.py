"""Sessions that both sides of a split have had: counted once on each node, and reported to plugins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from cluster.nodes import make_node
from cluster.test_keeping import Nodes, client
from cluster.test_splits import SUSPECT_S, home
from conformance.kit import Client, connected, kept
from waiting import until

from tidemq import SessionForked, hookimpl
from tidemq.cluster import applying
from tidemq.cluster.keeping import ClusterKeeper
from tidemq.cluster.node import Node
from tidemq.cluster.operations import PutSession, Stamp

COUNTER = "cluster_sessions_forked"


class Sees:
    """A plugin that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[SessionForked] = []

    @hookimpl
    async def session_forked(self, sessions: list[SessionForked]) -> None:
        await asyncio.sleep(0)
        self.seen += sessions


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


async def begin_split(nodes: Nodes, *, until_cut: bool = False) -> dict[str, Sees]:
    """Ann, who has been on one, is taken by two, which does not hear one any more; `until_cut`: nor that she
    has gone. Gives the plugins.
    """
    seen = {name: Sees() for name in ("one", "two")}
    nodes.plugins = {name: [each] for name, each in seen.items()}
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("a/#", qos=1)
        await until(lambda: home(nodes, "two") == one)
        if until_cut:
            nodes.links.cut.add(one)
    if not until_cut:
        await until(lambda: nodes.ask("two", has_gone), "and that it has gone")
        await until(lambda: nodes.agree("one", "two"))
        nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    return seen


def has_gone(keeper: ClusterKeeper) -> bool:
    """Whether a node knows that ann's connection has ended."""
    session = keeper.rows.sessions.get("ann", None)
    return session is not None and session.row.ends_at_ms > 0


def is_doubted(keeper: ClusterKeeper) -> bool:
    """Whether a node knows that ann may hold packet identifiers of messages that it knows nothing of."""
    session = keeper.rows.sessions.get("ann", None)
    return session is not None and session.row.unasked


def told(nodes: Nodes, goes_on: str) -> dict[str, list[SessionForked]]:
    """What plugins are to see on each node."""
    incarnation = f"{nodes.keepers[goes_on].node.incarnation:016x}"
    return {
        name: [SessionForked("ann", goes_on, incarnation, is_here=name == goes_on)] for name in ("one", "two")
    }


@pytest.mark.parametrize("last", ["one", "two"])
async def test_a_client_of_both_sides_goes_on_where_it_came_last_and_both_nodes_say_so(
    nodes: Nodes, last: str
) -> None:
    """However often it came to the other side."""
    seen = await begin_split(nodes)
    other = "two" if last == "one" else "one"
    for _ in range(3):
        async with client(nodes.brokers[other], "ann"):
            pass
    stays = await asyncio.to_thread(partial(connected, nodes.brokers[other], 5, client_id="ann", **kept(5)))
    async with client(nodes.brokers[last], "ann") as ann:
        nodes.links.cut.clear()
        wanted = told(nodes, last)
        await until(lambda: {name: each.seen for name, each in seen.items()} == wanted, "both are told")
        await until(lambda: nodes.agree("one", "two"))
        await asyncio.to_thread(stays.expect_closed, 0x9C)
        async with client(nodes.brokers[last], "bob") as bob:
            await bob.publish("a/1", b"x", qos=1)
        async with asyncio.timeout(10):
            assert (await anext(aiter(ann.messages))).payload == b"x"
    again = Client(nodes.brokers[other].port, 5)
    connack = await asyncio.to_thread(partial(again.connect, "ann", **kept(5)))
    assert connack.session_present
    again.drop()
    assert {name: each.seen for name, each in seen.items()} == told(nodes, last)
    counts = {name: nodes.ask(name, lambda keeper: keeper.node.applier.counts[COUNTER]) for name in seen}
    assert counts == {"one": 1, "two": 1}
    await until(lambda: all(is_doubted(nodes.keepers[each]) for each in seen), "she is asked what she holds")


async def test_a_session_that_the_other_side_alone_has_given_to_a_connect_has_not_forked(
    nodes: Nodes,
) -> None:
    seen = await begin_split(nodes)
    async with client(nodes.brokers["two"], "ann"):
        nodes.links.cut.clear()
        await until(lambda: home(nodes, "one") == nodes.keepers["two"].node.incarnation)
        await until(lambda: nodes.agree("one", "two"))
    assert not any(each.seen for each in seen.values())


async def test_a_session_whose_client_went_from_the_one_side_to_the_other_has_forked(nodes: Nodes) -> None:
    """As does a device that loses its connection, and comes to a node that does not hear of that."""
    seen = await begin_split(nodes, until_cut=True)
    async with client(nodes.brokers["two"], "ann"):
        nodes.links.cut.clear()
        wanted = told(nodes, "two")
        await until(lambda: {name: each.seen for name, each in seen.items()} == wanted, "both are told")


# --- what is counted, over rows alone --------------------------------------------------------------


def write(node: Node, time: int, *, begins: bool = False, client_id: str = "ann") -> bytes:
    """The record of a CONNECT."""
    epoch = Stamp(time, node.incarnation)
    record = node.write(
        [PutSession(client_id, epoch, node.incarnation, begins, 0, 60, 0, 0, 0, -1, connected=epoch)]
    )
    node.rows.take_changes()
    return record.encoded


def hear(node: Node, *records: bytes) -> tuple[list[str], int]:
    """Whose forks are to be told of now, and how many there were so far."""
    node.applier.forget_changes()
    for each in records:
        node.receive(each)
    node.rows.take_changes()
    return node.applier.forks, node.applier.counts[COUNTER]


def pair(*clients: str) -> tuple[Node, Node]:
    """Two nodes that know of these sessions."""
    one, two = make_node(0, 2), make_node(1, 2)
    for client_id in clients or ("ann",):
        assert hear(two, write(one, 1, client_id=client_id)) == ([], 0)
    return one, two


def test_a_fork_is_counted_once_however_many_rows_each_side_brings() -> None:
    one, two = pair()
    from_one = [write(one, time) for time in (10, 30, 50)]
    from_two = [write(two, time) for time in (20, 40, 60)]
    forks, count = hear(one, *from_two)
    assert (set(forks), count) == ({"ann"}, 1)
    assert hear(two, *from_one) == (["ann"], 1)


def test_what_was_told_is_told_again_where_it_is_not_true_any_more() -> None:
    """The next row of the other side counts more."""
    one, two = pair()
    write(one, 20)
    lost, won, after = (write(two, time) for time in (10, 30, 40))
    assert hear(one, lost) == (["ann"], 1)
    assert hear(one, won) == (["ann"], 1)
    assert hear(one, after) == ([], 1)


def test_a_session_that_is_forked_again_is_counted_again() -> None:
    one, two = pair()
    for split in (1, 2):
        from_one, from_two = write(one, 100 * split), write(two, 100 * split + 50)
        assert hear(one, from_two) == (["ann"], split)
        assert hear(two, from_one) == (["ann"], split)


def test_a_session_that_began_anew_on_the_other_side_has_forked_one_that_went_on_knowing_it_has_not() -> None:
    one, two = pair()
    assert hear(two, write(one, 20)) == ([], 0)
    assert hear(one, write(two, 30)) == ([], 0)
    write(two, 40)
    assert hear(two, write(one, 50, begins=True)) == (["ann"], 1)


def test_what_a_node_does_itself_leaves_what_is_to_be_told() -> None:
    one, two = pair()
    write(one, 20)
    assert hear(one, write(two, 10)) == (["ann"], 1)
    write(one, 30)
    assert one.applier.forks == ["ann"]


def test_of_forks_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was forgotten is counted again when its other side brings one row more."""
    monkeypatch.setattr(applying, "FORKS_MAX", 2)
    clients = ("ann", "bob", "cem")
    one, two = pair(*clients)
    for client_id in clients:
        write(one, 100, client_id=client_id)
    assert hear(one, *(write(two, 10, client_id=each) for each in clients)) == (list(clients), 3)
    assert hear(one, write(two, 20, client_id="cem")) == ([], 3)
    assert hear(one, write(two, 20, client_id="ann")) == (["ann"], 4)
