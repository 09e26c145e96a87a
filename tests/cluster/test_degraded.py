"""No other node has a copy: what becomes of messages, as `cluster_ack` and `cluster_degraded` say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster.test_host import Cluster, client, receive
from cluster.test_keeping import Nodes
from cluster.test_status import get
from conformance.kit import Client, connected, kept
from conformance.packets import publish
from waiting import until

from tidemq.client import PublishError
from tidemq.testing.ports import free_port


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


def resend_qos_2(publisher: Client, port: int, payload: bytes) -> Client:
    """As a client does that was disconnected: its session again, the message with DUP."""
    again = Client(port, publisher.version)
    again.connect(publisher.client_id, **kept(publisher.version))
    again.send(publish("a/1", payload, 2, 7, publisher.version, dup=True))
    return again


async def test_what_is_stored_stays_and_its_publishers_are_disconnected(nodes: Nodes) -> None:
    await nodes.meet("one", "two", degraded="refuse", suspect_s=2.0)
    one = nodes.brokers["one"]

    def begin() -> list[Client]:
        subscriber = connected(one, client_id="ann", **kept(5))
        subscriber.subscribe("a/#", qos=2)
        subscriber.disconnect()
        return [connected(one, version, f"{version}-{qos}", **kept(version)) for version, qos in KINDS]

    publishers = await asyncio.to_thread(begin)
    await nodes.stop("two")

    def lose() -> None:
        for publisher, (version, qos) in zip(publishers, KINDS, strict=True):
            publisher.send(publish("a/1", publisher.client_id.encode(), qos, 7, version))
        for publisher in publishers:
            publisher.expect_closed(0x83)  # and no acknowledgement before

    await asyncio.to_thread(lose)
    assert nodes.count("one", "entry") == len(KINDS)
    assert nodes.keepers["one"].counts["cluster_unacknowledged_degraded"] >= 1
    assert nodes.keepers["one"].counts["cluster_acknowledged_degraded"] == 0

    def go_on() -> None:
        """What comes now is not stored at all; identifiers of QoS 2 stay known."""
        other = connected(one, client_id="other", **kept(5))
        other.send(publish("a/1", b"refused", 1, 1, 5))
        assert other.receive().reason == 0x83
        other.publish("b", b"goes to nobody who is away", 1)
        other.disconnect()
        resend_qos_2(publishers[-1], one.port, b"5-2").expect_closed(0x83)

    await asyncio.to_thread(go_on)
    assert nodes.count("one", "entry") == len(KINDS)
    await nodes.start("two", degraded="refuse", suspect_s=2.0)
    await until(lambda: not nodes.keepers["one"].promises.is_degraded)

    async def is_taken() -> bool:
        again = await asyncio.to_thread(resend_qos_2, publishers[-1], one.port, b"5-2")
        return (await asyncio.to_thread(again.receive)).kind == 5  # PUBREC

    await until(is_taken, "publishers are served again", poll_s=0.1)
    assert nodes.count("one", "entry") == len(KINDS)  # it was known by its identifier
    async with client(one, "ann") as ann:
        found = [await receive(ann) for _ in KINDS]
    assert sorted(found) == sorted(b"%d-%d" % kind for kind in KINDS)


KINDS = [(4, 1), (4, 2), (5, 1), (5, 2)]


async def test_a_node_alone_refuses_what_it_would_have_to_store(cluster: Cluster) -> None:
    settings: dict[str, Any] = {"cluster_degraded": "refuse", "cluster_suspect_s": 1.0}
    one = await cluster.start("one", admin_port=free_port(), **settings)
    async with client(one, "ann") as ann, client(one, "bob") as bob:
        await ann.subscribe("a/#", qos=2)

        async def is_refused() -> bool:
            try:
                await bob.publish("a/1", b"early", qos=1)
            except PublishError as error:
                return error.reason == 0x83
            return False

        await until(is_refused, "it is refused")
        code, text = await asyncio.to_thread(get, one, "/ready")
        problem = "no other node has copies of what is stored here: publishers of QoS 1 and 2 are refused"
        assert (code, json.loads(text)["problems"]) == (503, [problem])
        await bob.publish("a/1", b"QoS 0 goes on")
        await cluster.start("two", **settings)
        await until(lambda: not cluster.hosts["one"].problems(), "there is a copy")

        async def is_taken() -> bool:
            return not await is_refused()

        await until(is_taken, "it is taken")
        assert (await asyncio.to_thread(get, one, "/ready"))[0] == 200
    assert one.counters()["cluster_acknowledged_degraded"] == 0


@pytest.mark.parametrize("qos", [1, 2])
async def test_one_copy_is_enough_where_that_is_wanted(cluster: Cluster, qos: int) -> None:
    one = await cluster.start("one", cluster_ack="one", cluster_degraded="refuse", cluster_suspect_s=300.0)
    async with client(one, "ann") as ann, client(one, "bob") as bob:
        await ann.subscribe("a/#", qos=2)
        for number in range(10):
            await bob.publish("a/1", b"%d" % number, qos=qos)
        assert [await receive(ann) for _ in range(10)] == [b"%d" % number for number in range(10)]
    counts = one.counters()
    assert counts["cluster_acknowledged_degraded"] == counts["cluster_unacknowledged_degraded"] == 0
    figures = cluster.hosts["one"].figures()
    assert figures is not None
    assert not figures.degraded
