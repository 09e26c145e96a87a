"""QoS 2 between nodes as processes, one of which ends while it is asked who takes a message."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from cluster.test_processes import Node, make_nodes, stop
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from waiting import WAIT_S, until

from tidemq.client import Client
from tidemq.errors import TideMQError

pytestmark = pytest.mark.long  # `test_elsewhere.py` has what a node makes of it

LAST = b"last"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    made = make_nodes(tmp_path, suspect_s=3.0)
    yield made
    stop(made)


def session(node: Node, name: str) -> Client:
    return Client(node.url, client_id=name, clean_start=False, session_expiry_s=3600)


@asynccontextmanager
async def stopped(node: Node) -> AsyncIterator[None]:
    """It answers nothing; its `nats-server` takes what comes for it."""
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)


async def publish(client: Client, payload: bytes) -> int:
    """Again while it is refused; how often it was."""
    refused = 0
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await client.publish("a/1", payload, qos=2)
            except TideMQError:
                refused += 1
            else:
                return refused


async def all_until_last(client: Client) -> list[bytes]:
    found = []
    async with asyncio.timeout(WAIT_S):
        while LAST not in found:
            found.append((await anext(client.messages)).payload)
    return found


async def test_what_is_refused_since_a_node_has_ended_is_with_nobody(nodes: list[Node]) -> None:
    one, two, three = nodes
    for node in nodes:
        await node.start()
    async with session(three, "bob") as bob:
        await bob.subscribe("a/#", qos=2)
    async with session(two, "ann") as ann, session(one, "publisher") as publisher:
        await ann.subscribe("a/#", qos=2)
        async with stopped(three):
            publishing = asyncio.create_task(publish(publisher, b"x"))
            # nothing says that the other one has answered; what it had taken by then would come twice
            await asyncio.sleep(0.5)
            assert not publishing.done()
            three.kill()
        assert await publishing, "it was refused once"
        await publish(publisher, LAST)
        assert await all_until_last(ann) == [b"x", LAST]
    async with session(two, "bob") as bob:  # the message was there for whoever has its session by then
        assert await all_until_last(bob) == [b"x", LAST]


async def test_what_is_sent_again_since_the_publisher_s_node_has_ended_comes_once(nodes: list[Node]) -> None:
    one, two, three = nodes
    for node in nodes:
        await node.start()
    publisher = paho.Client(CallbackAPIVersion.VERSION2, client_id="publisher", protocol=paho.MQTTv5)
    lasting = Properties(PacketTypes.CONNECT)
    lasting.SessionExpiryInterval = 3600
    async with session(two, "ann") as ann, session(three, "bob") as bob:
        for each in (ann, bob):
            await each.subscribe("a/#", qos=2)
        publisher.connect("127.0.0.1", one.port, clean_start=False, properties=lasting)
        publisher.loop_start()
        await until(publisher.is_connected, "the publisher is connected")
        async with stopped(three):
            sent = publisher.publish("a/1", b"x", qos=2)
            await asyncio.sleep(0.5)
            assert not sent.is_published()
            one.kill()
            publisher.loop_stop()
        publisher.connect("127.0.0.1", two.port, clean_start=False, properties=lasting)
        publisher.loop_start()  # which sends it again, with DUP
        await until(sent.is_published, "it is sent again, and acknowledged")
        await until(publisher.publish("a/1", LAST, qos=2).is_published, "the last one is acknowledged")
        publisher.disconnect()
        publisher.loop_stop()
        assert await all_until_last(ann) == [b"x", LAST]
        assert await all_until_last(bob) == [b"x", LAST]
