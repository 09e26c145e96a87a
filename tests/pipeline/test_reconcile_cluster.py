"""Dumps of a cluster's nodes become what the nodes themselves would have become."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import forks
import pytest
from cluster.nodes import Actor, WrittenRows, make_message, make_node, say
from pipeline.test_reconcile import here, queues_of, restored, store_command
from pyspark.sql import SparkSession

from tidemq.cluster import operations as ops
from tidemq.cluster.dumps import write_node_tables
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Operation, Owner, PutSession, Stamp, packet_id_of
from tidemq.cluster.rows import Rows
from tidemq.cluster.sessions import connect
from tidemq.cluster.snapshots import UNFINISHED
from tidemq.errors import StoreError, UsageError
from tidemq.pipeline.reconcile.dumps import check_dumps, reconcile, reconcile_by
from tidemq.store import MemoryStore
from tidemq.store.engines import open_empty
from tidemq.store.inspection import check_store
from tidemq.store.portable import fill_store, read_store
from tidemq.store.rows import BACKLOG, IN_FLIGHT, RELEASED, parse_queue, parse_session, parse_subscription
from tidemq.store.tables import read_tables, write_tables

BUCKETS = 2


def make_nodes(count: int) -> list[Node]:
    nodes = []
    for index in range(count):
        rows = WrittenRows()
        rows.store.open()
        incarnation = (index + 1).to_bytes(8)
        clock = (2**63).to_bytes(8)
        rows.store.write([("meta", b"incarnation", incarnation), ("meta", b"clock", clock)], sync=True)
        nodes.append(make_node(index, count, rows))
    return nodes


def do(node: Node, *operations: Operation) -> bytes:
    record = node.write(operations)
    node.rows.take_changes()
    node.synced(node.rows.vector)
    return record.encoded


def begin(node: Node, client: str) -> Operation:
    epoch = node.stamp()
    wish = PutSession(client, epoch, node.incarnation, False, 0, 60, 0, 0, 0, -1, connected=epoch)
    return connect(node.rows, wish, clean=False, asked=True)


def test_what_a_node_has_published_and_not_applied_is_not_delivered(tmp_path: Path) -> None:
    publishers, subscribers = make_nodes(2)
    record = do(subscribers, begin(subscribers, "c"))
    publishers.receive(record)
    publishers.rows.take_changes()
    message_id = publishers.stamp()
    payload = ops.Payload(message_id, make_message("a/1", b"m"))
    do(subscribers, payload, ops.Add(Owner(SESSION, "c"), message_id, 0, 1, 9, 0))
    dumps = [dump(node, tmp_path) for node in (publishers, subscribers)]
    reconcile_by(here, dumps, str(tmp_path / "out"))
    assert list(queues_of(restored(tmp_path / "out"))["c"]) == [message_id]


def live(rows: Rows) -> dict[str, Any]:
    """What a node says of everything, by what it is about."""
    said: dict[str, Any] = {}
    for client, _, session in rows.sessions.all():
        row = session.row
        timed = (row.expiry_s, row.ends_at_ms, row.will_due_at_ms, row.will_delay_s, row.will_expiry_s)
        filters = [(name, each.options, each.subscription_id) for name, each in rows.filters(client)]
        said[f"session {client}"] = (
            *timed,
            row.will,
            tuple(sorted(map(packet_id_of, row.received))),
            filters,
        )
    for owner in {owner for owner, _, _ in rows.entries.all()}:
        queue = []
        for message_id, entry in rows.queue(owner):
            first = rows.shown(owner, entry)[0]
            payload = rows.payloads.get(message_id, None)
            sizes = (first.flags, first.qos, first.message_bytes, first.expires_at_ms, first.subscription_ids)
            state = (entry.sequence, entry.released) if entry.sequence >= 0 else (-1, False)
            queue.append((message_id, *sizes, *state, payload and payload.message))
        if queue:
            said[f"queue {owner.name}"] = queue
    for topic, _, retained in rows.retained.all():
        if retained.message is not None:
            said[f"retained {topic}"] = (retained.id, retained.message)
    return said


def plain(store: MemoryStore) -> dict[str, Any]:
    """The same of a store without a cluster."""
    said: dict[str, Any] = {}
    names = {int.from_bytes(key): value.decode() for key, value in store.scan("shared")}
    for key, value in store.scan("session"):
        row = parse_session(key, value)
        names[row.queue] = row.client_id
        timed = (row.expiry_s, row.ends_at_ms, row.will_due_at_ms, row.will_delay_s, row.will_expiry_s)
        received = tuple(int.from_bytes(each[8:]) for each, _ in store.scan("received", value[:8]))
        prefix = len(key).to_bytes(2) + key
        subscriptions = [parse_subscription(*each) for each in store.scan("subscription", prefix)]
        filters = [(each.topic_filter, each.options, each.subscription_id) for each in subscriptions]
        said[f"session {row.client_id}"] = (*timed, value[44:], received, filters)
    for key, value in store.scan("queue"):
        entry = parse_queue(key, value)
        sizes = (entry.flags & 1, entry.qos, entry.message_bytes, entry.expires_at_ms, entry.subscription_ids)
        flying = entry.status == IN_FLIGHT
        state = (entry.sequence, bool(entry.flags & RELEASED)) if flying else (-1, False)
        message = store.get("payload", entry.id)
        row_of_entry = (stamp(entry.id), *sizes, *state, message)
        said.setdefault(f"queue {names[entry.queue]}", []).append(row_of_entry)
    for queue in (each for name, each in said.items() if name.startswith("queue")):
        queue.sort()  # what is in flight has a range of its own
    for key, value in store.scan("retained"):
        said[f"retained {key.decode()}"] = (stamp(value), value[16:])
    return said


def stamp(text: bytes) -> Stamp:
    return Stamp(int.from_bytes(text[:8]), int.from_bytes(text[8:16]))


def receive(node: Node, records: list[bytes]) -> None:
    for text in records:
        node.receive(text)
    node.rows.take_changes()
    node.synced(node.rows.vector)


def dump(node: Node, folder: Path) -> str:
    assert isinstance(node.rows, WrittenRows)
    write_node_tables(node.rows.store, folder / str(node.incarnation), BUCKETS)
    return str(folder / str(node.incarnation))


Merge = Callable[[list[str], str], object]
"""Makes one dump of many."""
merge_here: Merge = partial(reconcile_by, here)


def check_history(seed: int, folder: Path, merge: Merge = merge_here) -> None:
    """Nodes do something and exchange some of it, and are dumped: all at the end, or some of them, each at
    some moment. What comes of the dumps is what a node has that applies all records that are in any of them.
    """
    choose = random.Random(seed)
    nodes = make_nodes(choose.randint(2, 3))
    published: list[tuple[Owner, Stamp]] = []
    actors = [Actor(node, choose, published) for node in nodes]
    records: dict[int, list[bytes]] = {node.incarnation: [] for node in nodes}
    apart = choose.random()
    steps = choose.choice([20, 60, 160])
    at_the_end = choose.random() < 0.5
    dumped = nodes if at_the_end else choose.sample(nodes, choose.randint(1, len(nodes)))
    moments = {node.incarnation: steps if at_the_end else choose.randint(10, steps) for node in dumped}
    dumps, vectors = [], []
    for step in range(1, steps + 1):
        do_something(choose, nodes, choose.choice(actors), records, apart)
        for node in dumped:
            if moments[node.incarnation] == step:
                dumps.append(dump(node, folder))
                vectors.append(node.rows.vector)
    merge(dumps, str(folder / "out"))
    merged = restored(folder / "out")
    for node in nodes if at_the_end else [make_node(9, len(nodes))]:
        for incarnation, of_one in records.items():
            receive(node, of_one[: max(vector.get(incarnation, 0) for vector in vectors)])
        assert plain(merged) == live(node.rows), seed
    findings = check_store(merged)
    assert (findings.corrupt, dict(findings.leftovers)) == ([], {}), seed


def do_something(
    choose: random.Random, nodes: list[Node], actor: Actor, records: dict[int, list[bytes]], apart: float
) -> None:
    """A node does something, or hears some of another one's records, or tells how far it is."""
    node = actor.node
    others = [each for each in nodes if each is not node]
    if choose.random() < apart:
        record = actor.act()
        if record:
            records[node.incarnation].append(record.encoded)
    elif choose.random() < 0.8:
        other = choose.choice(others)
        applied = node.rows.vector.get(other.incarnation, 0)
        receive(node, records[other.incarnation][applied : applied + choose.randint(1, 30)])
    else:
        say(node, others)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_dumps_become_what_the_nodes_become(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        check_history(seed, tmp_path / str(seed))


def test_spark_makes_of_dumps_what_the_nodes_become(spark: SparkSession, tmp_path: Path) -> None:
    for seed in range(2000, 2005):
        check_history(seed, tmp_path / str(seed), partial(reconcile, spark))


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 1800, 100))
def test_dumps_of_many_more_histories(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 100):
        check_history(seed, tmp_path / str(seed))


