"""Queues of the nodes of a split cluster become one: beside a plain model, with Spark, with real brokers."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import forks
import pyarrow.parquet as pq
import pytest
from conftest import StartBroker
from pipeline.split import BUCKETS, NOW_MS, Entry, Node, draw_nodes, dump, expected, message_of
from pipeline.streaming import TIDEMQ
from pyspark.sql import SparkSession

from tidemq.client import sync as blocking
from tidemq.errors import UsageError
from tidemq.pipeline.reconcile.bucket_merging import Counts
from tidemq.pipeline.reconcile.dumps import check_dumps, reconcile, reconcile_by
from tidemq.store import MemoryStore
from tidemq.store.inspection import check_store
from tidemq.store.portable import fill_store
from tidemq.store.rows import RELEASED, parse_queue, parse_session
from tidemq.store.tables import bucket_of_name, read_tables, table_path, write_tables


def here(buckets: int, work: Callable[[int], Counts]) -> Counts:
    """Bucket after bucket in this process."""
    counts = Counts()
    for bucket in range(buckets):
        counts.add(work(bucket))
    return counts


def restored(folder: Path) -> MemoryStore:
    store = MemoryStore()
    store.open()
    fill_store(store, read_tables(folder))
    return store


def queues_of(store: MemoryStore) -> dict[str, dict[tuple[int, int], Entry]]:
    sessions = [parse_session(key, value) for key, value in store.scan("session")]
    names = {session.queue: session.client_id for session in sessions}
    queues: dict[str, dict[tuple[int, int], Entry]] = {name: {} for name in names.values()}
    for key, value in store.scan("queue"):
        entry = parse_queue(key, value)
        id = (int.from_bytes(entry.id[:8]), int.from_bytes(entry.id[8:]))
        state = Entry(entry.status, bool(entry.flags & RELEASED), entry.sequence, entry.expires_at_ms)
        queues[names[entry.queue]][id] = state
    return queues


def test_what_comes_of_random_splits_is_what_a_plain_model_says(tmp_path: Path) -> None:
    for seed in range(16):
        folder = tmp_path / str(seed)
        nodes = draw_nodes(seed)
        dumps = [dump(node, folder / str(node.origin)) for node in nodes]
        report = reconcile_by(here, dumps, str(folder / "out"), now_ms=NOW_MS)
        store = restored(folder / "out")
        wanted = expected(nodes)
        assert queues_of(store) == wanted, seed
        findings = check_store(store)
        assert (findings.corrupt, dict(findings.leftovers)) == ([], {}), seed
        stay = {id for queue in wanted.values() for id in queue}
        payloads = dict(store.scan("payload"))
        assert payloads == {id[0].to_bytes(8) + id[1].to_bytes(8): message_of(id) for id in stay}
        assert report.entries == sum(map(len, wanted.values()))
        assert [each.rows for each in report.nodes] == [sum(map(len, node.queues.values())) for node in nodes]
        assert report.payloads == len(stay)


def two_nodes() -> list[Node]:
    """Of a client's messages 1 to 5, from before the split, node 1 has delivered 1 and 2, node 2 none; each
    node got one since then."""
    a, b = Node(1), Node(2)
    for node in (a, b):
        node.ends_at_ms["c"] = node.origin
        node.seen["c", 1] = [(0, 300 if node is a else 5)]
        node.seen["c", 2] = [(0, 300 if node is b else 0)]
    a.queues["c"] = {(3, 1): Entry(2, True, 3)} | {(clock, 1): Entry() for clock in (4, 5, 6)}
    b.queues["c"] = {(clock, 1): Entry() for clock in (1, 2, 3, 4, 5)} | {(7, 2): Entry()}
    return [a, b]


def test_the_report_says_what_each_side_had(tmp_path: Path) -> None:
    dumps = [dump(node, tmp_path / str(node.origin)) for node in two_nodes()]
    report = reconcile_by(here, dumps, str(tmp_path / "out"), now_ms=NOW_MS)
    assert list(queues_of(restored(tmp_path / "out"))["c"]) == [(4, 1), (5, 1), (6, 1), (7, 2), (3, 1)]
    figures = [(each.rows, each.common, each.only, each.removed) for each in report.nodes]
    assert figures == [(4, 3, 1, 0), (6, 3, 3, 2)]
    assert (report.owners, report.entries, report.conflicts, report.removed) == (1, 5, 1, 2)
    assert json.loads(report.to_json())["nodes"][1]["dump"] == dumps[1]
    assert f"{dumps[1]}             6             3             3             2" in report.to_text()
    entries = pq.read_table(table_path(tmp_path / "out", "entries", bucket_of_name("c", BUCKETS)))
    assert entries["clock"].to_pylist() == [3, 4, 5, 6, 7]  # in the order of the messages


def retained_store(origin: int, *kept: tuple[bytes, int, int]) -> MemoryStore:
    """With retained messages: topic, clock, origin."""
    store = MemoryStore()
    store.open()
    meta = [("incarnation", origin.to_bytes(8)), ("clock", (100).to_bytes(8)), ("format", b"2")]
    rows = [("meta", key.encode(), value) for key, value in meta]
    for topic, clock, by in kept:
        message = struct.pack(">BBqIII", 1, 1, 0, len(topic), 0, 1) + topic + b"x"
        rows.append(("retained", topic, clock.to_bytes(8) + by.to_bytes(8) + message))
    store.write(rows, sync=False)
    return store


def test_of_retained_messages_the_newest_stays_and_what_was_deleted_stays_away(tmp_path: Path) -> None:
    one = retained_store(1, (b"both", 5, 1), (b"mine", 7, 1))
    two = retained_store(2, (b"both", 6, 2), (b"deleted by 1", 8, 1), (b"later than 1 knows", 101, 1))
    for name, store in (("1", one), ("2", two)):
        write_tables(store, tmp_path / name, BUCKETS)
    report = reconcile_by(here, [str(tmp_path / "1"), str(tmp_path / "2")], str(tmp_path / "out"))
    rows = {key: value[:16] for key, value in restored(tmp_path / "out").scan("retained")}
    assert {key: (int.from_bytes(id[:8]), id[15]) for key, id in rows.items()} == {
        b"both": (6, 2), b"mine": (7, 1), b"later than 1 knows": (101, 1)
    }  # fmt: skip
    assert (report.retained, report.retained_removed) == (3, 1)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    a, b = two_nodes()
    first, second = dump(a, tmp_path / "a"), dump(b, tmp_path / "b")
    write_tables(MemoryStore(), tmp_path / "other", BUCKETS + 1)
    copy = dump(Node(1), tmp_path / "copy")
    for dumps, reason in (
        ([first], "accepted: 2 to 16 dumps, not 1"),
        ([first, str(tmp_path / "none")], r"none is no complete dump; `tidemq store dump --arrow` makes one"),
        ([first, str(tmp_path / "other")], r"the numbers of buckets differ \(.*a 2, .*other 3\)"),
        ([first, copy], "are dumps of one store, or of a store and its copy"),
        ([first, first], "are dumps of one store"),
    ):
        with pytest.raises(UsageError, match=reason):
            check_dumps(dumps)
    with pytest.raises(UsageError, match="has something in it"):
        reconcile_by(here, [first, second], str(tmp_path / "a"))
    manifest = tmp_path / "b/manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": "2"', '"format": "1"'))
    with pytest.raises(UsageError, match="is another version's"):
        check_dumps([first, second])
    done = subprocess.run([*TIDEMQ, "pipeline", "reconcile", first, second, "out"], capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(f"tidemq: the dump file://{tmp_path}/b is another version's")


def test_queues_of_two_brokers_become_one_that_a_third_delivers(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    settings = 'store = "sqlite"\ndata = "{}"\n'
    urls = []
    brokers = [start_broker(settings.format(tmp_path / name)) for name in "ab"]
    for broker in brokers:
        urls.append(f"mqtt://127.0.0.1:{broker.port}")
        with session(urls[-1]) as client:
            client.subscribe("plant/#", qos=1)
    with blocking.Client(urls[0]) as one, blocking.Client(urls[1]) as two:
        for number in range(10):
            (one if number % 3 else two).publish(f"plant/{number}", str(number), qos=1)
    for name, broker in zip("ab", brokers, strict=True):
        broker.stop()
        store_command("dump", tmp_path / f"dump-{name}", "--arrow", "--data", tmp_path / name, "--buckets", 2)
    dumps = [str(tmp_path / "dump-a"), str(tmp_path / "dump-b")]
    report = reconcile(spark, dumps, str(tmp_path / "out"))
    assert [(each.rows, each.only, each.removed) for each in report.nodes] == [(6, 6, 0), (4, 4, 0)]
    store_command("restore", tmp_path / "out", "--data", tmp_path / "c", "--store", "sqlite")
    store_command("check", "--data", tmp_path / "c")
    broker = start_broker(settings.format(tmp_path / "c"))
    with session(f"mqtt://127.0.0.1:{broker.port}") as client:
        topics = [message.topic for message in islice(client.subscribe("plant/#", qos=1), 10)]
    assert topics == [f"plant/{number}" for number in range(10)]


def session(url: str) -> blocking.Client:
    return blocking.Client(url, client_id="device", clean_start=False, session_expiry_s=600)


def store_command(*arguments: object) -> None:
    done = forks.run("store", *arguments)
    assert done.returncode == 0, done.stderr.decode()
    assert b"leftover:" not in done.stdout
