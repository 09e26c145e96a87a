"""Of a stream with `last`, the newest message of each topic stays, whatever fails and whoever reads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.keeper_double import Store
from unit.stream_kit import Access, ask, take_batches
from waiting import WAIT_S, wait_until

from tidemq.config import StreamConfig
from tidemq.errors import StoreError
from tidemq.stream import Streams, compaction, ranges, schema, streams
from tidemq.stream.log import COMPACTED, StreamLog
from tidemq.stream.ranges import Cursor, open_all
from tidemq.stream.table import TooManyTopicsError, read_table

CONFIG = StreamConfig(name="s", filters=("#",), last=True)
FULL = OSError(28, "No space left on device")

Message = tuple[str, bytes]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    take_batches(monkeypatch)
    monkeypatch.setattr(streams, "MERGE_PAUSE_S", 0.05)
    monkeypatch.setattr(streams, "LAST_SEGMENT_BYTES", 8 << 20)


class Kept:
    """A stream with `last`, the store that has its rows, and what was written into it."""

    def __init__(self, data: Path, config: StreamConfig = CONFIG) -> None:
        self.data, self.store = data, Store()
        self.messages: list[Message] = []
        self.open(config)

    def open(self, *configs: StreamConfig) -> list[str]:
        """As after a start; gives the lines about damage."""
        self.streams = Streams(self.store, Access(), self.data)  # type: ignore[arg-type]
        return self.streams.load(configs)

    @property
    def log(self) -> StreamLog:
        return self.streams.all["s"].log

    def write(self, *messages: Message, received_us: int | None = None) -> None:
        """A segment of one batch."""
        first, now_us = self.log.next_offset, time.time_ns() // 1000 if received_us is None else received_us
        rows = [
            {"offset": first + at, "topic": topic, "payload": payload, "received": now_us}
            | {"user_properties": []}
            for at, (topic, payload) in enumerate(messages)
        ]
        self.log.segment_bytes = 1  # a segment each
        batch: Any = pa.RecordBatch.from_pylist(rows, schema.SCHEMA)
        written = self.log.write([(now_us, now_us, batch, len(rows))])
        self.log.sync()
        self.store.write(written, sync=True)
        self.log.publish()
        self.log.segment_bytes = 8 << 20
        self.messages += messages

    def end_segment(self) -> None:
        """Compaction looks at closed segments only."""
        self.write(("end", b"x"))

    def tend(self) -> None:
        """Once, with all that comes of it."""
        self.streams.tend(ask)
        if (thread := self.streams._rewriting) is not None:
            thread.join()

    def compact(self) -> None:
        self.end_segment()
        before = self.streams.counts["stream_compactions"]
        self.tend()
        assert self.streams.counts["stream_compactions"] == before + 1

    def rows(self) -> list[dict[str, Any]]:
        """All that the files have, by offset, as readers find it."""
        with ExitStack() as stack:
            found = compaction.read_runs(open_all(self.log, stack))
            return [row for _, batch in found if batch is not None for row in batch.to_pylist()]

    def table(self, columns: Sequence[str] = ("offset", "topic", "payload")) -> list[dict[str, Any]]:
        with ExitStack() as stack:
            table = read_table(self.log, 1 << 20, stack)
            found = [row for batch in table.batches(columns) for row in batch.to_pylist()]
        assert len(found) == table.rows
        return found

    def expected(self) -> list[dict[str, Any]]:
        newest = {topic: (at, payload) for at, (topic, payload) in enumerate(self.messages)}
        rows = sorted((at, topic, payload) for topic, (at, payload) in newest.items() if payload)
        return [{"offset": at, "topic": topic, "payload": payload} for at, topic, payload in rows]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def offsets(kept: Kept) -> list[int]:
    return [row["offset"] for row in kept.rows()]


def test_older_messages_of_a_topic_are_removed_from_closed_segments(kept: Kept) -> None:
    kept.write(("a", b"1"), ("b", b"1"), ("a", b"2"))
    kept.write(("c", b"1"), ("a", b"3"))
    kept.compact()
    assert offsets(kept) == [1, 3, 4, 5]
    counts = kept.streams.counts
    assert counts["stream_messages_compacted"] == 2
    assert counts["stream_bytes_before_compaction"] > counts["stream_bytes_after_compaction"] > 0
    assert len(list(kept.log.folder.iterdir())) == 2  # one compacted segment, one that is written to
    assert kept.table() == kept.expected()
    assert (kept.log.first_offset, kept.log.next_offset) == (0, 6)
    assert kept.log.size_bytes == sum(each.length for each in kept.log.extents)


def test_a_segment_waits_until_there_is_as_much_as_was_compacted(kept: Kept) -> None:
    kept.write(*((f"t/{n}", os.urandom(50)) for n in range(200)))
    kept.compact()
    compacted = [each for each in kept.log.extents if each.segment & COMPACTED]
    for number in range(3):
        kept.write(("t/0", b"%d" % number))
        kept.tend()
    assert kept.streams.counts["stream_compactions"] == 1
    assert kept.log.extents[: len(compacted)] == compacted
    kept.write(*((f"t/{n}", os.urandom(50)) for n in range(200)))
    kept.compact()
    assert kept.table() == kept.expected()
    assert len(kept.rows()) == 200 + 2  # "end" once closed and once not


@pytest.mark.parametrize("again", [False, True], ids=["running", "started again"])
def test_gaps_of_compaction_are_covered_and_no_damage(kept: Kept, again: bool) -> None:
    for number in range(5):
        kept.write(*((f"t/{n}", b"%d" % number) for n in range(5)))
    kept.compact()
    if again:
        assert kept.open() == []
        assert kept.streams.all["s"].config.last
    assert kept.streams.counts["stream_messages_damaged"] == 0
    extents = kept.log.extents
    assert [each.first for each in extents] == [0, *(each.end for each in extents[:-1])]
    assert extents[-1].end == kept.log.next_offset == 26
    for start in (0, 3, 20, 23, 25):
        cursor = Cursor(kept.log, ("#",), start)
        found = []
        while not cursor.at_end:
            found += [row["offset"] for row in cursor.read(1000)]
        assert found == [offset for offset in range(20, 26) if offset >= start]
        assert cursor.take_missed() == 0
    assert kept.log.damaged() == []


def test_segments_of_which_nothing_stays_are_covered_by_a_batch_without_messages(kept: Kept) -> None:
    kept.write(("a", b""), ("a", b"1"), ("a", b""), received_us=1)
    kept.compact()
    [covers, last] = kept.log.extents
    assert (covers.first, covers.end, covers.rows, covers.length) == (0, 3, 0, 0)
    assert kept.open() == []
    assert kept.log.extents[0] == covers
    assert (kept.table(), last.first) == (kept.expected(), 3)
    cursor = Cursor(kept.log, ("#",), 0)
    assert [row["offset"] for row in cursor.read(10)] or [row["offset"] for row in cursor.read(10)] == [3]
    assert cursor.take_missed() == 0
    kept.write(("a", b"2"), ("b", b"2"))
    kept.compact()
    assert kept.table() == kept.expected()
    assert not any(each.rows == 0 for each in kept.log.extents)  # the next ones cover it


def test_an_empty_payload_removes_its_topic_and_goes_after_a_day(kept: Kept) -> None:
    day_us = compaction.TOMBSTONE_S * 1_000_000
    now_us = time.time_ns() // 1000
    kept.write(("old", b"1"), ("new", b"1"), ("back", b""))
    kept.write(("old", b""), received_us=now_us - day_us - 60_000_000)
    kept.write(("new", b""), ("back", b"1"), received_us=now_us - day_us + 60_000_000)
    assert [row["topic"] for row in kept.table()] == ["back"]
    kept.compact()
    assert [(row["topic"], row["payload"]) for row in kept.rows()] == [
        ("new", b""),
        ("back", b"1"),
        ("end", b"x"),
    ]
    assert [row["topic"] for row in kept.table()] == ["back", "end"]


class Harm:
    """Changes a byte of a batch on the disk."""

    def __init__(self, kept: Kept, at: int) -> None:
        extent = kept.log.extents[at]
        path = kept.log.segment_path(extent.segment)
        data = bytearray(path.read_bytes())
        data[extent.position + extent.length // 2] ^= 1
        path.write_bytes(data)


def test_a_damaged_batch_supersedes_nothing_and_is_a_gap(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.write(("a", b"1"), ("b", b"1"))
    kept.write(("a", b"2"), ("b", b"2"))
    kept.write(("c", b"1"), ("b", b"3"))
    Harm(kept, 1)
    with ExitStack() as stack, pytest.raises(StoreError, match="offsets 2 to 3 are not as they were written"):
        read_table(kept.log, 1 << 20, stack)
    kept.compact()
    assert [(row["topic"], row["payload"]) for row in kept.rows()] == [
        ("a", b"1"),
        ("c", b"1"),
        ("b", b"3"),
        ("end", b"x"),
    ]
    assert kept.streams.counts["stream_messages_damaged"] == 2
    assert kept.streams.counts["stream_messages_compacted"] == 1
    assert "the stream s has lost 2 messages, the first of offset 2" in caplog.text
    cursor = Cursor(kept.log, ("#",), 0)
    while not cursor.at_end:
        cursor.read(10)
    assert cursor.take_missed() == 2
    assert kept.open() == []


def test_damage_of_what_is_compacted_is_found_at_the_start(kept: Kept) -> None:
    for number in range(3):
        kept.write(*((f"t/{n}", b"%d" % number) for n in range(20)))
    kept.compact()
    Harm(kept, 0)
    [line] = kept.open()
    assert "has lost 20 messages" in line
    assert kept.log.first_offset == 60


@pytest.mark.parametrize("applied", [False, True], ids=["not written", "written all the same"])
def test_a_store_that_fails_takes_it_later(kept: Kept, applied: bool) -> None:
    kept.store.applied = applied
    kept.write(("a", b"1"), ("a", b"2"))
    kept.end_segment()
    kept.store.failures = [StoreError("the store cannot be written: Input/output error")] * 2
    kept.tend()
    assert offsets(kept) == [0, 1, 2]
    with pytest.raises(StoreError):
        kept.tend()
    kept.tend()
    assert offsets(kept) == [1, 2]
    assert kept.open() == []
    assert offsets(kept) == [1, 2]


def test_a_full_disk_keeps_nothing_and_is_tried_again(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write(("a", b"1"), ("a", b"2"))
    kept.end_segment()
    files = sorted(kept.log.folder.iterdir())

    def fail(_: int) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        kept.tend()
        assert sorted(kept.log.folder.iterdir()) == files
        assert kept.streams.counts["stream_compactions_failed"] == 1

    def compacted() -> bool:
        kept.tend()
        return kept.streams.counts["stream_compactions"] == 1

    wait_until(compacted)
    assert offsets(kept) == [1, 2]


def test_a_run_takes_as_many_topics_as_the_limit_allows_and_the_next_goes_on(kept: Kept) -> None:
    kept.streams.topics_bytes_max = 1
    for number in range(4):
        kept.write(*((f"t/{number}/{n}", b"x") for n in range(100)), ("same", b"%d" % number))
    kept.end_segment()
    for runs in range(1, 5):
        kept.tend()
        assert kept.streams.counts["stream_compactions"] == runs
        assert kept.table() == kept.expected()
        if len(kept.rows()) == 402:
            break
    assert len(kept.rows()) == 402


def test_a_table_of_too_many_topics_is_refused(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "ROWS", 50)  # judged so many at a time
    kept.write(*((f"long/{n}", b"x") for n in range(100)))
    with ExitStack() as stack, pytest.raises(TooManyTopicsError, match="compaction_bytes_max: 1000"):
        read_table(kept.log, 1000, stack)
    kept.compact()
    with ExitStack() as stack:  # of what is compacted no topic is held
        assert read_table(kept.log, 1000, stack).rows == 101


def test_a_run_ends_where_retention_has_given_up_what_it_works_on(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a topic that is removed further on would be there again, by what this group still has of it."""
    monkeypatch.setattr(compaction.Compaction, "_fits", lambda _self, group, _: len(group) < 2)
    for number in range(6):
        removed = ("removed", b"" if number == 3 else b"x")
        kept.write(("a", b"%d" % number), *([removed] if number in (1, 3) else []), received_us=1)
    kept.end_segment()
    log, really = kept.log, kept.streams._finish

    def finish(rewrite: Any) -> None:
        if rewrite.old[0].first == 0 and log.has(rewrite.old[0]):
            gone = log.extents[:1]
            kept.store.write([each.removal("s") for each in gone], sync=True)
            log.forget(gone)
        really(rewrite)

    monkeypatch.setattr(kept.streams, "_finish", finish)
    kept.tend()
    assert offsets(kept) == list(range(1, 9))
    assert kept.streams.counts["stream_compactions"] == 0
    assert kept.table() == kept.expected()
    kept.tend()
    assert offsets(kept) == [7, 8]
    assert kept.table() == kept.expected()
    files = {log.segment_path(each.segment) for each in log.extents}
    assert files == set(log.folder.iterdir())


