"""Brokers that are nodes of a cluster, over real `nats-server`s: messages and sessions go between them."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from waiting import LATE_S, WAIT_S, until

from tidemq.broker import Broker
from tidemq.client import Client, PublishError
from tidemq.cluster.host import ClusterHost
from tidemq.config import Config
from tidemq.errors import ClusterError
from tidemq.store import Store

SUSPECT_S = 10.0  # tests run beside others, and a node that is slow is not dead


class Cluster:
    """Nodes by name; each joins the first."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._password = folder / "password"
        self._password.write_text("a" * 32 + "\n")
        self._password.chmod(0o600)
        self.suspect_s = SUSPECT_S
        self.decision_s = LATE_S  # that a CONNECT waits for its session, on a busy machine
        self.nodes: dict[str, Broker] = {}
        self.hosts: dict[str, ClusterHost] = {}
        self._addresses: list[str] = []

    async def start(self, name: str, *, store: Store | None = None, **more: Any) -> Broker:
        settings: dict[str, Any] = {
            "port": 0,
            "host": "127.0.0.1",
            "reactors": 2,
            "data": self._folder / name,
            "cluster_name": "test",
            "cluster_node": name,
            "cluster_listen": "127.0.0.1:0",
            "cluster_password_file": str(self._password),
            "cluster_join": tuple(self._addresses),
            "cluster_suspect_s": self.suspect_s,
            "decision_s": self.decision_s,
            "sys_interval_s": 0.0,  # its topics are retained, too
        }
        config = Config(**{**settings, **more})
        host = ClusterHost(config)
        broker = Broker(config, cluster=host, store=store)
        await self._stack.enter_async_context(broker)
        self.nodes[name], self.hosts[name] = broker, host
        assert host.keeper is not None
        self._addresses.append(host.keeper.node.own.address)
        return broker

    async def meet(self, *names: str) -> list[Broker]:
        """Starts nodes that know each other."""
        started = [await self.start(name) for name in names]
        await until(lambda: all(self.reached(name) == len(names) - 1 for name in names))
        return started

    def reached(self, name: str) -> int:
        """How many others a node hears."""
        keeper = self.hosts[name].keeper
        assert keeper is not None
        return len(keeper.node.members.known())


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


@asynccontextmanager
async def client(broker: Broker, name: str, **options: Any) -> AsyncIterator[Client]:
    settings = {"clean_start": False, "session_expiry_s": 3600, "connect_timeout_s": LATE_S, **options}
    async with Client(f"mqtt://127.0.0.1:{broker.ports[0]}", client_id=name, **settings) as made:
        yield made


async def receive(client: Client) -> bytes:
    """The next message."""
    async with asyncio.timeout(WAIT_S):
        return (await anext(client.messages)).payload


