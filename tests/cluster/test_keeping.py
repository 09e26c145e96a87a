"""Brokers whose keepers are those of a cluster: what one stores, the others have."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster.local_links import LocalCluster, LocalLinks
from waiting import LATE_S, WAIT_S, until

from tidemq.broker import Broker
from tidemq.client import Client
from tidemq.cluster import catching_up
from tidemq.cluster.group_members import AGAIN_S
from tidemq.cluster.keeping import ClusterKeeper
from tidemq.cluster.operations import Remove
from tidemq.cluster.promises import UNDER_WAY_MAX
from tidemq.config import Config
from tidemq.errors import StoreError
from tidemq.store.rocksdb import RocksDBStore
from tidemq.store.rows import PARSERS, parse_queue, parse_session

SELDOM_S = 0.5  # between two looks at thousands of rows, which keep the nodes from their work


class Nodes:
    """Some nodes, by name; one that has ended can be started again."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.links = LocalLinks()
        self.brokers: dict[str, Broker] = {}
        self.keepers: dict[str, ClusterKeeper] = {}
        self.stores: dict[str, RocksDBStore] = {}
        self.plugins: dict[str, list[object]] = {}
        self.decision_s = LATE_S  # that a CONNECT waits for its session, on a busy machine

    async def start(self, name: str, **identity: Any) -> Broker:
        cluster = LocalCluster(name, self.links, **identity)
        store = self.stores[name] = RocksDBStore(self._folder / name)
        config = Config(
            port=0, host="127.0.0.1", reactors=2, data=self._folder / name, decision_s=self.decision_s
        )
        broker = Broker(config, store=store, cluster=cluster, plugins=self.plugins.get(name, ()))
        await self._stack.enter_async_context(broker)
        self.brokers[name] = broker
        assert cluster.keeper is not None
        self.keepers[name] = cluster.keeper
        return broker

    async def stop(self, name: str) -> None:
        del self.keepers[name]
        await self.brokers.pop(name).stop()

    async def meet(self, *names: str, **identity: Any) -> None:
        """Starts nodes that know each other."""
        for name in names:
            await self.start(name, **identity)
        for name in names:
            await until(partial(self._knows, name, len(names)))

    def _knows(self, name: str, count: int) -> bool:
        return len(self.keepers[name].node.members.incarnations) == count

    def ask(self, name: str, act: Callable[[ClusterKeeper], Any]) -> Any:
        keeper = self.keepers[name]
        return keeper.ask(lambda: act(keeper)).result(WAIT_S)

    def lines(self, name: str) -> list[str]:
        """What the rows of a node say."""
        return list(self.ask(name, lambda keeper: list(keeper.rows.lines())))

    def agree(self, *names: str) -> bool:
        """Whether the rows of these nodes say the same."""
        first, *rest = (self.lines(name) for name in names)
        return all(each == first for each in rest)

    def count(self, name: str, kind: str) -> int:
        """How many lines begin so."""
        return sum(line.startswith(kind) for line in self.lines(name))

    def rows_of(self, name: str, *families: str) -> int:
        """How many rows of these families the store of a node has."""
        store = self.stores[name]
        count: int = self.ask(name, lambda _: sum(len(list(store.scan(family))) for family in families))
        return count

    def has_none(self, name: str, *families: str) -> bool:
        """Whether the store of a node has no row of these families."""
        return self.rows_of(name, *families) == 0


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


@asynccontextmanager
async def client(
    broker: Broker, name: str, *, clean_start: bool = False, **options: Any
) -> AsyncIterator[Client]:
    async with Client(
        f"mqtt://127.0.0.1:{broker.ports[0]}",
        client_id=name,
        clean_start=clean_start,
        session_expiry_s=3600,
        connect_timeout_s=LATE_S,
        **options,
    ) as made:
        yield made