def test_a_declaration_decides_from_now_on(kept: Kept) -> None:
    everything = StreamConfig(name="s", filters=("#",))
    kept.streams.declare(everything)
    kept.write(("a", b"1"), ("a", b"2"))
    kept.end_segment()
    kept.tend()
    assert offsets(kept) == [0, 1, 2]
    assert kept.open(CONFIG) == []
    kept.tend()
    assert offsets(kept) == [1, 2]
    assert kept.open(everything) == []
    kept.write(("a", b"3"))
    kept.end_segment()
    kept.tend()
    assert offsets(kept) == [1, 2, 3, 4]


def test_with_last_there_is_no_retention_unless_it_is_given() -> None:
    assert (CONFIG.retention_s, CONFIG.retention_bytes) == (0, 0)
    given = StreamConfig(name="s", filters=("#",), last=True, retention_s=60, retention_bytes=5)
    assert (given.retention_s, given.retention_bytes) == (60, 5)
    without = StreamConfig(name="s", filters=("#",), last=False)
    assert (without.retention_s, without.retention_bytes) == (604_800, 10 << 30)


def test_segments_of_a_stream_with_retention_do_not_grow_together_beyond_it(kept: Kept) -> None:
    kept.log.segment_us = 1000
    for number in range(8):
        kept.write((f"t/{number}", b"x"), received_us=500 * number)
    kept.end_segment()
    kept.tend()
    spans = [each.last_us - each.first_us for each in kept.log.extents]
    assert len(spans) == 5
    assert max(spans) == 500


