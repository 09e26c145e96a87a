"""Runs of operations: what is done to many at once is what is done to each, and says the same."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from cluster.nodes import WrittenRows, begun, make_message
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemq.cluster import conversion
from tidemq.cluster import operations as ops
from tidemq.cluster.applying import Applier
from tidemq.cluster.conversion import Conversion
from tidemq.cluster.message_runs import pack_run
from tidemq.cluster.operations import GROUP, SESSION, Operation, Owner, PutSession, Run, Stamp
from tidemq.cluster.pending import Pending
from tidemq.cluster.records import NO_DIGEST, Record, parse_record, read_run
from tidemq.cluster.rows import Rows, Session
from tidemq.cluster.run_rows import SOURCES_MAX, NewestIds
from tidemq.cluster.sharing import Sharing
from tidemq.cluster.stored_rows import id_bytes
from tidemq.cluster.vectors import Dot
from tidemq.errors import ClusterError
from tidemq.store.interface import FAMILIES
from tidemq.store.memory import MemoryStore
from tidemq.store.rows import IDLE, IN_FLIGHT, PARSERS

CLIENTS = ("ann", "bob", "zoë")
OWNER = st.sampled_from([*(Owner(SESSION, each) for each in CLIENTS), Owner(GROUP, "$share/g/a")])
# few, so that they come again; of two reactors and two nodes
STAMP = st.builds(
    lambda clock, reactor, node: Stamp(clock << 6 | reactor, node),
    *[st.integers(1, 2)] * 2,
    st.integers(1, 2),
) | st.builds(lambda clock, node: Stamp(clock << 6, node), st.integers(3, 40), st.integers(1, 2))
ADD = st.builds(
    lambda owner, qos, expires_at_ms, shared, ids: (owner, qos, expires_at_ms, shared, ids),
    OWNER,
    st.integers(0, 2),
    st.sampled_from([0, 0, 5_000_000]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([(), (), (7, 9)]),
)
MESSAGE = make_message("a", b"1")


def message(stamp: Stamp, adds: list[Any]) -> list[Operation]:
    """A message and the queues that get it."""
    added = [
        ops.Add(owner, stamp, qos & 1, qos, 2, expires, shared, ids)
        for owner, qos, expires, shared, ids in adds
    ]
    return [ops.Payload(stamp, make_message("a", b"%d" % stamp.clock)), *added]


def one(operation: Operation) -> list[Operation]:
    return [operation]


EPOCH = st.builds(Stamp, st.integers(1, 2), st.just(1))
OTHERS = st.one_of(
    st.builds(ops.Remove, OWNER, STAMP),
    st.builds(ops.Send, OWNER, EPOCH, STAMP, st.integers(0, 9)),
    st.builds(ops.Release, OWNER, EPOCH, STAMP),
    st.builds(ops.Return, OWNER, EPOCH, STAMP),
    st.builds(
        lambda client, epoch, begins: PutSession(
            client, epoch, 1, begins, 0, 60, 0, 0, 0, -1, connected=epoch
        ),
        st.sampled_from(CLIENTS),
        EPOCH,
        st.booleans(),
    ),
    st.builds(ops.EndSession, st.sampled_from(CLIENTS), EPOCH),
).map(one)
PART = st.builds(message, STAMP, st.lists(ADD, min_size=1, max_size=4)) | OTHERS
BATCH = st.lists(PART, max_size=8).map(lambda parts: [each for part in parts for each in part])
# records of a batch; whether it fails first
BATCHES = st.lists(st.tuples(st.lists(BATCH, min_size=1, max_size=2), st.booleans()), max_size=5)


def singly(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Runs as what they are made of."""
    return tuple(
        each
        for operation in operations
        for each in (read_run(operation.text) if isinstance(operation, Run) else [operation])
    )