async def test_what_one_stores_the_other_has(nodes: Nodes) -> None:
    await nodes.meet("one", "two")
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=2)
    async with client(one, "bob") as bob:
        for number in range(20):
            await bob.publish("a/1", b"%d" % number, qos=1 + number % 2)
        await bob.publish("b", b"kept", qos=1, retain=True)
    await until(lambda: nodes.agree("one", "two"))
    lines = nodes.lines("two")
    assert sum(line.startswith("entry") for line in lines) == 20
    assert sum(line.startswith("retained b") for line in lines) == 1
    assert sum(line.startswith("subscription ann a/#") for line in lines) == 1
    async with client(one, "ann") as ann:
        for number in range(20):
            assert (await anext(ann.messages)).payload == b"%d" % number
        # the last one is acknowledged when the next is asked for
        await until(lambda: nodes.count("two", "entry") == 1)
    await until(lambda: nodes.agree("one", "two"))


async def test_no_acknowledgement_before_there_is_a_copy(nodes: Nodes) -> None:
    await nodes.meet("one", "two", suspect_s=1000.0)
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    async with client(one, "bob") as bob:
        nodes.links.cut.add(nodes.keepers["two"].node.incarnation)
        receipt = bob.publish_nowait("a/1", b"x", qos=1)
        await until(lambda: nodes.count("one", "entry") == 1)
        await asyncio.sleep(0.2)
        assert not receipt.done
        nodes.links.cut.clear()
        await until(lambda: receipt.done)
    assert nodes.keepers["one"].counts["cluster_acknowledged_degraded"] == 0


async def publish_all(broker: Broker, topic: str, payloads: Iterable[bytes], *, qos: int = 1) -> None:
    """By bob, and acknowledged."""
    async with client(broker, "bob") as bob:
        for each in payloads:
            bob.publish_nowait(topic, each, qos=qos)
        await bob.flush()


async def receive(receiver: Client) -> bytes:
    """The next message."""
    async with asyncio.timeout(WAIT_S):
        return (await anext(receiver.messages)).payload


async def test_no_publish_of_qos_2_before_its_identifier_has_a_copy(nodes: Nodes) -> None:
    """Or the next home would give it another one, and the client take it for another message."""
    await nodes.meet("one", "two", suspect_s=1000.0)
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=2)
    async with client(one, "bob") as bob:
        await bob.publish("a/1", b"x", qos=2)
    await until(lambda: nodes.agree("one", "two"))
    nodes.links.cut.add(nodes.keepers["two"].node.incarnation)
    async with client(one, "ann") as ann:
        sent = asyncio.create_task(receive(ann))
        await until(
            lambda: any(each.startswith("entry") and " 0 False" in each for each in nodes.lines("one"))
        )
        await asyncio.sleep(0.3)
        assert not sent.done()
        nodes.links.cut.clear()
        assert await sent == b"x"


async def test_who_has_applied_is_heard_while_as_many_batches_wait_as_may(nodes: Nodes) -> None:
    """A log that takes nothing delays nobody while its node asks for what it lacks, and applies it."""
    await nodes.meet("one", "two", suspect_s=1000.0)
    one, keeper = nodes.brokers["one"], nodes.keepers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    async with client(one, "bob") as bob:
        nodes.links.cut.add(nodes.keepers["two"].node.incarnation)
        receipts = []

        def has_begun(after: int) -> bool:
            # or a batch of the keeper's own was the last that may begin
            return keeper.node.last > after or not keeper.promises.may_begin

        while keeper.promises.may_begin:
            last = keeper.node.last
            receipts.append(bob.publish_nowait("a/1", b"x", qos=1))
            await until(partial(has_begun, last))
        nodes.links.copying = False
        nodes.links.cut.clear()
        await until(lambda: all(receipt.done for receipt in receipts))
    assert len(receipts) > UNDER_WAY_MAX // 2
    assert keeper.counts["cluster_acknowledged_degraded"] == 0


async def test_what_only_its_own_server_has_of_a_dead_node_is_read(nodes: Nodes) -> None:
    """It was acknowledged for this copy, and nobody else knows of it."""
    await nodes.meet("one", "two", suspect_s=1.0)
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    await until(lambda: nodes.agree("one", "two"))
    async with client(nodes.brokers["one"], "bob") as bob:
        nodes.links.unheard.add(nodes.keepers["two"].node.incarnation)
        await bob.publish("a/1", b"x", qos=1)
        nodes.links.cut.add(nodes.keepers["one"].node.incarnation)
        nodes.links.unheard.clear()
        async with client(nodes.brokers["two"], "ann") as ann:
            assert await receive(ann) == b"x"