def test_a_stop_ends_a_run_and_the_next_start_cleans_up(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write(("a", b"1"), ("a", b"2"))
    kept.end_segment()
    reading, goes_on = threading.Event(), threading.Event()
    really = compaction.Newest.add

    def wait(newest: Any, *what: Any) -> None:
        reading.set()
        goes_on.wait(WAIT_S)
        really(newest, *what)

    monkeypatch.setattr(compaction.Newest, "add", wait)
    kept.streams.tend(ask)
    assert reading.wait(WAIT_S)
    closing = threading.Thread(target=kept.streams.close)
    closing.start()
    wait_until(kept.streams._closing.is_set)
    goes_on.set()
    closing.join()
    assert kept.streams.counts["stream_compactions"] == kept.streams.counts["stream_compactions_failed"] == 0
    assert offsets(kept) == [0, 1, 2]


TOPICS = st.sampled_from(["a", "b", "c", "d/e", "🌊"])
SEGMENT = st.lists(st.tuples(TOPICS, st.sampled_from([b"", b"1", b"22"])), min_size=1, max_size=6)


@given(
    steps=st.lists(st.one_of(SEGMENT, st.sampled_from(["compact", "restart"])), max_size=12),
    tombstone_s=st.sampled_from([-60, 60]),  # the first: all of them go at once
)
def test_the_table_is_that_of_a_dictionary_whatever_was_compacted(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], tombstone_s: int
) -> None:
    with mock.patch.object(compaction, "TOMBSTONE_S", tombstone_s):
        check_steps(tmp_path_factory, steps, tombstone_s > 0)


