"""Nodes as processes that are stopped one after the other and started in a later version."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from cluster.test_processes import Node, nodes, publish
from waiting import WAIT_S, until

from tidemq.client import Client
from tidemq.testing.ports import free_port

__all__ = ["nodes"]

NEWER = Path(__file__).with_name("newer.py")
IN_USE = b"format 2 of records and messages is in use"


class Watched:
    """What a node says of the cluster, over its admin interface."""

    def __init__(self, node: Node) -> None:
        self.node, self._port = node, free_port()
        node.more = ["--admin-port", str(self._port)]

    def _get(self, path: str) -> str:
        with urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=WAIT_S) as answer:
            text: str = answer.read().decode()
            return text

    async def status(self) -> Any:
        return json.loads(await asyncio.to_thread(self._get, "/api/v1/cluster"))

    async def count(self, name: str) -> float:
        text = await asyncio.to_thread(self._get, "/metrics")
        return float(text.split(f"\ntidemq_{name}_total ")[1].split("\n")[0])


async def upgrade(node: Node) -> None:
    """As an operator does."""
    await node.stop()
    node.command = [sys.executable, str(NEWER)]
    await node.start()


async def check_refusals(one: Watched, three: Watched, four: Node) -> None:
    """The version of before ends, be it a member or not, and says why."""
    await three.node.stop()
    three.node.command = four.command
    for node, said in (
        (three.node, b"this node has written format 2 of the cluster, and this version reads 1"),
        (four, b"writes format 2, this node's version reads 1: the node needs a version that reads format 2"),
    ):
        node.begin()
        assert node.process is not None
        assert await asyncio.to_thread(node.process.wait, WAIT_S) != 0
        assert said in node.log.read_bytes()
    assert len((await one.status())["members"]) == 3


async def test_nodes_are_upgraded_one_after_the_other(nodes: list[Node], tmp_path: Path) -> None:
    watched = [Watched(node) for node in nodes]
    for node in nodes:
        await node.start()
    one, two, three = nodes
    settings: Any = {"client_id": "ann", "clean_start": False, "session_expiry_s": 3600}
    async with Client(one.url, **settings) as ann:
        await ann.subscribe("a/#", qos=2)
    acknowledged: list[bytes] = []
    ended = asyncio.Event()
    publishing = asyncio.create_task(publish(two.url, acknowledged, ended))

    async def go_on() -> None:
        before = len(acknowledged)
        await until(lambda: len(acknowledged) >= before + 50)

    await go_on()
    for node in (one, two, three):
        for each in watched:  # nobody writes what not all read
            assert (await each.status())["format"] == 1
            assert await each.count("cluster_records_damaged") == 0
        await upgrade(node)
        await go_on()
    for each in watched:

        async def writes_the_later(of: Watched = each) -> bool:
            found = await of.status()
            return (found["format"], [member["formats"] for member in found["members"]]) == (2, [[1, 2]] * 3)

        await until(writes_the_later, "all read format 2, and it is written", poll_s=0.1)
        assert each.node.log.read_bytes().count(IN_USE) == 1
    await go_on()
    ended.set()
    await publishing
    found: set[bytes] = set()
    async with Client(three.url, **settings) as ann, asyncio.timeout(WAIT_S):
        while not set(acknowledged) <= found:
            found.add((await anext(ann.messages)).payload)
    for each in watched:
        assert await each.count("cluster_records_damaged") == 0
        assert await each.count("cluster_letters_refused") == 0
    four = Node(tmp_path, "four", one.nats_port, tmp_path / "password")
    await check_refusals(watched[0], watched[2], four)
