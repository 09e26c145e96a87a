"""Sessions that both sides of a split have, where what one side does crosses what the other one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cluster.test_keeping import Nodes
from cluster.test_splits import begin_split, connect, home
from waiting import until

from tidemq.engine.door.figures import Inquiry, InquiryKind


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


async def end_session(nodes: Nodes, name: str) -> None:
    """An administrator ends ann's session at a node, as soon as that has it."""
    monitor = nodes.brokers[name].monitor
    assert monitor is not None

    async def ends() -> bool:
        await monitor.questions.ask(0, Inquiry(kind=InquiryKind.END, text="ann"))
        return home(nodes, name) == 0

    await until(ends, "it has ended")


async def test_a_connect_while_the_session_is_brought_in_is_one(nodes: Nodes) -> None:
    """It is later than that on the other side, and than the takeover."""
    two = (await begin_split(nodes))[2]
    keeper = nodes.keepers["two"]
    moves, arrived = keeper.moves, keeper.moves.arrived

    def arrives_late(client: str, here: bool) -> None:
        coming = moves._coming.get(client)
        if coming is not None and not coming.waiting:
            keeper.ask(lambda: arrives_late(client, here))
        else:
            arrived(client, here)

    moves.arrived = arrives_late  # type: ignore[method-assign]
    before = await connect(nodes, "one")
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    ann = await connect(nodes, "two")
    row = nodes.ask("two", lambda keeper: keeper.rows.sessions.get("ann", None)).row
    assert row.connected == row.epoch
    nodes.links.cut.clear()
    await asyncio.to_thread(before.expect_closed, 0x9C)
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {two})
    await asyncio.to_thread(ann.ping)


async def test_what_ends_without_its_client_on_the_other_side_is_no_later_connect(nodes: Nodes) -> None:
    _, one, two = await begin_split(nodes)
    ann = await connect(nodes, "one")
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await end_session(nodes, "two")
    nodes.links.cut.clear()
    await until(lambda: home(nodes, "two") == one, "it goes on")
    await until(lambda: nodes.agree("one", "two"))
    await asyncio.to_thread(ann.ping)
    assert [each for each, _ in nodes.ask("two", lambda keeper: keeper.rows.filters("ann"))] == ["a/#"]


async def test_nothing_is_left_of_a_session_that_has_ended_on_the_other_side(nodes: Nodes) -> None:
    """Whose engine says last that the connection is over: that is no session."""
    ann, _, two = await begin_split(nodes)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await end_session(nodes, "two")
    nodes.links.cut.clear()
    await asyncio.to_thread(ann.expect_closed, 0x8E)
    await until(lambda: nodes.ask("one", lambda keeper: keeper.conversion.epoch("ann")) is None)
    await until(lambda: nodes.agree("one", "two"))
    assert {home(nodes, name) for name in ("one", "two")} == {0}
