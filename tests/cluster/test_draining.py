"""A node leaves: its sessions go to the others first, clients are told, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from cluster.test_host import Cluster, client, publish, receive
from cluster.test_status import get, run, states, status
from conformance.kit import Client as RawClient
from conformance.kit import connected, refused
from conformance.packets import connect
from waiting import WAIT_S, until

from tidemq.broker import Broker
from tidemq.client import Client
from tidemq.errors import ClusterError, TideMQError
from tidemq.testing.ports import free_port

MESSAGES_MIN = 50  # before the node begins to leave, and after


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


async def start(cluster: Cluster, *names: str, **more: Any) -> list[Broker]:
    started = [await cluster.start(name, admin_port=free_port(), **more) for name in names]
    await until(lambda: all(cluster.reached(name) == len(names) - 1 for name in names))
    return started


class Publisher:
    """Publishes numbers one after the other, at QoS 1 and 2 in turns."""

    def __init__(self, broker: Broker) -> None:
        self._url = f"mqtt://127.0.0.1:{broker.ports[0]}"
        self._ends = False
        self.acknowledged: list[bytes] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        options: dict[str, Any] = {"client_id": "pub", "clean_start": False, "session_expiry_s": 3600}
        async with Client(self._url, **options) as made:
            number = 0
            while not self._ends:
                with suppress(TideMQError):  # refused: nobody has promised anything
                    await made.publish("a/1", b"%d" % number, qos=1 + number % 2)
                    self.acknowledged.append(b"%d" % number)
                number += 1

    async def more(self) -> None:
        wanted = len(self.acknowledged) + MESSAGES_MIN
        await until(lambda: len(self.acknowledged) >= wanted, "messages are acknowledged")

    async def end(self) -> None:
        self._ends = True
        await self._task


def told_to_go(clients: list[RawClient]) -> None:
    for each in clients:
        each.expect_closed(0x9C)  # use another server; 3.x just sees the end


def come(broker: Broker) -> None:
    """New clients are sent elsewhere."""
    for version, reason in ((5, 0x9C), (4, 3)):
        new = RawClient(broker.port, version)
        new.send(connect("new", version))
        refused(new, reason)


async def test_a_node_leaves_under_traffic_and_comes_back_as_a_new_one(cluster: Cluster) -> None:
    one, two, three = await start(cluster, "one", "two", "three")
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=2)
    for name in ("bob", "cem", "dan"):
        async with client(one, name) as some:
            await some.subscribe("b/#", qos=1)
    plain = await asyncio.to_thread(lambda: [connected(one, 5), connected(one, 4)])
    publisher = Publisher(two)
    await publisher.more()
    code, output = await run(one, "drain")
    assert (code, "has left the cluster" in output) == (0, True), output
    await asyncio.to_thread(told_to_go, plain)
    await asyncio.to_thread(come, one)
    code, text = await asyncio.to_thread(get, one, "/ready")
    assert (code, "leaves the cluster" in text) == (503, True)

    async def is_none() -> bool:
        found = [await states(broker) for broker in (two, three)]
        return found == [{"two": "alive", "three": "alive"}] * 2

    await until(is_none, "it is a member no more", poll_s=0.1)
    for broker in (two, three):  # nobody takes what it said last for a trouble
        assert not any("no member" in each["text"] for each in (await status(broker))["troubles"])
    await publisher.more()
    await publisher.end()
    await one.stop()
    async with client(three, "ann") as ann:
        found = [await receive(ann)]
        while not set(publisher.acknowledged) <= set(found):
            found.append(await receive(ann))
    for number in publisher.acknowledged:
        assert int(number) % 2 == 0 or found.count(number) == 1, "QoS 2 is delivered once"
    for broker in (two, three):
        assert broker.counters()["cluster_sessions_taken_over"] == 0
    async with client(two, "bob") as bob:
        await publish_to(three, b"for bob")
        assert await receive(bob) == b"for bob"
    for broker in (two, three):

        async def is_trimmed(of: Broker = broker) -> bool:
            return bool((await status(of))["log_records"] == 0)

        await until(is_trimmed, "logs are short", poll_s=0.1)
    again = await cluster.start("one", admin_port=free_port())

    async def is_back() -> bool:
        return set(await states(again)) == {"one", "two", "three"}

    await until(is_back, "it is a member again", poll_s=0.1)
    async with client(again, "cem") as cem:
        assert await receive(cem) == b"for bob"


async def publish_to(broker: Broker, payload: bytes) -> None:
    async with client(broker, "other") as other:
        await other.publish("b/1", payload, qos=1)


async def test_clients_that_are_connected_find_their_sessions_elsewhere(cluster: Cluster) -> None:
    one, two = await start(cluster, "one", "two")
    urls = [f"mqtt://127.0.0.1:{broker.ports[0]}" for broker in (one, two)]
    options: dict[str, Any] = {"client_id": "ann", "clean_start": False, "session_expiry_s": 3600}
    async with Client(urls[0], **options) as ann, client(two, "bob") as bob:
        await ann.subscribe("a/#", qos=1)
        await publish(bob, b"1")
        assert await receive(ann) == b"1"
        draining = asyncio.create_task(run(one, "drain"))
        await until(lambda: one.counters()["live_connections"] == 0)
    async with Client(urls[1], **options) as ann, client(two, "bob") as bob:
        await publish(bob, b"2")
        async with asyncio.timeout(WAIT_S):
            while await receive(ann) != b"2":  # the first was not acknowledged, and comes again
                pass
    assert (await draining)[0] == 0


async def test_who_is_alone_cannot_leave(cluster: Cluster) -> None:
    one = await cluster.start("one", admin_port=free_port())
    code, output = await run(one, "drain")
    assert (code, "no other node is alive" in output) == (1, True), output
    async with client(one, "ann"):
        pass  # it serves clients as before


async def test_a_node_that_has_left_does_not_begin_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await start(cluster, "one", "two")
    assert (await run(one, "drain"))[0] == 0
    await one.stop()
    await two.stop()
    monkeypatch.setattr("tidemq.cluster.host.ALONE_S", 0.5)
    with pytest.raises(ClusterError, match="start another one first"):
        await cluster.start("one")