def two_nodes() -> list[Node]:
    """A client's session at node 2. Node 1 knows of its three messages, and has not heard that the first was
    delivered."""
    one, two = make_nodes(2)
    ids = [one.stamp() for _ in range(3)]
    records = [do(two, begin(two, "c"), ops.Subscribe("c", "a/+", two.stamp(), 1, 0))]
    for message_id in ids:
        payload = ops.Payload(message_id, make_message("a/1", b"m"))
        records.append(do(two, payload, ops.Add(Owner(SESSION, "c"), message_id, 0, 1, 9, 0)))
    receive(one, records)
    do(two, ops.Remove(Owner(SESSION, "c"), ids[0]))
    return [one, two]


def test_the_report_says_what_each_node_had(tmp_path: Path) -> None:
    dumps = [dump(node, tmp_path) for node in two_nodes()]
    report = reconcile_by(here, dumps, str(tmp_path / "out"))
    figures = [(each.rows, each.common, each.only, each.removed) for each in report.nodes]
    assert figures == [(3, 2, 1, 1), (2, 2, 0, 0)]
    assert (report.owners, report.entries, report.removed, report.payloads) == (1, 2, 1, 2)


def test_one_node_alone_gives_what_it_has(tmp_path: Path) -> None:
    one, two = two_nodes()
    for node in (one, two):
        folder = tmp_path / f"of {node.incarnation}"
        reconcile_by(here, [dump(node, tmp_path)], str(folder))
        assert plain(restored(folder)) == live(node.rows)