async def publish(client: Client, payload: bytes, topic: str = "a/1") -> None:
    """Again while it is refused, as what a dead node was asked is."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await client.publish(topic, payload, qos=1)
            except PublishError:
                continue
            return


def retained(broker: Broker) -> int:
    """How many messages the engine has retained."""
    assert broker.monitor is not None
    return broker.monitor.counters_and_sizes()["retained"]


class Keeper:
    """Of a node that lacks what others have."""

    has_members = True
    takes_snapshot = is_up_to_date = False
    rejoins = ()
    membership = SimpleNamespace(verdict="")

    def ask(self, act: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(act())
        return answer


async def test_a_node_begins_alone_when_it_has_reached_nobody_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it has lost the others a moment ago, however long it takes what they have; nor with a part of
    what another one has.
    """
    alone_s = 1.0
    monkeypatch.setattr("tidemq.cluster.host.ALONE_S", alone_s)
    password = tmp_path / "password"
    password.write_text("a" * 32 + "\n")
    password.chmod(0o600)
    node: Any = {"cluster_name": "test", "cluster_listen": "127.0.0.1:0", "data": tmp_path}
    host = ClusterHost(Config(**node, cluster_password_file=str(password)))
    keeper: Any = Keeper()
    begun = time.monotonic()
    others: list[int] = []
    monkeypatch.setattr(host, "_transport_of_now", lambda: SimpleNamespace(connected=lambda: others))
    await host._catch_up(keeper)
    assert time.monotonic() - begun >= alone_s

    others.append(2)
    begins = asyncio.create_task(host._catch_up(keeper))
    await asyncio.sleep(2 * alone_s)
    others.clear()
    lost_at = time.monotonic()
    await begins
    assert time.monotonic() - lost_at >= alone_s * 0.9

    keeper.takes_snapshot = True
    begins = asyncio.create_task(host._catch_up(keeper))
    await asyncio.sleep(2 * alone_s)
    assert not begins.done()
    keeper.takes_snapshot, keeper.is_up_to_date = False, True
    await begins


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_goes_to_subscribers_of_all_nodes(cluster: Cluster, qos: int) -> None:
    one, two, three = await cluster.meet("one", "two", "three")
    async with (
        client(two, "ann") as ann,
        client(three, "bob") as bob,
        client(one, "cem") as cem,
        client(one, "publisher") as publisher,
    ):
        for each in (ann, bob, cem):
            await each.subscribe("a/+", qos=qos)
        for number in range(50):
            await publisher.publish("a/1", b"%d" % number, qos=qos)
        for each in (ann, bob, cem):
            for number in range(50):
                assert await receive(each) == b"%d" % number


async def test_a_node_that_begins_while_another_is_not_there_has_what_its_sessions_are_to_get(
    cluster: Cluster,
) -> None:
    """It has not heard the other one since, and takes its sessions some seconds later."""
    cluster.suspect_s = 2.0
    one, two = await cluster.meet("one", "two")
    async with client(two, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    await two.stop()
    await one.stop()
    one = await cluster.start("one")
    async with client(one, "bob") as bob:
        for number in range(5):
            await publish(bob, b"%d" % number)
    async with client(one, "ann") as ann:
        got = [await receive(ann)]
        while got[-1] != b"4":
            got.append(await receive(ann))
        # the first may come twice: it is refused, and published again
        assert list(dict.fromkeys(got)) == [b"%d" % number for number in range(5)]


async def test_a_session_goes_where_its_client_goes(cluster: Cluster) -> None:
    one, two = await cluster.meet("one", "two")
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=2)
    async with client(one, "bob") as bob:
        for number in range(20):
            await bob.publish("a/1", b"%d" % number, qos=1 + number % 2)
        async with client(two, "ann") as ann:
            for number in range(20):
                assert await receive(ann) == b"%d" % number
            for number in range(20, 30):
                await bob.publish("a/1", b"%d" % number, qos=1 + number % 2)
            found = [await receive(ann) for _ in range(20, 30)]
            for qos in (1, 2):  # each QoS has its order
                numbers = [int(each) for each in found if 1 + int(each) % 2 == qos]
                assert numbers == [number for number in range(20, 30) if 1 + number % 2 == qos]