def written(rows: WrittenRows) -> list[tuple[str, bytes, bytes]]:
    """All rows to the byte, but for the numbers of queues: whose it is, and whether an engine looks there. It
    does not matter where that lies which has ended with its session.
    """
    names: dict[bytes, bytes] = {}
    for key, value in rows.store.scan("cluster", b"o"):
        client, numbers = key[6:], [value[at : at + 8] for at in range(4, len(value), 8)]
        names |= dict.fromkeys(numbers, b"<left of %s>" % client)
        if key[1] == GROUP or rows.store.get("session", client) is not None:
            names[numbers[-1]] = b"<%s>" % client
    ended = {
        (rows.queue_of(owner, id_).to_bytes(8), id_bytes(id_))
        for owner, id_, entry in rows.entries.all()
        if not rows.shown(owner, entry)
    }

    def name(number: bytes, message_id: bytes = b"") -> bytes:
        return b"<ended>" if (number, message_id) in ended else names[number]

    found: list[tuple[str, bytes, bytes]] = []
    for family in FAMILIES:
        for key, value in rows.store.scan(family):
            if family == "cluster" and key[:1] == b"o":
                continue
            if (family == "cluster" and key[:1] == b"q") or family == "session":
                value = name(value[:8], key[-16:]) + value[8:]
            elif family in ("queue", "received"):
                key = name(key[:8], key[9:]) + key[8:]
            elif family == "expiry":
                key = key[:8] + name(key[8:16], key[16:]) + key[16:]
            found.append((family, key, value))
    return sorted(found)


def content(rows: WrittenRows) -> list[Any]:
    """All that the tables say."""
    tables: list[Any] = [rows.sessions, rows.ends, rows.entries, rows.removed, rows.payloads, rows.applied]
    found = ((owner, id_, rows.entries.get(owner, id_)) for owner, id_ in visible(rows))
    shown = sorted((owner, id_) for owner, id_, entry in found if entry and rows.shown(owner, entry))
    return [*(sorted(map(repr, table.all())) for table in tables), shown]


def visible(rows: WrittenRows) -> Iterator[tuple[Owner, Stamp]]:
    """What is in its session's queue of now, where an engine looks; without a session it does not."""
    for owner, message_id, _ in rows.entries.all():
        if rows.sessions.get(owner.name, None) is None:
            continue
        numbers = rows.owners.numbers(owner)
        for status in (IDLE, IN_FLIGHT):
            key = struct.pack(">QB", numbers[-1] if numbers else 0, status) + id_bytes(message_id)
            if rows.store.get("queue", key) is not None:
                yield owner, message_id


@settings(deadline=None)
@given(BATCHES)
def test_what_is_done_together_is_what_is_done_one_by_one(
    batches: list[tuple[list[list[Operation]], bool]],
) -> None:
    sides = [WrittenRows() for _ in range(2)]
    appliers = [Applier(rows) for rows in sides]
    number = 0
    for parts, fails in batches:
        records = []
        for operations in parts:
            number += 1
            records.append(parse_record(Record(Dot(1, number), NO_DIGEST, 1, {}, tuple(operations)).encoded))
        for attempt in range(1 + fails):
            for rows, applier, splits in zip(sides, appliers, (False, True), strict=True):
                for record in records:
                    applier.apply(replace(record, operations=singly(record.operations)) if splits else record)
                if fails and not attempt:
                    rows.discard()
                    applier.counts.clear()
                else:
                    rows.take_changes()
        together, single = sides
        assert content(together) == content(single)
        for client in CLIENTS:
            assert together.standing(client) == Rows.standing(together, client)
        assert written(together) == written(single)
        assert appliers[0].counts == appliers[1].counts
    for family, parse in PARSERS.items():
        for key, value in sides[0].store.scan(family):
            parse(key, value)


def test_new_messages_of_a_record_are_a_run() -> None:
    """Else the test above would compare nothing."""
    first, second = Stamp(64, 1), Stamp(128, 1)
    adds = [(Owner(SESSION, client), 1, 0, False, ()) for client in ("ann", "bob")]
    operations = [*message(first, adds), *message(second, adds[:1])]
    record = parse_record(Record(Dot(1, 1), NO_DIGEST, 1, {}, tuple(operations)).encoded)
    (run,) = record.operations
    assert isinstance(run, Run)
    assert run.count == 5
    rows = WrittenRows()
    assert list(rows.do_run(run, record.dot, record.seen, (), [])) == []
    assert rows.together == 2 + 1 + 2 * 3, "payloads, a reference, and of each entry two rows"
    assert rows.entries.get(Owner(SESSION, "bob"), first) is not None
    assert b"".join(rows.do_run(run, record.dot, record.seen, (), [])) == run.text, "they are new no more"