async def three_with_a_subscriber(nodes: Nodes) -> tuple[Broker, str, str]:
    """Of three nodes the first, with a session of `a/#`; which takes over if it dies, and the third."""
    await nodes.meet("one", "two", "three", suspect_s=1000.0)
    replica = nodes.ask("one", lambda keeper: keeper.node.members.replica(time.monotonic()))
    names = {keeper.node.incarnation: name for name, keeper in nodes.keepers.items()}
    successor = names[replica]
    third = next(each for each in nodes.keepers if each not in ("one", successor))
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    await until(lambda: nodes.agree("one", "two", "three"))
    return nodes.brokers["one"], successor, third


async def test_a_node_reads_the_copies_that_its_own_server_has(nodes: Nodes) -> None:
    """Of what it has not heard, from a node that is gone: a third one knows that it was."""
    one, successor, third = await three_with_a_subscriber(nodes)
    async with client(one, "bob") as bob:
        nodes.links.unheard.add(nodes.keepers[successor].node.incarnation)
        await bob.publish("a/1", b"x", qos=1)
        await until(lambda: nodes.count(third, "entry") == 1)
        assert nodes.count(successor, "entry") == 0
        nodes.links.cut.add(nodes.keepers["one"].node.incarnation)
        nodes.links.unheard.clear()
        await until(lambda: nodes.count(successor, "entry") == 1)


async def test_a_copy_is_one_where_the_sessions_would_go_on(nodes: Nodes) -> None:
    """Another node that has applied a record keeps it for nobody."""
    one, successor, third = await three_with_a_subscriber(nodes)
    async with client(one, "bob") as bob:
        nodes.links.copying = False
        nodes.links.unheard.add(nodes.keepers[successor].node.incarnation)
        receipt = bob.publish_nowait("a/1", b"x", qos=1)
        await until(lambda: nodes.count(third, "entry") == 1)
        await asyncio.sleep(0.2)
        assert not receipt.done
        nodes.links.unheard.clear()
        await until(lambda: receipt.done)


async def test_without_another_node_it_is_acknowledged_late_and_counted(nodes: Nodes) -> None:
    await nodes.meet("one", "two")
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    await nodes.stop("two")
    async with client(one, "bob") as bob:
        for _ in range(3):
            await bob.publish("a/1", b"x", qos=1)
    assert nodes.keepers["one"].counts["cluster_acknowledged_degraded"] >= 3
    assert nodes.keepers["one"].promises.is_degraded
    await nodes.start("two")
    await until(lambda: nodes.agree("one", "two"))
    await until(lambda: not nodes.keepers["one"].promises.is_degraded)


async def test_a_node_goes_on_where_it_was(nodes: Nodes) -> None:
    await nodes.meet("one", "two")
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=2)
        await ann.subscribe("$share/g/b/#", qos=1)
    async with client(one, "bob") as bob:
        for number in range(10):
            await bob.publish("a/1", b"%d" % number, qos=1 + number % 2)
            await bob.publish("b/1", b"%d" % number, qos=1)
    await until(lambda: not any("ends_at_ms=0" in line for line in nodes.lines("one")), "all have gone")
    before = nodes.lines("one")
    assert nodes.count("one", "entry") == 20
    await nodes.stop("one")
    one = await nodes.start("one")
    assert nodes.lines("one") == before
    async with client(one, "ann") as ann:
        found = [(await anext(ann.messages)) for _ in range(20)]
        for topic in ("a/1", "b/1"):
            assert [each.payload for each in found if each.topic == topic] == [b"%d" % n for n in range(10)]
        await until(lambda: nodes.count("two", "entry") == 1)
    await until(lambda: nodes.agree("one", "two"))


