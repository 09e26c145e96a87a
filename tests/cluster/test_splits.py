"""Both sides of a split have gone on: what clients see when the nodes hear each other again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from cluster.test_keeping import Nodes, client, receive
from conformance.kit import connected, kept
from waiting import until

SUSPECT_S = 1.0


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


def home(nodes: Nodes, name: str) -> int:
    """Where ann's session is at home, as a node knows."""
    session = nodes.ask(name, lambda keeper: keeper.rows.sessions.get("ann", None))
    return int(session.row.home) if session is not None else 0


async def split(nodes: Nodes) -> None:
    """Ann is connected to one; two takes her session over; then both hear each other again."""
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    await until(lambda: home(nodes, "two") == one)
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    nodes.links.cut.clear()


@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_is_told_to_come_again_not_that_it_came_elsewhere(nodes: Nodes, version: int) -> None:
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    ann = await asyncio.to_thread(
        partial(connected, nodes.brokers["one"], version, client_id="ann", **kept(version))
    )
    await asyncio.to_thread(ann.subscribe, "a/#", qos=1)
    await split(nodes)
    await asyncio.to_thread(ann.expect_closed, *([0x9C] if version == 5 else []))


async def test_our_own_client_comes_back_by_itself(nodes: Nodes) -> None:
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
        await split(nodes)
        await until(lambda: home(nodes, "one") == nodes.keepers["one"].node.incarnation)
        await until(lambda: nodes.keepers["one"].moves.counts["cluster_sessions_taken"] == 1, "it came back")
        async with client(one, "bob") as bob:
            await bob.publish("a/1", b"x", qos=1)
        assert await receive(ann) == b"x"