def test_what_is_removed_of_a_shared_session_is_remembered_in_a_run() -> None:
    rows, owner, stamp = WrittenRows(), Owner(SESSION, "ann"), Stamp(64, 1)
    operations = [*message(stamp, [(owner, 1, 0, True, ())]), ops.Remove(owner, stamp)]
    record = parse_record(Record(Dot(1, 1), NO_DIGEST, 1, {}, tuple(operations)).encoded)
    (run,) = record.operations
    assert isinstance(run, Run)
    assert list(rows.do_run(run, record.dot, record.seen, (), [])) == []
    rows.take_changes()
    assert rows.entries.get(owner, stamp) is None
    assert rows.removed.get(owner, stamp) == (record.dot,)


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_dropped_is_not_remembered(shared: bool) -> None:
    """As where its session has ended: nobody's record says it."""
    rows, owner, stamp = WrittenRows(), Owner(SESSION, "ann"), Stamp(64, 1)
    applier = Applier(rows)
    operations = tuple(message(stamp, [(owner, 1, 0, shared, ())]))
    applier.apply(parse_record(Record(Dot(1, 1), NO_DIGEST, 1, {}, operations).encoded))
    rows.take_changes()
    applier.drop_entries(owner, [stamp])
    rows.take_changes()
    assert rows.entries.get(owner, stamp) is None
    assert rows.removed.get(owner, stamp) is None


@pytest.mark.parametrize("shared", [False, True])
def test_what_ends_with_its_session_in_one_batch_is_out_of_sight(shared: bool) -> None:
    rows, owner = WrittenRows(), Owner(SESSION, "ann")
    applier = Applier(rows)
    adds = message(Stamp(64, 1), [(owner, 1, 0, shared, ())])
    session = PutSession("ann", Stamp(1, 1), 1, True, 0, 60, 0, 0, 0, -1, connected=Stamp(1, 1))
    records: list[list[Operation]] = [[session], adds, [replace(session, epoch=Stamp(2, 1))]]
    for number, operations in enumerate(records, 1):
        record = parse_record(Record(Dot(1, number), NO_DIGEST, 1, {}, tuple(operations)).encoded)
        applier.apply(record)
        if number != 2:
            rows.take_changes()
    assert rows.entries.get(owner, Stamp(64, 1)) is not None, "other nodes may not know of the end"
    assert rows.queue(owner) == []
    assert list(visible(rows)) == []


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_run_that_is_cut_short_is_refused(cut: int) -> None:
    text = Record(
        Dot(1, 1), NO_DIGEST, 1, {}, tuple(message(Stamp(64, 1), [(Owner(SESSION, "ann"), 1, 0, False, ())]))
    ).encoded
    with pytest.raises(ClusterError):
        parse_record(text[:-cut])


DESCRIBED = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.lists(
            st.tuples(
                st.integers(1, 6), st.sampled_from([None, None, None, 4]), st.sampled_from([(), (1, 2)])
            ),
            min_size=1,
            max_size=4,
        ),
        st.booleans(),
    ),
    max_size=12,
)


def describe(messages: list[Any]) -> list[tuple[Any, ...]]:
    """As the engine describes its work: each message with its first row, and what becomes of some."""
    rows: list[tuple[Any, ...]] = []
    for clock, places, removes in messages:
        key = struct.pack(">QQ", clock << 6, 1)
        for index, (queue, place, ids) in enumerate(places):
            text = MESSAGE if not index else None
            rows.append(("add", queue, key, 1, False, 2, 0, ids, place, False, text))
        if removes:
            what = ("send", "return", "release", "remove")[clock % 4]
            rows += [(what, places[0][0], key, clock), ("remove", places[0][0], key, clock)]
    return rows