def test_a_session_that_ended_without_knowing_of_a_newer_one_goes_on(tmp_path: Path) -> None:
    one, two = make_nodes(2)
    receive(two, [do(one, begin(one, "c"))])
    session = one.rows.sessions.get("c", None)
    assert session is not None
    newer = do(two, begin(two, "c"), ops.Subscribe("c", "b/#", two.stamp(), 1, 0))
    end = do(one, ops.EndSession("c", session.row.epoch))
    dumps = [dump(node, tmp_path) for node in (one, two)]
    reconcile_by(here, dumps, str(tmp_path / "out"))
    receive(one, [newer])
    receive(two, [end])
    assert live(one.rows)["session c"][7] == [("b/#", 1, 0)]
    assert plain(restored(tmp_path / "out")) == live(one.rows) == live(two.rows)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_one_node_has_changed_by_itself_counts(order: tuple[int, int], tmp_path: Path) -> None:
    """It has the time of what its client did: all that was retained was sent, and a message has expired."""
    nodes = one, two = make_nodes(2)
    subscribed, retained = one.stamp(), one.stamp()
    subscribe = ops.Subscribe("c", "a/+", subscribed, 1 | BACKLOG, 0)
    receive(
        two, [do(one, begin(one, "c"), subscribe, ops.Retain("a/1", retained, make_message("a/1", b"m")))]
    )
    changes = do(one, ops.Serve("c", "a/+", subscribed), ops.Clear("a/1", retained))
    reconcile_by(here, [dump(nodes[at], tmp_path) for at in order], str(tmp_path / "out"))
    receive(two, [changes])
    assert live(one.rows)["session c"][7] == [("a/+", 1, 0)]
    assert plain(restored(tmp_path / "out")) == live(one.rows) == live(two.rows)


def test_a_node_that_found_an_end_void_is_believed(tmp_path: Path) -> None:
    """Also by one that knows of the end, and not of the newer session."""
    one, two, three = make_nodes(3)
    first = do(one, begin(one, "c"), ops.Subscribe("c", "a/+", one.stamp(), 1, 0))
    receive(two, [first])
    newer = do(two, begin(two, "c"))
    session = one.rows.sessions.get("c", None)
    assert session is not None
    end = do(one, ops.EndSession("c", session.row.epoch))
    receive(three, [first, end])
    receive(one, [newer])
    reconcile_by(here, [dump(one, tmp_path), dump(three, tmp_path)], str(tmp_path / "out"))
    receive(three, [newer])
    assert live(three.rows)["session c"][7] == [("a/+", 1, 0)]
    assert plain(restored(tmp_path / "out")) == live(one.rows) == live(three.rows)