def check_steps(tmp_path_factory: pytest.TempPathFactory, steps: list[Any], with_tombstones: bool) -> None:
    kept = Kept(tmp_path_factory.mktemp("kept"))
    for step in steps:
        if step == "compact":
            kept.end_segment()
            kept.tend()
        elif step == "restart":
            assert kept.open() == []
        else:
            kept.write(*step)
        assert kept.table() == kept.expected()
    found = kept.rows()
    assert [row["offset"] for row in found] == sorted({row["offset"] for row in found})
    newest = {topic: (at, payload) for at, (topic, payload) in enumerate(kept.messages)}
    wanted = {at for at, payload in newest.values() if payload or with_tombstones}
    assert wanted <= {row["offset"] for row in found}


def read_on(kept: Kept, done: threading.Event) -> Iterator[dict[str, Any]]:
    """All that a follower gets, from the beginning up to what there is when it is done."""
    cursor = Cursor(kept.log, ("#",), 0)
    while not (done.is_set() and cursor.at_end):
        yield from cursor.read(7)
    assert cursor.take_missed() == 0


def test_readers_meanwhile_get_each_topic_s_newest_and_nothing_twice(kept: Kept) -> None:
    done = threading.Event()
    found: list[list[dict[str, Any]]] = []
    tables: list[list[dict[str, Any]]] = []

    def follow() -> None:
        found.append(list(read_on(kept, done)))

    def look() -> None:
        while not done.is_set():
            tables.append(kept.table())

    readers = [threading.Thread(target=each) for each in (follow, follow, look)]
    for reader in readers:
        reader.start()
    for number in range(15):
        kept.write(*((f"t/{(number + n) % 7}", b"%d" % number) for n in range(3)))
        kept.tend()
    done.set()
    for reader in readers:
        reader.join()
    assert kept.streams.counts["stream_messages_compacted"] > 15
    newest = {each["offset"] for each in kept.expected()}
    for rows in found:
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(set(offsets))
        assert newest <= set(offsets)
    assert len(found) == 2
    check_tables(kept, tables)


