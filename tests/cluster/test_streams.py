"""Streams of nodes: a message is in the stream of the node on which it was published, and in no other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from cluster.test_host import Cluster, client, receive
from waiting import until

from tidemq.broker import Broker
from tidemq.client import Client, Will
from tidemq.client.streams import StreamReader, StreamState
from tidemq.config import StreamConfig
from tidemq.testing.ports import free_port


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


PLANT = (StreamConfig(name="plant", filters=("plant/#",)),)


async def start(cluster: Cluster) -> list[Broker]:
    """Two nodes that have met."""
    brokers = [await cluster.start(name, streams=PLANT, admin_port=free_port()) for name in ("one", "two")]
    await until(lambda: all(cluster.reached(name) == 1 for name in ("one", "two")))
    return brokers


def described(broker: Broker) -> StreamState:
    return StreamReader(f"http://127.0.0.1:{broker.admin_port}", "plant").describe()


def kept(broker: Broker) -> list[bytes]:
    """The payloads that a node's stream has."""
    reader = StreamReader(f"http://127.0.0.1:{broker.admin_port}", "plant")
    return [each for batch in reader.read(0) for each in batch.column("payload").to_pylist()]


async def has(broker: Broker, count: int) -> bool:
    """Whether as many messages are in its stream."""
    return len(await asyncio.to_thread(kept, broker)) >= count


async def test_a_message_is_in_the_stream_of_the_node_that_it_was_published_on(cluster: Cluster) -> None:
    """Whoever gets it on the other node: a session that is stored or not, a shared group; a will, too."""
    one, two = await start(cluster)
    states = [await asyncio.to_thread(described, broker) for broker in (one, two)]
    assert [state.node for state in states] == ["one", "two"]
    assert states[0].epoch != states[1].epoch
    wanted: dict[str, list[bytes]] = {}
    async with AsyncExitStack() as stack:
        readers = []
        for broker, name in ((one, "one"), (two, "two")):
            plain = await stack.enter_async_context(Client(f"mqtt://127.0.0.1:{broker.ports[0]}"))
            stored = await stack.enter_async_context(client(broker, f"stored {name}"))
            shared = await stack.enter_async_context(client(broker, f"shared {name}"))
            for each in (plain, stored):
                await each.subscribe("plant/#", qos=2)
                readers.append(each)
            await shared.subscribe("$share/group/plant/#", qos=2)
        for broker, name in ((one, "one"), (two, "two")):
            wanted[name] = [f"{name} {number}".encode() for number in range(30)]
            async with client(broker, f"publisher {name}") as publisher:
                for number, payload in enumerate(wanted[name]):
                    retain = number % 5 == 0
                    await publisher.publish("plant/a", payload, qos=number % 3, retain=retain)
        gone = Will(topic="plant/gone", payload=b"gone", qos=1)
        away = Client(f"mqtt://127.0.0.1:{two.ports[0]}", client_id="away", will=gone, reconnect=False)
        await away.connect()
        await two.disconnect("away")
        wanted["two"].append(b"gone")
        for each in readers:
            found = {await receive(each) for _ in range(61)}
            assert found == {*wanted["one"], *wanted["two"]}  # so all has come to both nodes
    for broker, name in ((one, "one"), (two, "two")):
        await until(partial(has, broker, len(wanted[name])))  # nobody waits until a will is in it
        assert Counter(await asyncio.to_thread(kept, broker)) == Counter(wanted[name])