class Wanderer:
    """Paho, which keeps what it knows of QoS 2 over its connections, as a device does."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id="ann", clean_session=False, protocol=paho.MQTTv311
        )
        self._client.on_message = lambda _client, _data, message: self.found.append(bytes(message.payload))
        self._client.on_connect = lambda client, *_: client.subscribe("a/#", qos=2)

    async def visit(self, broker: Broker, count: int) -> None:
        """Stays until so many messages have come, then leaves without a word to what is in flight."""
        await asyncio.to_thread(self._client.connect, "127.0.0.1", broker.ports[0])
        self._client.loop_start()
        await until(lambda: len(self.found) >= count)
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)


async def test_each_message_comes_once_while_a_session_moves(cluster: Cluster) -> None:
    nodes = await cluster.meet("one", "two", "three")
    ann = Wanderer()
    sent = dict.fromkeys(range(3), 0)
    moved = False

    async def go_on_publishing(number: int) -> None:
        async with client(nodes[number], f"publisher {number}") as publisher:
            while not moved:
                await publisher.publish("a/1", b"%d %d" % (number, sent[number]), qos=2)
                sent[number] += 1

    async with client(nodes[0], "ann") as first:
        await first.subscribe("a/#", qos=2)
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(go_on_publishing(number))
        for turn in range(6):
            await ann.visit(nodes[(turn + 1) % 3], len(ann.found) + 60)
        moved = True
    await ann.visit(nodes[1], sum(sent.values()))
    for number in range(3):
        own = [each for each in ann.found if each.startswith(b"%d " % number)]
        assert own == [b"%d %d" % (number, each) for each in range(sent[number])]


async def test_a_shared_group_has_members_on_all_nodes(cluster: Cluster) -> None:
    nodes = await cluster.meet("one", "two", "three")
    found: list[list[bytes]] = [[], []]

    async def take(number: int, member: Client) -> None:
        async for message in member.messages:
            found[number].append(message.payload)

    async with client(nodes[0], "ann") as ann, client(nodes[1], "bob") as bob, asyncio.TaskGroup() as group:
        for each in (ann, bob):
            await each.subscribe("$share/g/a/#", qos=1)
        tasks = [group.create_task(take(number, each)) for number, each in enumerate((ann, bob))]
        for number, node in enumerate(nodes):
            async with client(node, "publisher", clean_start=True) as publisher:
                for count in range(40):
                    await publisher.publish("a/1", b"%d %d" % (number, count), qos=1)
        await until(lambda: sum(map(len, found)) >= 120)
        assert sorted(found[0] + found[1]) == sorted(b"%d %d" % (n, c) for n in range(3) for c in range(40))
        assert min(map(len, found)) > 10
        for task in tasks:
            task.cancel()


async def test_what_waits_for_a_shared_group_finds_its_members(cluster: Cluster) -> None:
    """Also where they are on another node, and where the node that has queued it is gone."""
    one, two, three = await cluster.meet("one", "two", "three")
    async with client(one, "ann") as ann:
        await ann.subscribe("$share/g/a/#", qos=1)
    async with client(one, "publisher", clean_start=True) as publisher:
        for number in range(300):
            await publisher.publish("a/1", b"%d" % number, qos=1)
    async with client(two, "bob") as bob:
        await bob.subscribe("$share/g/a/#", qos=1)
        assert [await receive(bob) for _ in range(300)] == [b"%d" % number for number in range(300)]
    async with client(two, "publisher", clean_start=True) as publisher:
        for number in range(300):
            await publisher.publish("a/1", b"%d" % number, qos=1)
    await two.stop()
    # two may have its session, until it counts as dead
    async with client(three, "cem", connect_timeout_s=WAIT_S) as cem:
        await cem.subscribe("$share/g/a/#", qos=1)
        assert {await receive(cem) for _ in range(300)} == {b"%d" % number for number in range(300)}


async def test_subscriptions_of_other_nodes_are_no_sessions_here(
    cluster: Cluster, unused_tcp_port: int
) -> None:
    one = await cluster.start("one", admin_port=unused_tcp_port)
    two = await cluster.start("two")
    await until(lambda: cluster.reached("one") == 1)

    def listed(**query: str) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", unused_tcp_port, timeout=WAIT_S)
        connection.request("GET", f"/api/v1/subscriptions?{urlencode(query)}")
        return [each["client_id"] for each in json.loads(connection.getresponse().read())["subscribers"]]

    async with client(two, "bob") as bob, client(one, "ann") as ann:
        for each in (bob, ann):  # SUBACK comes when all nodes know it
            await each.subscribe("a/+", qos=1)
            await each.subscribe("$share/g/a/+", qos=1)
        assert await asyncio.to_thread(listed, topic="a/1") == ["ann", "ann"]
        assert await asyncio.to_thread(listed, topic_filter="a/+") == ["ann", "ann"]
        assert await asyncio.to_thread(listed, topic_filter="$share/g/a/+") == ["ann"]


async def test_sessions_of_a_node_that_has_gone_go_on_elsewhere(cluster: Cluster) -> None:
    one, two = await cluster.meet("one", "two")
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    async with client(two, "bob") as bob:
        for number in range(20):
            await bob.publish("a/1", b"%d" % number, qos=1)
        await one.stop()
        await until(lambda: cluster.hosts["two"].counts().get("cluster_sessions_taken_over", 0) >= 1)
        for number in range(20, 25):
            await publish(bob, b"%d" % number)
    async with client(two, "ann") as ann:
        found = [await receive(ann)]
        while found[-1] != b"24":
            found.append(await receive(ann))
        # what was refused may have been stored all the same, and come twice
        assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(25)]


async def test_clients_of_a_node_that_has_gone_find_their_sessions_on_every_other(cluster: Cluster) -> None:
    cluster.suspect_s, cluster.decision_s = 3.0, 60.0  # or a busy machine refuses some
    one, two, three = await cluster.meet("one", "two", "three")
    names = [f"c{number}" for number in range(10)]
    for name in names:
        async with client(one, name) as each:
            await each.subscribe(f"c/{name}", qos=1)
    await one.stop()
    async with AsyncExitStack() as stack:
        places = [(two, three)[number % 2] for number in range(len(names))]
        connecting = [stack.enter_async_context(client(*each)) for each in zip(places, names, strict=True)]
        clients = await asyncio.gather(*connecting)  # they wait until a node takes their sessions
        bob = await stack.enter_async_context(client(two, "bob"))
        for name, each in zip(names, clients, strict=True):
            await publish(bob, b"for you", f"c/{name}")
            assert await receive(each) == b"for you"


async def test_a_node_that_serves_clients_knows_what_others_want(cluster: Cluster) -> None:
    one = await cluster.start("one")
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
        two = await cluster.start("two")
        async with client(two, "bob") as bob:
            await bob.publish("a/1", b"first", qos=1)
        assert await receive(ann) == b"first"


async def test_a_node_that_is_back_before_it_is_missed_gets_messages_again(cluster: Cluster) -> None:
    one, two = await cluster.meet("one", "two")
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=2)
    async with client(two, "bob") as bob:
        await bob.publish("a/1", b"0", qos=2)
        await one.stop()
        one = await cluster.start("one")
        for number in range(1, 5):
            await publish(bob, b"%d" % number)
    async with client(one, "ann") as ann:
        found = [await receive(ann)]
        while found[-1] != b"4":
            found.append(await receive(ann))
        # what was refused may have been stored all the same, and come twice
        assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(5)]


async def test_retained_messages_are_on_all_nodes(cluster: Cluster) -> None:
    one, two = await cluster.meet("one", "two")
    async with client(one, "bob") as bob:
        await bob.publish("r/1", b"kept", qos=1, retain=True)
        await until(lambda: retained(two) == 1)
        three = await cluster.start("three")
        async with client(three, "cem") as cem:
            await cem.subscribe("r/#", qos=1)
            assert await receive(cem) == b"kept"
        await bob.publish("r/1", b"", qos=1, retain=True)
        await until(lambda: retained(two) == retained(three) == 0)


async def test_an_address_that_is_none_is_refused_and_others_are_met_all_the_same(cluster: Cluster) -> None:
    await cluster.start("one")
    host = cluster.hosts["one"]
    for _ in range(2):  # as often as that node says it
        with pytest.raises(ClusterError, match="no address"):
            host.meet(7, "no address")
    await cluster.start("two")
    await until(lambda: cluster.reached("one") == 1)
