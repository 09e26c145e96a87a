"""A store that cannot be read for a moment: what was to be done with what it has is done when it can be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster.test_keeping import Nodes, client
from cluster.test_unknown_sessions import at, is_present
from waiting import WAIT_S, until

from tidemq.cluster.moves import DONE
from tidemq.errors import StoreError


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        made = Nodes(tmp_path, stack)
        await made.meet("one", "two")
        async with at(made, "one", "ann") as ann:
            await ann.subscribe("a/#", qos=1)
        await until(lambda: made.agree("one", "two"))
        yield made


class FailsOnce:
    """A store of which the next rows of a family cannot be read."""

    def __init__(self, store: Any, family: str) -> None:
        self._store, self._family = store, family
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if family == self._family and keys and not self.failed:
            self.failed += 1
            raise StoreError("a block cannot be read, this time")
        found: list[bytes | None] = self._store.get_many(family, keys)
        return found


async def test_a_session_that_cannot_be_read_at_first_is_taken_all_the_same(nodes: Nodes) -> None:
    adoption = nodes.keepers["two"].moves._adoption
    adoption._store = store = FailsOnce(adoption._store, "subscription")
    async with at(nodes, "two", "ann") as ann, client(nodes.brokers["one"], "bob") as bob:
        assert store.failed
        assert is_present(ann)
        await bob.publish("a/1", b"first", qos=1)
        async with asyncio.timeout(WAIT_S):
            assert (await anext(ann.messages)).payload == b"first"


async def test_what_came_for_a_client_is_told_when_it_can_be_read(nodes: Nodes) -> None:
    nodes.links.dropped.add(DONE)  # so the old home goes on to take messages for the session
    async with at(nodes, "two", "ann") as ann, client(nodes.brokers["one"], "bob") as bob:
        telling = nodes.keepers["two"].telling
        telling._store = store = FailsOnce(telling._store, "queue")
        await bob.publish("a/1", b"first", qos=1)
        await until(lambda: store.failed)
        nodes.links.dropped.clear()
        async with asyncio.timeout(WAIT_S):
            assert (await anext(ann.messages)).payload == b"first"
