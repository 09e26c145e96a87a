"""Nodes as processes, as `tidemq serve` starts them, and one of them killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster.processes.clock import Clock, compile_clock
from waiting import WAIT_S, until

from tidemq.client import Client, Properties, PublishError, Will
from tidemq.errors import TideMQError
from tidemq.store.rocksdb import RocksDBStore
from tidemq.testing.ports import free_port


class Node:
    """One `tidemq serve`."""

    def __init__(self, folder: Path, name: str, join: int, password: Path) -> None:
        self.port = free_port()
        self.nats_port = free_port()
        self.command = [str(Path(sys.executable).with_name("tidemq"))]
        self.more: list[str] = []  # of arguments
        self.admin_port = 0
        self.environment: dict[str, str] = {}
        self._arguments = [
            *("serve", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--data", str(folder / name), "--cluster-name", "farm", "--reactors", "2"),
            *("--cluster-listen", f"127.0.0.1:{self.nats_port}"),
            *("--config", str(folder / "cluster.toml")),
            *("--join", f"127.0.0.1:{join or self.nats_port}", "--cluster-password-file", str(password)),
        ]
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Returns when it serves clients."""
        self.begin()
        await until(lambda: b" is ready on " in self.log.read_bytes(), f"it is ready, see {self.log}")

    def begin(self) -> None:
        """It may end by itself."""
        with self.log.open("ab") as log:
            command = [*self.command, *self._arguments, *self.more]
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **self.environment}
            )

    def kill(self) -> None:
        """As `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.log.write_bytes(b"")

    async def stop(self) -> None:
        """As an operator does."""
        assert self.process is not None
        self.process.terminate()
        assert await asyncio.to_thread(self.process.wait, WAIT_S) == 0, self.log.read_text()
        self.log.write_bytes(b"")

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"


def make_nodes(folder: Path, suspect_s: float) -> list[Node]:
    """Three, which are to be started."""
    password = folder / "password"
    password.write_text("b" * 40)
    password.chmod(0o600)
    (folder / "cluster.toml").write_text(f"cluster_suspect_s = {suspect_s}\n")
    first = Node(folder, "one", 0, password)
    return [first, *(Node(folder, name, first.nats_port, password) for name in ("two", "three"))]


def stop(nodes: list[Node]) -> None:
    for node in nodes:
        if node.process is not None and node.process.poll() is None:
            node.process.send_signal(signal.SIGTERM)
            node.process.wait(WAIT_S)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    # tests run beside others, and a node that is slow is not dead
    made = make_nodes(tmp_path, suspect_s=10.0)
    yield made
    stop(made)


async def publish(url: str, acknowledged: list[bytes], ended: asyncio.Event) -> None:
    """Messages one after the other, as fast as they are acknowledged, until it is told to end."""
    number = 0
    async with Client(url, client_id="publisher", clean_start=False, session_expiry_s=3600) as client:
        while not ended.is_set():
            payload = b"%d" % number
            with suppress(TideMQError):  # refused: nobody has promised anything
                await client.publish("a/1", payload, qos=1 + number % 2)
                acknowledged.append(payload)
            number += 1


async def test_nothing_that_was_acknowledged_is_lost_with_a_node(nodes: list[Node]) -> None:
    for node in nodes:
        await node.start()
    one, two, three = nodes
    settings = {"client_id": "ann", "clean_start": False, "session_expiry_s": 3600}
    async with Client(one.url, **settings) as ann:  # type: ignore[arg-type]
        await ann.subscribe("a/#", qos=2)
    acknowledged: list[bytes] = []
    ended = asyncio.Event()
    publishing = asyncio.create_task(publish(two.url, acknowledged, ended))
    will = Will(topic="gone", payload=b"bob", qos=1)
    bob = Client(
        one.url, client_id="bob", clean_start=False, session_expiry_s=3600, will=will, reconnect=False
    )
    async with Client(two.url) as watcher:
        await watcher.subscribe("gone", qos=1)
        await bob.connect()
        await until(lambda: len(acknowledged) >= 100)
        one.kill()
        before = len(acknowledged)
        await until(lambda: len(acknowledged) >= before + 100)
        ended.set()
        await publishing
        async with asyncio.timeout(WAIT_S):  # the next node has its session by now, and its will
            assert (await anext(watcher.messages)).payload == b"bob"
    found: list[bytes] = []
    async with Client(three.url, **settings) as ann:  # type: ignore[arg-type]
        async with asyncio.timeout(WAIT_S):
            while not set(acknowledged) <= set(found):
                found.append((await anext(ann.messages)).payload)
    twice = {each for each in acknowledged if int(each) % 2 and found.count(each) > 1}
    assert not twice, "QoS 2 is delivered once"
    await one.start()  # it learns where its session is, and does not serve an old one
    async with Client(one.url, **settings) as ann:  # type: ignore[arg-type]
        async with Client(two.url) as publisher:

            async def publish_last() -> bool:
                """What is under way as nodes meet again is refused."""
                with suppress(PublishError):
                    await publisher.publish("a/1", b"last", qos=2)
                    return True
                return False

            await until(publish_last, "it is taken")
        async with asyncio.timeout(WAIT_S):
            while (await anext(ann.messages)).payload != b"last":
                pass


def verify(node: Node, *words: str) -> tuple[int, str]:
    """`tidemq cluster verify`, asked of a node: its exit code, and what it prints."""
    url = f"http://127.0.0.1:{node.admin_port}"
    command = [*node.command, "cluster", "verify", "--url", url, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return done.returncode, done.stdout + done.stderr


async def test_a_row_that_was_lost_in_a_store_is_named(nodes: list[Node], tmp_path: Path) -> None:
    one, two, _ = nodes
    one.admin_port = free_port()
    one.more = ["--admin-port", str(one.admin_port)]
    await one.start()
    code, said = await asyncio.to_thread(verify, one)
    assert (code, said) == (2, "tidemq: no other node is alive, so there is none to compare with\n")
    await two.start()
    settings = {"client_id": "ann", "clean_start": False, "session_expiry_s": 3600}
    async with Client(two.url, **settings) as ann:  # type: ignore[arg-type]
        await ann.subscribe("a/#", qos=1)
    async with Client(one.url) as publisher:
        for number in range(10):
            await publisher.publish("a/1", b"%d" % number, qos=1)
    code, said = await asyncio.to_thread(verify, one)
    assert code == 0, said
    assert "equal: all nodes have the same" in said
    await two.stop()
    store = RocksDBStore(tmp_path / "two")
    store.open()
    [key, *_] = [key for key, _ in store.scan("queue")]
    store.write([("queue", key, None)], sync=True)
    store.close()
    await two.start()
    code, said = await asyncio.to_thread(verify, one)
    assert code == 1, said
    assert f"different: queue entry of client ann, message {key[9:].hex()} differs" in said
    assert ") has a record of it, and no row in the queue" in said
    code, said = await asyncio.to_thread(verify, one, "--json")
    assert (code, json.loads(said)["kind"]) == (1, "queue entry")


async def test_a_node_whose_clock_is_wrong_is_refused_until_it_is_right(
    nodes: list[Node], tmp_path: Path
) -> None:
    one, two, _ = nodes
    clock = Clock(compile_clock(tmp_path), tmp_path / "clock")
    clock.set(60.0)
    two.environment = clock.environment
    await one.start()
    two.begin()
    wrong = "they may be at most 5 s apart (cluster_skew_s_max)"
    await until(lambda: all(wrong in each.log.read_text() for each in (one, two)))
    await asyncio.sleep(1.0)  # it goes on, and is said once
    for each in (one, two):
        assert each.log.read_text().count(wrong) == 1
    assert "is ready on" not in two.log.read_text()
    clock.set(0.0)
    await until(lambda: "is ready on" in two.log.read_text())


async def test_what_expires_does_so_as_much_too_early_or_too_late_as_clocks_are_apart(
    nodes: list[Node], tmp_path: Path
) -> None:
    """As docs/cluster.md says: by the clock of the node where it is, and not by more."""
    one, two, _ = nodes
    (tmp_path / "cluster.toml").write_text("cluster_suspect_s = 10.0\ncluster_skew_s_max = 120.0\n")
    clock = Clock(compile_clock(tmp_path), tmp_path / "clock")
    clock.set(60.0)  # two is ahead
    two.environment = clock.environment
    await one.start()
    await two.start()
    more: dict[str, Any] = {"client_id": "ann", "clean_start": False, "session_expiry_s": 3600}
    begun = time.monotonic()

    async def publish_one(node: Node, payload: bytes, expiry_s: int) -> None:
        async with Client(node.url) as bob:
            await bob.publish("a/1", payload, qos=1, properties=Properties(message_expiry_s=expiry_s))

    async def left_s(node: Node, payload: bytes) -> float:
        """Of this message, and for how long it had been there at most."""
        async with Client(node.url, **more) as ann, asyncio.timeout(WAIT_S):
            while (message := await anext(ann.messages)).payload != payload:
                assert message.payload != b"expired"
        assert message.properties.message_expiry_s is not None
        return message.properties.message_expiry_s + time.monotonic() - begun

    async with Client(one.url, **more) as ann:
        await ann.subscribe("a/#", qos=1)
    await publish_one(one, b"expired", 30)
    await publish_one(one, b"early", 500)
    assert 439 <= await left_s(two, b"early") <= 440 + time.monotonic() - begun
    await publish_one(two, b"late", 500)
    assert 559 <= await left_s(one, b"late") <= 560 + time.monotonic() - begun