async def test_a_session_that_ends_is_gone_everywhere(nodes: Nodes) -> None:
    await nodes.meet("one", "two")
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=2)
        await ann.subscribe("b/#", qos=1)
    await publish_all(one, "a/1", [b"x"] * 300)
    await until(lambda: nodes.count("two", "entry") == 300)
    async with client(one, "ann", clean_start=True):
        for name in ("one", "two"):
            await until(partial(nodes.has_none, name, "queue", "payload", "reference"))
            assert nodes.count(name, "subscription") == 0
            assert nodes.count(name, "session ann") == 1
    await until(lambda: nodes.agree("one", "two"))


async def test_a_session_ends_in_the_batch_in_which_it_changed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client leaves, and begins a clean one, while the keeper is busy: it does not come back."""
    await nodes.meet("one", "two")
    one, keeper = nodes.brokers["one"], nodes.keepers["one"]
    advance, connect = keeper.moves.advance, keeper.connect
    free, asked, slow = threading.Event(), threading.Event(), [True]

    def ask(client_id: str, clean: bool) -> Future[int]:
        answer = connect(client_id, clean)
        asked.set()
        return answer

    def advance_slowly(now: float, *, pauses: bool) -> None:
        advance(now, pauses=pauses)
        if asked.is_set() and slow:
            slow.clear()
            time.sleep(0.3)  # until the engine has ended the session; only then the next work is taken

    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
        keeper.ask(lambda: free.wait(WAIT_S))
        monkeypatch.setattr(keeper, "connect", ask)
        monkeypatch.setattr(keeper.moves, "advance", advance_slowly)
    url = f"mqtt://127.0.0.1:{one.ports[0]}"
    cleanly = Client(url, client_id="ann", clean_start=True, session_expiry_s=0)
    coming = asyncio.create_task(cleanly.connect())
    await until(asked.is_set)
    free.set()
    await coming
    await cleanly.disconnect()
    assert not slow
    async with client(one, "ann") as ann:
        assert ann.connack is not None
        assert not ann.connack.session_present
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("two", "subscription") == 0


async def test_a_new_node_gets_what_is_there_while_more_comes(nodes: Nodes) -> None:
    slow = {"suspect_s": 1000.0}  # the thousands of rows that are compared keep nodes from their heartbeats
    await nodes.meet("one", "two", **slow)
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=2)
        await ann.subscribe("$share/g/b/#", qos=1)
    async with client(one, "bob") as bob:
        for number in range(1000):
            bob.publish_nowait("a/1", b"%d" % number * 100, qos=1)
            bob.publish_nowait(f"r/{number % 10}", b"%d" % number, qos=1, retain=True)
            bob.publish_nowait("b/1", b"x", qos=1)
        await bob.flush()
        await until(lambda: nodes.agree("one", "two"), poll_s=SELDOM_S)
        await until(lambda: nodes.keepers["one"].node.stability.first > 1, "its first records are gone")
        later = while_it_came = 0
        started = asyncio.create_task(nodes.start("three", **slow))
        while later < 200 or not started.done():
            await bob.publish("a/1", b"later %d" % later, qos=1)
            later += 1
            while_it_came = later if not started.done() else while_it_came
        await started
        assert while_it_came > 10, "hardly anything was published while it took over what is there"
    await until(lambda: nodes.agree("one", "two", "three"), poll_s=SELDOM_S)
    assert nodes.count("three", "entry") == 2000 + later
    assert nodes.count("three", "retained") == 10
    await nodes.stop("three")
    three = await nodes.start("three", **slow)
    async with client(three, "eve") as eve:
        await eve.subscribe("c", qos=1)
    await until(lambda: nodes.agree("one", "two", "three"), poll_s=SELDOM_S)
    for name in ("one", "two", "three"):
        check_store(nodes.stores[name], nodes, name)


async def test_what_waits_for_a_shared_subscription_ends_with_its_last_session(nodes: Nodes) -> None:
    """On whichever node that session is; and it is counted."""
    await nodes.meet("one", "two")
    one, counts = nodes.brokers["one"], nodes.keepers["one"].shared.counts
    async with client(one, "ann") as ann, client(nodes.brokers["two"], "eve") as eve:
        await ann.subscribe("$share/g/b/#", qos=1)
        await eve.subscribe("$share/g/b/#", qos=1)
    await publish_all(one, "b/1", [b"x"] * 300)
    async with client(one, "ann", clean_start=True):
        await until(lambda: counts["cluster_shared_refused"] > 0, "nobody is there who takes any")
        await asyncio.sleep(AGAIN_S + 1)  # it was looked whether anybody is subscribed: eve is
        assert nodes.count("two", "entry") == 300
    async with client(nodes.brokers["two"], "eve", clean_start=True):
        await until(lambda: nodes.count("two", "entry") == 0)
    await until(lambda: counts["cluster_shared_ended"] == 300)
    await until(lambda: nodes.has_none("one", "shared", "queue", "payload"))


async def test_the_end_of_a_shared_subscription_is_not_that_of_one_that_begins_then(nodes: Nodes) -> None:
    await nodes.meet("one", "two")
    one, counts = nodes.brokers["one"], nodes.keepers["one"].shared.counts
    for again in (False, True):
        async with client(one, "ann") as ann:
            await ann.subscribe("$share/g/b/#", qos=1)
        async with client(one, "bob") as bob:
            await bob.publish("b/1", b"x", qos=1)
        refused = counts["cluster_shared_refused"]
        async with client(nodes.brokers["two" if again else "one"], "ann", clean_start=not again):
            await until(lambda: counts["cluster_shared_refused"] > refused, "nobody takes it here")  # noqa: B023
            await until(lambda: again or nodes.count("one", "entry") == 0)  # noqa: B023
    assert counts["cluster_shared_ended"] == nodes.count("one", "entry") == 1


async def test_a_store_is_a_node_s_or_a_broker_s(nodes: Nodes, tmp_path: Path) -> None:
    await nodes.start("one")
    await nodes.stop("one")
    config = Config(port=0, host="127.0.0.1", data=tmp_path / "one")
    with pytest.raises(StoreError, match="needs cluster_name, or another directory"):
        await Broker(config).start()
    other = config.model_copy(update={"data": tmp_path / "alone"})
    async with Broker(other) as alone, client(alone, "ann"):
        pass
    with pytest.raises(StoreError, match="filled by a broker without a cluster"):
        await nodes.start("alone")


def check_store(store: RocksDBStore, nodes: Nodes, name: str) -> None:
    """Each row can be read, no two queues have one number, and each entry has its payload."""

    def look(_: ClusterKeeper) -> None:
        for family, parse in PARSERS.items():
            for key, value in store.scan(family):
                parse(key, value)
        numbers = [parse_session(*row).queue for row in store.scan("session")]
        assert len(set(numbers)) == len(numbers)
        ids = {parse_queue(*row).id for row in store.scan("queue")}
        assert ids == {key for key, _ in store.scan("payload")}

    nodes.ask(name, look)


@pytest.mark.parametrize("who", ["one", "two"])
async def test_a_batch_that_is_in_the_store_although_its_sync_failed_is_known_to_all(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Of its own, which no client asked for, or of what the other node has done."""
    await nodes.meet("one", "two")
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("$share/g/b/#", qos=1)
    await publish_all(nodes.brokers["one"], "b/1", [b"goes", b"stays"])
    await until(lambda: nodes.agree("one", "two"))
    failed = threading.Event()

    def fails() -> None:
        monkeypatch.undo()
        failed.set()
        raise OSError(errno.EIO, "the sync fails")

    def remove(keeper: ClusterKeeper, fails: Callable[[], None] | None) -> None:
        owner, message_id, _ = min(keeper.rows.entries.all(), key=lambda each: each[1])
        if fails is not None:
            monkeypatch.setattr(nodes.stores["one"], "_sync_logs", fails)
        try:
            keeper._write([Remove(owner, message_id)])
        except StoreError:
            keeper.rows.discard()  # as between two pieces of work

    if who == "one":
        nodes.ask("one", lambda keeper: remove(keeper, fails))
    else:
        monkeypatch.setattr(nodes.stores["two"], "_sync_logs", fails)
        nodes.ask("one", lambda keeper: remove(keeper, None))
    await until(failed.is_set)
    async with client(nodes.brokers["one"], "bob") as bob:
        await bob.subscribe("c", qos=1)
    await until(lambda: nodes.agree("one", "two"), "both have the same")
    assert nodes.count("one", "entry") == 1
    for name in ("one", "two"):
        check_store(nodes.stores[name], nodes, name)


