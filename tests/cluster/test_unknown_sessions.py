"""A client whose session a node does not know yet, or still knows: it asks the others first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from cluster.test_keeping import Nodes
from waiting import WAIT_S, until

from tidemq.client import Client, ServerRefusedError
from tidemq.cluster.moves import ASK, SERVER_UNAVAILABLE

KEPT_S = 3600
ROUNDS = 15
GIVEN_UP_S = 5.0  # after which a CONNECT that is not decided is refused


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


def at(nodes: Nodes, node: str, client_id: str, expiry_s: int = KEPT_S, *, clean: bool = False) -> Client:
    """Which does not come back by itself, so that who loses its session loses it."""
    url = f"mqtt://127.0.0.1:{nodes.brokers[node].ports[0]}"
    return Client(url, client_id=client_id, clean_start=clean, session_expiry_s=expiry_s, reconnect=False)


def is_present(client: Client) -> bool:
    assert client.connack is not None
    return client.connack.session_present


async def let_in(client: Client) -> bool:
    """Connects; False: it is to come again, for its connection to the other node is about to begin."""
    try:
        await client.connect()
    except ServerRefusedError as error:
        if error.reason != SERVER_UNAVAILABLE:
            raise
        return False
    return True


async def test_a_session_that_has_just_begun_is_found(nodes: Nodes) -> None:
    await nodes.meet("one", "two", "three")
    for number in range(ROUNDS):
        first = at(nodes, "one", f"c{number}")
        await first.connect()
        async with at(nodes, "two", f"c{number}") as second:
            assert is_present(second)
            await second.subscribe("a/#", qos=1)
        await first.disconnect(wait=False)
    await until(lambda: nodes.agree("one", "two", "three"))
    assert nodes.count("three", "subscription") == ROUNDS


async def test_a_session_that_has_just_ended_is_not(nodes: Nodes) -> None:
    await nodes.meet("one", "two")
    for _ in range(ROUNDS):
        async with at(nodes, "one", "c") as client:
            await client.subscribe("a/#", qos=1)
        async with at(nodes, "one", "c", 0, clean=True):
            pass
        async with at(nodes, "two", "c") as client:
            assert not is_present(client)
        async with at(nodes, "one", "c", 0, clean=True):
            pass
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("two", "session") == nodes.count("two", "subscription") == 0


async def test_one_that_ends_with_its_connection_ends_where_its_client_comes_elsewhere(nodes: Nodes) -> None:
    await nodes.meet("one", "two")
    first = at(nodes, "one", "c", 0)
    await first.connect()
    before = nodes.brokers["one"].counters()["connections_closed"]
    async with at(nodes, "two", "c", 0) as second:
        assert not is_present(second)
        await until(lambda: nodes.brokers["one"].counters()["connections_closed"] > before)
    await first.disconnect(wait=False)


async def test_of_two_that_come_at_once_one_has_the_session(nodes: Nodes) -> None:
    """Whoever is let in last has what it subscribes to; nobody waits for ever."""
    await nodes.meet("one", "two")
    for number in range(ROUNDS):
        both = [at(nodes, each, f"c{number}") for each in ("one", "two")]
        came = await asyncio.wait_for(
            asyncio.gather(*(each.connect() for each in both), return_exceptions=True), WAIT_S
        )
        assert all(each is None or isinstance(each, ServerRefusedError) for each in came), came
        for each in both:
            await each.disconnect(wait=False)
        last = at(nodes, "one", f"c{number}")
        await until(partial(let_in, last))
        assert is_present(last)
        await last.subscribe("a/#", qos=1)
        await last.disconnect()
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("two", "subscription") == ROUNDS


async def test_who_does_not_answer_may_have_the_session(nodes: Nodes) -> None:
    """So the client is to come again; unless it wants a new session, for which a second is waited."""
    nodes.decision_s = GIVEN_UP_S
    await nodes.meet("one", "two", suspect_s=1.0)
    nodes.links.dropped.add(ASK)
    assert not await let_in(at(nodes, "one", "c"))
    counts = nodes.keepers["one"].moves.counts
    assert counts["cluster_sessions_unanswered"] == 0
    async with at(nodes, "one", "c", clean=True) as client:
        assert not is_present(client)
    assert counts["cluster_sessions_unanswered"] == 1


async def test_who_does_not_hear_a_node_is_not_waited_for_by_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take over what is here, and never answer."""
    await nodes.meet("one", "two", suspect_s=1.0)
    nodes.links.dropped.add(ASK)
    members = nodes.keepers["one"].node.members
    monkeypatch.setattr(members, "is_heard_by", lambda _: False)
    async with at(nodes, "one", "c") as client:
        assert not is_present(client)
    assert nodes.keepers["one"].moves.counts["cluster_sessions_unanswered"] == 1
