"""A node whose disk is slow is not dead; one whose keeper has stopped for good is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from cluster.nodes import START_NS, make_node
from cluster.test_host import Cluster, client, publish, receive
from waiting import WAIT_S, until, wait_until

from tidemq.broker import Broker
from tidemq.client import PublishError
from tidemq.cluster.heartbeats import LATE_S, Heartbeats
from tidemq.cluster.members import SUSPECT_S, encode_heartbeat, parse_heartbeat
from tidemq.cluster.moves import SERVER_UNAVAILABLE
from tidemq.errors import StoreError
from tidemq.store import Write
from tidemq.store.rocksdb import RocksDBStore

SYNC_S = 4.5  # of the slow disk
SHORT_S = 2.0  # after which a node that is silent counts as dead


class SlowStore(RocksDBStore):
    """On a disk whose next syncs take long."""

    slow = threading.Event()  # of the class: there is one

    def write(self, writes: Sequence[Write], *, sync: bool) -> None:
        if sync and self.slow.is_set():
            self.slow.clear()
            time.sleep(SYNC_S)
        super().write(writes, sync=sync)


class FullStore(RocksDBStore):
    """On a disk that is full, at times."""

    full = threading.Event()

    def write(self, writes: Sequence[Write], *, sync: bool) -> None:
        if self.full.is_set():
            raise StoreError("no space left on device")
        super().write(writes, sync=sync)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


async def test_a_node_whose_disk_takes_long_is_not_dead(cluster: Cluster, tmp_path: Path) -> None:
    store = SlowStore(tmp_path / "one")
    one = await cluster.start("one", store=store, cluster_suspect_s=SHORT_S)
    two = await cluster.start("two", cluster_suspect_s=SHORT_S)
    await until(lambda: cluster.reached("one") == cluster.reached("two") == 1)
    seen: set[str] = set()

    def states() -> set[str]:
        figures = [host.figures() for host in cluster.hosts.values()]
        return {member.state for each in figures if each is not None for member in each.members}

    async def look() -> None:
        while True:
            seen.update(states())
            await asyncio.sleep(0.05)

    await until(lambda: states() == {"alive"})

    async with client(one, "ann") as ann, client(one, "bob") as bob:
        await ann.subscribe("a/#", qos=1)
        looking = asyncio.create_task(look())
        store.slow.set()
        began = time.monotonic()
        await bob.publish("a/1", b"x", qos=1)
        assert time.monotonic() - began >= SYNC_S  # it was kept waiting, and for longer than silence may last
        assert await receive(ann) == b"x"
        await bob.publish("a/1", b"y", qos=1)
        assert await receive(ann) == b"y"
        looking.cancel()
    assert seen == {"alive"}
    for broker in (one, two):
        assert broker.counters()["cluster_sessions_taken_over"] == 0


async def connack(broker: Broker, name: str) -> tuple[int, int]:
    """Session Present and the reason, of a CONNECT that wants a session to go on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports[0])
    body = b"\0\4MQTT\5\0\0\x3c\5\x11" + (3600).to_bytes(4) + len(name).to_bytes(2) + name.encode()
    writer.write(bytes([0x10, len(body)]) + body)
    async with asyncio.timeout(WAIT_S):
        answer = await reader.readexactly(4)
    writer.close()
    return answer[2], answer[3]


async def test_while_a_node_can_store_nothing_its_sessions_wait_and_new_ones_do_not(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When that has lasted, it counts as dead."""
    monkeypatch.setattr("tidemq.cluster.host.Heartbeats", partial(Heartbeats, stuck_s=8.0))
    cluster.decision_s, cluster.suspect_s = 2.0, SHORT_S
    store = FullStore(tmp_path / "one")
    one = await cluster.start("one", store=store)
    two = await cluster.start("two")
    await until(lambda: cluster.reached("one") == cluster.reached("two") == 1)
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    async with client(one, "bob") as bob:
        store.full.set()
        with pytest.raises(PublishError):
            await bob.publish("a/1", b"refused", qos=1)
    try:
        assert await connack(two, "cem") == (0, 0)  # one has nothing of this client, and says so
        assert await connack(two, "ann") == (0, SERVER_UNAVAILABLE)

        async def goes_on() -> bool:
            return await connack(two, "ann") == (1, 0)

        await until(goes_on, "one counts as dead")
        async with client(two, "ann") as ann, client(two, "cem") as cem:
            await publish(cem, b"x")
            assert await receive(ann) == b"x"
    finally:
        store.full.clear()


def beats(node_index: int = 1) -> tuple[bytes, list[bytes]]:
    return encode_heartbeat(make_node(node_index, 2).beat(0.0, START_NS)), []


def test_what_was_said_last_is_said_again_with_the_time_of_now() -> None:
    body, said = beats()
    heartbeats = Heartbeats(said.append, time.monotonic, wall_ns=lambda: START_NS + 5)
    heartbeats.look(time.monotonic())
    assert said == []  # nothing to be said yet
    heartbeats.say(body)
    now = time.monotonic()
    heartbeats.look(now)
    assert said == [body]
    heartbeats.look(now + LATE_S)
    first, again = map(parse_heartbeat, said)
    assert again.wall_ns == START_NS + 5
    assert (again.number, again.applied, again.nonce) == (first.number, first.applied, first.nonce)


def test_a_keeper_that_has_stopped_for_good_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    body, said = beats()
    stopped_at = time.monotonic()
    heartbeats = Heartbeats(said.append, lambda: stopped_at, stuck_s=10.0)
    heartbeats.say(body)
    heartbeats.look(stopped_at + 9.0)
    heartbeats.look(stopped_at + 11.0)
    heartbeats.look(stopped_at + 12.0)
    assert len(said) == 2
    assert "other nodes take over" in caplog.text
    assert len(caplog.messages) == 1


def test_the_thread_says_it_until_it_is_closed() -> None:
    body, said = beats()
    heartbeats = Heartbeats(said.append, time.monotonic)
    heartbeats.start()
    heartbeats.say(body)
    wait_until(lambda: len(said) >= 3)
    heartbeats.close()
    count = len(said)
    heartbeats.look(time.monotonic() + 10)
    assert len(said) == count


def test_nobody_is_judged_while_messages_of_others_are_not_read() -> None:
    """A node that has itself stood still finds their heartbeats in what waits."""
    one, two = make_node(0, 2), make_node(1, 2)
    one.hear(two.beat(0.0, START_NS), 0.0)
    late = 3 * SUSPECT_S
    assert not one.members.is_live(2, late)
    one.members.unread_since = lambda: 0.1
    assert one.members.is_live(2, late)
    one.hear(two.beat(0.0, START_NS), 0.2)
    one.members.unread_since = lambda: late
    assert not one.members.is_live(2, late)
