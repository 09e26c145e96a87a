"""Retained messages: which of two changes counts, where the engine, its store and other nodes have them in
another order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster.test_keeping import Nodes, client
from waiting import WAIT_S, until

from tidemq.client import Properties

SUSPECT_S = 1.0


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


async def retain(nodes: Nodes, name: str, payload: bytes, **properties: Any) -> None:
    async with client(nodes.brokers[name], "bob") as bob:
        await bob.publish("a/1", payload, qos=1, retain=True, properties=Properties(**properties))


async def test_what_expires_on_one_side_does_not_take_with_it_what_is_retained_on_the_other(
    nodes: Nodes,
) -> None:
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one = nodes.keepers["one"].node.incarnation
    await retain(nodes, "one", b"expires", message_expiry_s=3)
    await until(lambda: nodes.agree("one", "two"))
    nodes.links.cut.add(one)
    await retain(nodes, "two", b"stays")
    await until(lambda: nodes.count("one", "retained") == 0, "it has expired")
    nodes.links.cut.clear()
    await until(lambda: nodes.agree("one", "two"))
    for name in ("one", "two"):
        retained = nodes.ask(name, lambda keeper: keeper.rows.retained.get("a/1", None))
        assert retained.message.endswith(b"stays")


async def test_what_is_retained_while_what_cleared_its_topic_is_being_stored_stays(nodes: Nodes) -> None:
    """Its id is older than the moment in which the store has come to what cleared it."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    await retain(nodes, "one", b"before")
    one, come, may_go_on = nodes.brokers["one"], threading.Event(), threading.Event()
    convert = nodes.keepers["one"].conversion._acts["retain"]

    def late(topic: bytes, value: bytes | None, *rest: Any) -> Any:
        if value is None:
            come.set()
            assert may_go_on.wait(WAIT_S)
        return convert(topic, value, *rest)

    nodes.ask("one", lambda keeper: keeper.conversion._acts.update(retain=late))
    async with client(one, "cat") as cat:
        clears = asyncio.create_task(retain(nodes, "one", b""))
        assert await asyncio.to_thread(come.wait, WAIT_S)
        count = one.counters()["messages_retained"]
        later = asyncio.create_task(cat.publish("a/1", b"after", qos=1, retain=True))
        await until(lambda: one.counters()["messages_retained"] > count, "the engine has it")
        may_go_on.set()
        await clears
        await later
    await until(lambda: nodes.agree("one", "two"))
    for name in ("one", "two"):
        retained = nodes.ask(name, lambda keeper: keeper.rows.retained.get("a/1", None))
        assert (retained.message or b"").endswith(b"after")
