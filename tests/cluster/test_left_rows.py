"""What is left of batches that could not be stored."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster.nodes import begun, make_message
from cluster.test_elsewhere import ANN, FIRST, SECOND, Converting, row
from cluster.test_keeping import Nodes, check_store, client, publish_all, receive
from waiting import WAIT_S, until

from tidemq.client import Client
from tidemq.client.errors import PublishError
from tidemq.cluster import operations as ops
from tidemq.cluster.conversion import Described
from tidemq.cluster.keeping import ClusterKeeper
from tidemq.cluster.left_rows import LeftRows
from tidemq.cluster.operations import SESSION, Owner, Stamp
from tidemq.cluster.records import Record
from tidemq.cluster.rows import Session
from tidemq.cluster.stored_rows import id_bytes
from tidemq.cluster.vectors import Dot
from tidemq.errors import StoreError, TideMQError
from tidemq.store import rocksdb


def test_all_is_left_but_new_messages_and_that_they_came() -> None:
    left = LeftRows()
    assert not left
    message = make_message("a", b"x")
    new, moved = row(7, FIRST, message), (*row(8, FIRST)[:-2], True, None)
    sent, session = ("send", 7, FIRST, 3), ("put", "session", b"ann", b"...")
    left.add([new, moved, sent, session, ("put", "received", b"key", b"mark")])
    left.add([row(b"bob", SECOND, message)], {b"bob"})
    assert left
    found, elsewhere = left.with_work(None)
    removed, moved_again, *others, of_bob = found
    assert removed == ("remove", 7, new[2], 0)
    assert moved_again == (*moved[:-1], message), "with the message, which stood in a row that goes"
    assert others == [sent, session, ("put", "received", b"key", None)]
    assert of_bob == ("remove", b"bob", row(b"bob", SECOND)[2], 0)
    assert elsewhere == {b"bob"}
    work: Any = SimpleNamespace(described=[sent], elsewhere={b"cem"})
    assert left.with_work(work) == ([*found, sent], {b"bob", b"cem"})
    left.clear()
    assert not left
    assert left.with_work(work) == ([sent], {b"cem"})
    assert left.with_work(None) == ([], set())


def session(queue: int) -> tuple[Any, ...]:
    return "put", "session", b"ann", struct.pack(">QIqqIqI", queue, 3600, 0, 0, 0, -1, 0)


@pytest.mark.parametrize("is_there", [False, True])
def test_what_was_converted_and_not_stored_is_converted_again(is_there: bool) -> None:
    """As from the beginning, or where the store has it all the same, as what is there."""
    converting = Converting()
    rows, conversion = converting.rows, converting.conversion
    rows.sessions.put("ann", None, None)
    (first,) = converting.convert(session(7))
    assert isinstance(first, ops.PutSession)
    assert first.begins
    if is_there:
        rows.owners.add(ANN, 7)
        rows.sessions.put("ann", None, Session(first, Dot(1, 1)))
    (again,) = converting.convert(session(7))
    assert isinstance(again, ops.PutSession)
    assert again.begins == (not is_there)
    assert (again.epoch == first.epoch) == is_there
    assert again.connected == again.epoch == conversion.epoch("ann")
    assert conversion.owner(7) == ANN
    rows.sessions.put("ann", None, Session(again, Dot(1, 2)))
    conversion.stored()
    (later,) = converting.convert(session(7))
    assert isinstance(later, ops.PutSession)
    assert not later.begins
    assert later.epoch == again.epoch


def test_of_two_sessions_that_began_and_were_not_stored_the_store_may_have_the_first() -> None:
    converting = Converting()
    rows, conversion = converting.rows, converting.conversion
    rows.sessions.put("ann", None, None)
    (first,) = converting.convert(session(7))
    assert isinstance(first, ops.PutSession)
    rows.owners.add(ANN, 7)
    rows.sessions.put("ann", None, Session(first, Dot(1, 1)))
    again, end, second = converting.convert(session(7), ("put", "session", b"ann", None), session(8))
    assert isinstance(again, ops.PutSession)
    assert isinstance(second, ops.PutSession)
    assert (again.begins, again.epoch) == (False, first.epoch)
    assert end == ops.EndSession("ann", first.epoch)
    assert second.begins
    assert second.epoch == conversion.epoch("ann") != first.epoch
    assert conversion.owner(8) == ANN


def test_the_end_of_a_session_that_was_not_stored_is_one_of_that_session() -> None:
    """So it is where the client's next one began with it."""
    converting = Converting()
    conversion = converting.conversion
    conversion.know(7, ANN, begun("ann", FIRST, 1))
    converting.rows.owners.add(ANN, 7)
    ended = "put", "session", b"ann", None
    for _ in range(3):
        end, begins = converting.convert(ended, session(8))
        assert end == ops.EndSession("ann", FIRST)
        assert isinstance(begins, ops.PutSession)
        assert begins.begins
        assert begins.replaces
    (end,) = converting.convert(ended)
    assert end == ops.EndSession("ann", FIRST)
    assert conversion.owner(8) is None
    assert conversion.epoch("ann") is None