def test_who_opens_files_looks_again_as_often_as_they_are_replaced(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write(("a", b"1"))
    really, left = ranges.open_runs, 20

    def replaced(*what: Any) -> Any:
        nonlocal left
        left -= 1
        if left > 0:
            raise FileNotFoundError(2, "No such file or directory", str(kept.log.segment_path(99)))
        return really(*what)

    monkeypatch.setattr(ranges, "open_runs", replaced)
    assert kept.table() == kept.expected()
    kept.log.segment_path(kept.log.extents[0].segment).unlink()
    with ExitStack() as stack, pytest.raises(StoreError, match="a file of the stream s is missing"):
        open_all(kept.log, stack)


def check_tables(kept: Kept, tables: Iterable[list[dict[str, Any]]]) -> None:
    """Each is that of a moment: of all messages up to its last."""
    checked = 0
    for table in tables:
        end = max((row["offset"] for row in table), default=-1) + 1
        newest = {topic: at for at, (topic, _) in enumerate(kept.messages[:end])}
        assert [row["offset"] for row in table] == sorted(newest.values())
        checked += 1
    assert checked


def test_a_file_that_cannot_be_removed_is_left_to_the_next_start(kept: Kept) -> None:
    """And what took its place stays."""
    kept.write(("a", b"1"), ("b", b"1"))
    kept.write(("c", b"1"), ("a", b"2"))
    kept.end_segment()
    with mock.patch.object(Path, "unlink", side_effect=OSError(5, "Input/output error")):
        kept.tend()
    kept.tend()
    assert kept.table() == kept.expected()
    assert kept.open() == []
    assert offsets(kept) == [1, 2, 3, 4]
    assert len(list(kept.log.folder.iterdir())) == 2


def test_retention_does_not_take_what_the_store_may_have_already(kept: Kept) -> None:
    """A commit that failed for its keeper, but was applied: it is made again before anything is given up."""
    kept.open(CONFIG.model_copy(update={"retention_s": 3600.0}))
    kept.log.segment_us = 10**15
    hour_ago_us = time.time_ns() // 1000 - 3_599_500_000
    kept.write(("a", b"1"), ("b", b"1"), received_us=hour_ago_us)
    kept.write(("c", b"1"), ("d", b"1"))
    kept.write(("e", b"1"), ("f", b"1"))
    kept.end_segment()
    kept.store.applied = True
    kept.store.failures = [StoreError("Input/output error")]
    kept.tend()
    assert kept.streams._rewritten is not None
    wait_until(lambda: time.time_ns() // 1000 > hour_ago_us + 3_600_000_000, "the first segment is too old")
    kept.tend()
    there = offsets(kept)
    assert {2, 3, 4, 5, 6} <= set(there)
    assert kept.open() == []
    assert offsets(kept) == there


def test_offsets_of_a_last_batch_that_is_lost_are_not_given_again(kept: Kept) -> None:
    kept.write(("a", b"1"), ("b", b"1"))
    kept.write(("a", b"2"), ("c", b"2"))
    row = {"offset": 4, "topic": "z", "payload": b"z", "received": 1, "user_properties": []}
    kept.log.segment_bytes = 1
    kept.log.write([(1, 1, pa.RecordBatch.from_pylist([row], schema.SCHEMA), 1)])
    kept.log.discard()  # its commit has failed: the segment is there, and empty
    Harm(kept, 1)
    kept.tend()
    assert offsets(kept) == [0, 1]
    assert kept.log.next_offset == 4
    kept.open()
    assert kept.log.next_offset == 4


def test_many_small_batches_are_put_together(kept: Kept) -> None:
    """As a stream has them that gets a message now and then, each of another device."""
    now_us = time.time_ns() // 1000
    batches: list[Any] = [
        pa.RecordBatch.from_pylist(
            [{"offset": at, "topic": f"t/{at % 1500}", "payload": b"x", "received": now_us}], schema.SCHEMA
        )
        for at in range(2000)
    ]
    kept.log.segment_bytes = 1 << 30
    kept.store.write(kept.log.write([(now_us, now_us, batch, 1) for batch in batches]), sync=True)
    kept.log.publish()
    kept.messages += [(f"t/{at % 1500}", b"x") for at in range(2000)]
    kept.compact()
    assert kept.table() == kept.expected()
    assert len(kept.log.extents) == 2