def test_a_later_end_also_ends_a_session_that_it_did_not_know(tmp_path: Path) -> None:
    one, two = make_nodes(2)
    older = do(one, begin(one, "c"))
    records = [do(two, begin(two, "c"))]
    session = two.rows.sessions.get("c", None)
    assert session is not None
    records.append(do(two, ops.EndSession("c", session.row.epoch)))
    reconcile_by(here, [dump(node, tmp_path) for node in (one, two)], str(tmp_path / "out"))
    assert "session c" in live(one.rows)
    receive(one, records)
    receive(two, [older])
    assert plain(restored(tmp_path / "out")) == live(one.rows) == live(two.rows) == {}


def test_an_end_that_all_know_of_is_not_forgotten_for_an_older_dump(tmp_path: Path) -> None:
    one, two = make_nodes(2)
    receive(two, [do(one, begin(one, "c"), ops.Subscribe("c", "a/+", one.stamp(), 1, 0))])
    old = dump(two, tmp_path)
    session = one.rows.sessions.get("c", None)
    assert session is not None
    receive(two, [do(one, ops.EndSession("c", session.row.epoch))])
    for _ in range(2):
        say(one, [two])
        say(two, [one])
    assert not list(one.rows.ends.all())
    reconcile_by(here, [dump(one, tmp_path), old], str(tmp_path / "out"))
    assert plain(restored(tmp_path / "out")) == live(one.rows) == {}


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    nodes = two_nodes()
    dumps = [dump(node, tmp_path) for node in nodes]
    stranger = WrittenRows()
    stranger.store.write([("meta", b"format", b"2"), ("meta", b"incarnation", bytes(7) + b"\7")], sync=True)
    stranger.members.put(7, None, "n7")
    stranger.take_changes()
    write_node_tables(stranger.store, tmp_path / "stranger", BUCKETS)
    write_tables(MemoryStore(), tmp_path / "plain", BUCKETS)
    for wrong, reason in (
        ([*dumps, str(tmp_path / "stranger")], "are of two clusters"),
        ([dumps[0], str(tmp_path / "plain")], "give dumps of one kind alone"),
        ([str(tmp_path / "plain")], "not 1: one is enough of a cluster's node"),
        ([dumps[0], dumps[0]], "are dumps of one store"),
    ):
        with pytest.raises(UsageError, match=reason):
            check_dumps(wrong)
    with pytest.raises(StoreError, match="is the dump of a cluster's node"):
        list(read_tables(Path(dumps[0])))
    with pytest.raises(StoreError, match="of a cluster's node"):
        write_tables(stranger.store, tmp_path / "false")
    stranger.store.write([("cluster", UNFINISHED, b"")], sync=True)
    with pytest.raises(StoreError, match="before it had taken over"):
        write_node_tables(stranger.store, tmp_path / "unfinished")


def test_the_commands_make_one_store_of_two_nodes(spark: SparkSession, tmp_path: Path) -> None:
    nodes = two_nodes()
    for node in nodes:
        assert isinstance(node.rows, WrittenRows)
        data = tmp_path / f"data-{node.incarnation}"
        with closing(open_empty(data, "sqlite")) as store:
            fill_store(store, read_store(node.rows.store))
        folder = tmp_path / str(node.incarnation)
        store_command("dump", folder, "--arrow", "--data", data, "--buckets", 2)
    reconcile(spark, [str(tmp_path / "1"), str(tmp_path / "2")], str(tmp_path / "out"))
    store_command("restore", tmp_path / "out", "--data", tmp_path / "merged", "--store", "sqlite")
    store_command("check", "--data", tmp_path / "merged")
    refused = forks.run("store", "restore", tmp_path / "1", "--data", tmp_path / "no")
    assert refused.returncode == 2
    assert b"tidemq pipeline reconcile" in refused.stderr
    assert plain(restored(tmp_path / "out")) == live(nodes[1].rows)