def test_an_epoch_that_is_in_the_store_all_the_same_is_known() -> None:
    """Else the end of that session would be one of an earlier epoch, and void."""
    conversion = Converting().conversion
    conversion.catch_up_with(begun("ann", SECOND, 1))
    assert conversion.epoch("ann") is None, "the engine has no such session"
    conversion.know(7, ANN, begun("ann", SECOND, 1))
    conversion.catch_up_with(begun("ann", FIRST, 1))
    assert conversion.epoch("ann") == SECOND
    later = Stamp(SECOND.clock + 64, 1)
    conversion.catch_up_with(begun("ann", later, 1))
    assert conversion.rank("ann") == (later, later)


def test_what_a_session_does_that_is_over_is_for_nobody() -> None:
    converting = Converting()
    converting.conversion.know(7, ANN)
    key = row(7, FIRST)[2]
    assert converting.convert(("send", 7, key, 0), ("return", 7, key, 0), ("release", 7, key, 0)) == []
    assert converting.conversion.counts["cluster_rows_without_owner"] == 3


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        made = Nodes(tmp_path, stack)
        await made.meet("one", "two", suspect_s=WAIT_S)  # who is silent, as its store fails, is not dead
        yield made


@pytest.fixture(params=["not written", "written"])
def failing(request: pytest.FixtureRequest, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The first node's store says that it cannot write, from a batch on that has rows of such a kind, until
    these are left; it has the batch all the same, or not.
    """
    store, keeper = nodes.stores["one"], nodes.keepers["one"]
    apply, sync_logs, convert = rocksdb._apply, store._sync_logs, keeper.conversion.convert
    fails = False

    def fail() -> None:
        if fails:
            raise OSError(errno.EIO, "nothing is written")

    def apply_or_fail(database: Any, *rest: Any) -> Any:
        if database is store._database and request.param == "not written":
            fail()
        return apply(database, *rest)

    def sync_or_fail() -> None:
        fail()
        sync_logs()

    @asynccontextmanager
    async def until_left(*kind: str | bytes | None) -> AsyncIterator[None]:
        def has_kind(rows: Described) -> bool:
            return any(each[: len(kind)] == kind for each in rows)

        def is_left_of_it(rows: Described) -> bool:
            return any(each[0] == "remove" for each in rows) if kind == ("add",) else has_kind(rows)

        def convert_and_fail(rows: Described, *rest: Any) -> Any:
            nonlocal fails
            fails = fails or has_kind(rows)
            return convert(rows, *rest)

        def is_left() -> bool:
            found, _ = keeper._left_rows.with_work(None)
            return is_left_of_it(found)

        nonlocal fails
        with monkeypatch.context() as patch:
            patch.setattr(keeper.conversion, "convert", convert_and_fail)
            yield
            await until(is_left, "it is left")
            fails = False
        await until(lambda: not nodes.ask("one", lambda it: it.failure or it._left_rows), "all is stored")

    @asynccontextmanager
    async def from_now_on() -> AsyncIterator[None]:
        nonlocal fails
        fails = True
        yield
        fails = False

    monkeypatch.setattr(rocksdb, "_apply", apply_or_fail)
    monkeypatch.setattr(store, "_sync_logs", sync_or_fail)
    return SimpleNamespace(until_left=until_left, from_now_on=from_now_on)


async def comes(nodes: Nodes, name: str, *, clean_start: bool) -> None:
    """A client connects and subscribes, whatever it is answered."""
    with suppress(TideMQError, TimeoutError):
        async with asyncio.timeout(3), client(nodes.brokers["one"], name, clean_start=clean_start) as made:
            await made.subscribe("b/#", qos=1)


async def publish(nodes: Nodes, topic: str, payload: bytes, *, qos: int = 1) -> None:
    """Until it is acknowledged: reactors may go on to refuse for a moment."""
    async with client(nodes.brokers["one"], "bob") as bob, asyncio.timeout(WAIT_S):
        while True:
            with suppress(PublishError):
                await bob.publish(topic, payload, qos=qos)
                return


@pytest.mark.parametrize("before", ["none", "one"])
async def test_a_session_that_begins_has_the_queue_that_the_engine_knows(
    nodes: Nodes, failing: Any, before: str
) -> None:
    """What is published for its client afterwards comes, without another start. In place of an earlier one
    it begins with Clean Start, whose end is in the same batch.
    """
    one = nodes.brokers["one"]
    if before == "one":
        async with client(one, "ann") as ann:
            await ann.subscribe("a/#", qos=1)
    ends = (b"ann", None) if before == "one" else ()
    async with failing.until_left("put", "session", *ends):
        coming = asyncio.create_task(comes(nodes, "ann", clean_start=before == "one"))
    await coming
    await comes(nodes, "ann", clean_start=False)
    owner = Owner(SESSION, "ann")
    row = nodes.stores["one"].get("session", b"ann")
    assert row is not None
    assert int.from_bytes(row[:8]) == nodes.ask("one", lambda it: it.conversion.number(owner))
    await publish(nodes, "a/1", b"goes with what was before")
    await publish(nodes, "b/1", b"comes")
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("one", "subscription ann") == 1
    async with client(one, "ann") as ann:
        assert await receive(ann) == b"comes"
    await until(lambda: nodes.count("two", "entry") == 0)
    check_store(nodes.stores["one"], nodes, "one")


async def test_a_session_that_ends_is_over(nodes: Nodes, failing: Any) -> None:
    one = nodes.brokers["one"]
    url = f"mqtt://127.0.0.1:{one.ports[0]}"
    async with client(one, "ann") as ann:
        await ann.subscribe("b/#", qos=1)
    await until(lambda: nodes.count("two", "session") == 1)
    async with failing.until_left("put", "session", b"ann", None):
        with suppress(TideMQError, TimeoutError):
            async with asyncio.timeout(3), Client(url, client_id="ann", session_expiry_s=0):
                await asyncio.sleep(0)
    await publish(nodes, "b/1", b"for nobody")
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("one", "session ann") == nodes.count("one", "entry") == 0
    async with client(one, "ann"):
        await until(lambda: nodes.count("two", "session ann") == 1)
    assert nodes.count("two", "subscription") == 0


async def test_messages_that_could_not_be_stored_go_and_later_ones_come(nodes: Nodes, failing: Any) -> None:
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("b/#", qos=2)
    async with failing.until_left("add"):
        with suppress(TideMQError, TimeoutError):
            async with asyncio.timeout(3):
                await publish_all(one, "b/1", [b"refused"], qos=2)
    await publish(nodes, "b/1", b"late", qos=2)
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("one", "entry") == 1
    async with client(one, "ann") as ann:
        assert await receive(ann) == b"late"
        await ann.unsubscribe("b/#")
    check_store(nodes.stores["one"], nodes, "one")


@pytest.mark.parametrize("reads", [True, False])
async def test_what_another_node_has_done_is_told_once_where_it_could_not_be_stored_at_first(
    nodes: Nodes, failing: Any, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """What waits for a client is counted: what was removed twice would hide another message. It could not be
    written, or what it is applied to could not be read.
    """
    one, two = nodes.keepers["one"], nodes.keepers["two"]
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("b/#", qos=1)
    await publish(nodes, "b/1", b"goes")
    await until(lambda: nodes.agree("one", "two"))
    told: list[tuple[str, list[bytes]]] = []

    def note(what: str, number: int, ids: Sequence[bytes], *_: object) -> None:
        assert number == one.conversion.number(ANN)
        told.append((what, list(ids)))

    access: Any = SimpleNamespace(note_added=partial(note, "added"), note_removed=partial(note, "removed"))
    one.telling._access = access

    def act(keeper: ClusterKeeper) -> tuple[bytes, bytes]:
        (goes,) = (each for each, _ in keeper.rows.queue(ANN))
        comes = keeper.node.stamp()
        message = make_message("b/1", b"comes")
        added = ops.Payload(comes, message), ops.Add(ANN, comes, 0, 1, len(message), 0)
        keeper._write([ops.Remove(ANN, goes), *added])
        return id_bytes(goes), id_bytes(comes)

    take = one.node.incoming.take
    failures = 0

    def take_or_fail() -> Record | None:
        """There is another record, which cannot be applied."""
        nonlocal failures
        record = take()
        if record is None and one.node.applier.removed and failures < 2:
            failures += 1
            raise StoreError("it cannot be read")
        return record

    if reads:
        monkeypatch.setattr(one.node.incoming, "take", take_or_fail)
        goes, comes = nodes.ask("two", act)
        await until(lambda: failures == 2)
    else:
        async with failing.from_now_on():
            goes, comes = nodes.ask("two", act)
            await until(lambda: one.counts["store_failures"] > 1, "it fails, and fails again")
    await until(lambda: nodes.agree("one", "two"))
    await until(lambda: nodes.ask("one", lambda it: it.node.applied == it.rows.vector), "and durably")
    await until(lambda: len(told) >= 2)
    assert sorted(told) == [("added", [comes]), ("removed", [goes])]
    assert two.rows.vector == one.rows.vector


def made_work(**rest: Any) -> Any:
    """Of the engine's, with nothing else in it."""
    lists: dict[str, Any] = {each: [] for each in ("purges", "trims", "expired", "reads", "left", "arrived")}
    nothing: dict[str, Any] = {"let_go": [], "given": [], "described": [], "writes": [], "elsewhere": set()}
    return SimpleNamespace(**{**lists, **nothing, **rest})


async def test_nothing_of_a_batch_that_failed_is_in_the_next_one(nodes: Nodes) -> None:
    def look(keeper: ClusterKeeper) -> list[Any]:
        keeper.node.write([ops.Retain("t", keeper.node.stamp(), b"...")])
        assert keeper.rows.take_changes()
        keeper._leave_undone(made_work())
        return keeper.rows.take_changes()

    assert nodes.ask("one", look) == []


async def test_windows_are_read_although_what_moves_cannot_be_followed_yet(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue whose window is never answered would send nothing any more. What moves is followed later, or
    nobody would get that session.
    """
    keeper, answered, arrived = nodes.keepers["one"], list[int](), list[tuple[str, bool]]()
    fails = True

    def note(client: str, here: bool) -> None:
        if fails:
            raise StoreError("it cannot be read")
        arrived.append((client, here))

    def answer(_reactor: int, queue: int, *_: object) -> list[bytes]:
        answered.append(queue)
        return []

    monkeypatch.setattr(keeper.moves, "arrived", note)
    monkeypatch.setattr(keeper._windows, "answer", answer)
    reads = [(0, 7, b"", 10)]
    come = [(b"ann", True), (b"bob", False)]
    nodes.ask("one", lambda it: it._do_the_rest(made_work(arrived=come, reads=reads)))
    assert (answered, arrived) == ([7], [])
    fails = False
    await until(lambda: len(arrived) == 2, "with the next work")
    assert arrived == [("ann", True), ("bob", False)]


async def test_a_session_has_left_when_what_it_did_last_is_stored(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its client has acknowledged would come again where it goes on."""
    left: list[str] = []

    def look(keeper: ClusterKeeper) -> None:
        def note(client: str, _place: int, *, here: bool) -> None:
            assert not keeper._left_rows
            assert here
            left.append(client)

        monkeypatch.setattr(keeper.moves.departures, "left", note)
        keeper._left_rows.add([("remove", 7, bytes(16), 0)])
        keeper._do_the_rest(made_work(left=[(b"ann", 1, True)]))
        assert left == []
        keeper._left_rows.clear()
        keeper._do_the_rest(made_work(left=[(b"bob", 1, True)]))

    nodes.ask("one", look)
    assert left == ["ann", "bob"]


async def test_it_is_open_what_the_store_has_until_all_is_known(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StoreError("it cannot be read")

    def look(keeper: ClusterKeeper) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(keeper.rows, "confirm", fail)
            with pytest.raises(StoreError):
                keeper._write([ops.Clear("t", keeper.node.stamp())])
        keeper.rows.discard()
        before = keeper.node.durable
        keeper._write([ops.Clear("t", keeper.node.stamp())])
        assert keeper.node.durable == before + 2

    nodes.ask("one", look)
    await until(lambda: nodes.agree("one", "two"))
    assert not nodes.keepers["two"].node.incoming.counts["cluster_records_damaged"]


async def test_what_is_there_although_it_could_not_be_synced_is_synced_and_told(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing else is written afterwards."""

    def fail() -> None:
        raise OSError(errno.EIO, "the sync fails")

    def look(keeper: ClusterKeeper) -> None:
        before = keeper.node.durable
        with monkeypatch.context() as patch:
            patch.setattr(nodes.stores["one"], "_sync_logs", fail)
            with pytest.raises(StoreError):
                keeper._write([ops.Clear("t", keeper.node.stamp())])
        keeper.rows.discard()
        assert keeper.node.durable == before
        keeper._write([])
        assert keeper.node.durable == before + 1

    nodes.ask("one", look)


async def test_who_is_named_waits_for_what_is_left(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is heard before that is stored."""

    def look(keeper: ClusterKeeper) -> None:
        monkeypatch.setattr(keeper.conversion, "is_over", lambda _: True)
        keeper._left_rows.add([("remove", 7, bytes(16), 0)])
        with pytest.raises(StoreError, match="before what is left is stored"):
            keeper._hear_of_next([b"ann"])
        keeper._left_rows.clear()

    nodes.ask("one", look)