@pytest.mark.parametrize("then", ["nothing", "forgets", "starts again", "forgets and starts again"])
async def test_what_a_node_did_last_is_given_to_those_who_were_away(nodes: Nodes, then: str) -> None:
    """One dies with a record of which there was no copy yet. Then the only node that has it forgets that one,
    or is started again.
    """
    await nodes.meet("one", "two", "three", suspect_s=1.5)
    names = {keeper.node.incarnation: name for name, keeper in nodes.keepers.items()}
    dead, taker, away = (names[each] for each in sorted(names))  # as the ring goes
    async with client(nodes.brokers[dead], "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    await until(lambda: nodes.agree("one", "two", "three"))
    await nodes.stop(away)
    async with client(nodes.brokers[dead], "bob") as bob:
        await bob.publish("a/1", b"1", qos=1)
        await until(lambda: nodes.agree(dead, taker))
        nodes.links.copying = False
        await bob.publish("a/1", b"2", qos=1)  # acknowledged, for the next one has applied it
    await until(lambda: nodes.count(taker, "entry") == 2)
    gone = nodes.keepers[dead].node.incarnation
    nodes.links.cut.add(gone)
    await until(lambda: gone in nodes.ask(taker, lambda keeper: set(keeper.moves.orphans.settled)))
    if "forgets" in then:
        nodes.ask(
            taker,
            lambda keeper: keeper.membership.forget(dead, time.monotonic(), keeper.moves.orphans.settled),
        )
        await until(lambda: gone in nodes.ask(taker, lambda keeper: set(keeper.membership._dropped)))
    if "starts again" in then:
        await nodes.stop(taker)
        await nodes.start(taker, suspect_s=1.5)
    nodes.links.copying = True
    await nodes.start(away, suspect_s=1.5)
    await until(lambda: nodes.agree(taker, away))
    assert nodes.count(away, "entry") == 2
    if "forgets" in then:  # else the dead one is a member, and may come back
        own = nodes.keepers[taker].node.incarnation
        await until(lambda: {key[:8] for key, _ in nodes.stores[taker].scan("log")} <= {own.to_bytes(8)})


async def test_who_is_named_and_has_ended_is_heard_of_again_before_it_is_nobody(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that began after that may take a message of which its node's record is still on its way:
    what all had done by then is waited for, however long their records take, and then it is nobody.
    """
    await nodes.meet("one", "two", "three")
    await nodes.stop("three")  # or the end would be forgotten
    two = nodes.brokers["two"]
    async with client(two, "ann"):
        pass
    async with Client(f"mqtt://127.0.0.1:{two.ports[0]}", client_id="ann"):
        pass

    def hear(keeper: ClusterKeeper) -> bool:
        keeper._hear_of_next([b"ann"])
        return keeper.conversion.is_over(b"ann")

    def is_over(keeper: ClusterKeeper) -> bool:
        return keeper.conversion.is_over(b"ann")

    await until(lambda: nodes.ask("one", is_over), "it has ended")
    await until(lambda: len(nodes.ask("one", lambda it: it.node.members.live(time.monotonic()))) == 2, "seen")
    assert nodes.ask("one", hear), "all that was done is known, and it has not begun again"

    nodes.links.dropped.add("records")  # its heartbeats come
    async with client(two, "ann"):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(catching_up, "AT_MOST_S", 1.0)
        work: Any = SimpleNamespace(elsewhere=[b"ann"], described=[], writes=[])
        with pytest.raises(StoreError, match="has not come within 1 s"):  # so its publishers are refused
            nodes.ask("one", lambda keeper: keeper._writes_of(work))
    assert nodes.ask("one", is_over), "nor is it known what it is"
    heard = asyncio.create_task(asyncio.to_thread(nodes.ask, "one", hear))
    await asyncio.sleep(1)
    assert not heard.done()
    nodes.links.dropped.clear()  # it asks for what it lacks
    assert not await heard