@settings(deadline=None)
@given(DESCRIBED, st.sampled_from(["", "eve", "everybody"]), st.sets(st.integers(1, 40)))
def test_what_an_engine_did_is_the_same_as_a_run(messages: list[Any], shared: str, removed: set[int]) -> None:
    """`removed`: messages that were removed on another node before they came here."""
    made = []
    for _ in range(2):
        rows, sharing = WrittenRows(), Sharing(1.0)
        made.append(Conversion(rows, 1, lambda: Stamp(1, 1), lambda _: None, sharing))
        if shared:
            sharing.begin(shared)
        sharing.everybody = shared == "everybody"
        for owner in (Owner(SESSION, "ann"), Owner(SESSION, "eve")):
            rows.sessions.put(owner.name, None, Session(begun(owner.name, Stamp(1, 1)), Dot(1, 1)))
            for clock in removed:
                rows.removed.put(owner, Stamp(clock << 6, 1), (Dot(2, 1),))
        rows.take_changes()
        for number, client in enumerate(("ann", "bob", "zoë", "eve"), 1):
            made[-1].know(number, Owner(SESSION, client), begun(client, Stamp(1, 1)))
        made[-1].know(5, Owner(GROUP, "$share/g/a"))
    described = describe(messages)
    together = singly(made[0].convert(described)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "IN_RUNS", ())
        assert together == tuple(made[1].convert(described)[0])
    assert made[0].counts == made[1].counts


def test_only_so_many_sources_are_known() -> None:
    newest = NewestIds((each, 0, 1) for each in range(SOURCES_MAX - 1))
    newest.note(64, SOURCES_MAX)
    newest.note(64, SOURCES_MAX + 1)
    assert newest.changes() == [(SOURCES_MAX, 0, 64)]
    newest.confirm()
    newest.note(32 << 6, SOURCES_MAX)
    newest.note(31 << 6, SOURCES_MAX)
    assert newest.changes() == [(SOURCES_MAX, 0, 32 << 6)]


def test_an_operation_under_an_epoch_needs_one() -> None:
    rows = [(what, 1, struct.pack(">QQ", 64, 1), 0) for what in ("send", "return", "release", "remove")]
    owners: dict[int | bytes, Owner] = {1: Owner(SESSION, "ann")}
    for index, _ in enumerate(rows):
        text, count, at = pack_run(rows, index, owners, {}, set(), set(), set())
        assert (count, at) == ((1, 4) if index == 3 else (0, index))
        assert len(read_run(text)) == count
    assert pack_run(rows, 0, owners, {"ann": Stamp(5, 1)}, set(), set(), set())[1:] == (4, 4)


def test_rows_that_are_about_to_go_are_not_read() -> None:
    store = MemoryStore()
    store.write([("queue", bytes([each]), b"1") for each in b"abcd"], sync=True)
    pending = Pending(store)
    pending.writes += [("queue", b"b", None), ("queue", b"c", b"2"), ("queue", b"x", b"3")]
    assert pending.get("queue", b"b") is None
    assert pending.get_many("queue", [b"a", b"b", b"c", b"z"]) == [b"1", None, b"2", None]
    assert list(pending.scan("queue")) == [(b"a", b"1"), (b"c", b"2"), (b"d", b"1"), (b"x", b"3")]
    pending.writes += [("queue", b"x", None), ("queue", b"b", b"4")]
    assert list(pending.scan("queue", b"", b"a")) == [(b"b", b"4"), (b"c", b"2"), (b"d", b"1")]
    pending.clear()
    assert pending.get("queue", b"b") == b"1"


def test_rows_that_are_about_to_be_written_are_read() -> None:
    store = MemoryStore()
    store.write([("queue", b"b", b"1"), ("queue", b"d", b"2"), ("queue", b"x", b"3")], sync=True)
    pending = Pending(store)
    pending.writes += [("queue", b"c", b"4")]
    assert pending.get("queue", b"a") is None
    pending.writes += [("queue", b"a", b"5")]
    assert pending.get("queue", b"c") == b"4"
    assert pending.get("queue", b"b") == b"1"
    assert pending.get("session", b"b") is None
    assert pending.get_many("queue", [b"a", b"x", b"y"]) == [b"5", b"3", None]
    assert [key for key, _ in pending.scan("queue")] == [b"a", b"b", b"c", b"d", b"x"]
    assert [key for key, _ in pending.scan("queue", b"", b"b")] == [b"c", b"d", b"x"]
    pending.clear()
    assert pending.get("queue", b"c") is None
    assert [key for key, _ in pending.scan("queue")] == [b"b", b"d", b"x"]
