"""Of a stream with `last`, messages are removed whose topic has a newer one: compaction by topic.

Its segments are in two parts. Those with COMPACTED in their numbers come first, and have at most one message
of each topic, together. Behind them are the dirty ones, as they were written. A run finds the newest offset
of each topic in closed dirty segments. Then it writes, from the stream's beginning on, one group of segments
after the other without what is superseded. Each group takes its predecessors' place in one commit of the
store, so a run may end anywhere: what is compacted stays a beginning of the stream with each topic once, and
a message goes only when a newer one of its topic is durable, in a closed segment.

An extent goes on covering the offsets of what was removed from it, so readers tell that from damage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, takewhile

import pyarrow as pa
import pyarrow.compute as pc

from tidemq.errors import TideMQError
from tidemq.stream.log import COMPACTED, SEGMENT_EXTENTS, Extent, StreamLog, segments_of
from tidemq.stream.merging import BYTES, ROWS, Cover, combined, write_segment
from tidemq.stream.ranges import Run, open_runs
from tidemq.stream.schema import END, HEAD, SCHEMA, checksum

TOMBSTONE_S = 86_400  # an empty payload, which removes its topic, is kept for so long, for readers to see it
_GROUP_SEGMENTS = 64  # that become one, at most
_PENDING_BYTES = 4 << 20  # of topics that are not yet among the others, or as many as these have
_JUDGED_ROWS = 1 << 20  # at a time, or so many as have
_JUDGED_BYTES = 64 << 20  # these bytes: it costs by the number of topics, not of rows

Batches = Iterator[tuple[Extent, pa.RecordBatch | None]]
"""Extents with what is in them; None: it is not as it was written."""

_Judged = tuple[Extent, pa.BooleanArray | None]
"""An extent, and which of its rows stay; None as above."""


class StoppedError(TideMQError):
    """Work was told to end. Caught by who does it."""


def check(stopped: Callable[[], bool]) -> None:
    """StoppedError if it is."""
    if stopped():
        raise StoppedError("the broker stops, or nobody waits any more")


class Newest:
    """The newest offset of each topic among messages. Holds every topic once, and 12 bytes for each; while
    messages are added, six to eight times as much.
    """

    def __init__(self) -> None:
        columns = [pa.field("topic", pa.string()), pa.field("offset", pa.int64())]
        self._found = pa.schema(columns).empty_table()
        self._pending: list[pa.Table] = []  # each with every topic once
        self._pending_bytes = 0
        self._raw: list[pa.RecordBatch] = []
        self._raw_rows = self._raw_bytes = 0

    def add(self, batch: pa.RecordBatch, held_bytes: int) -> None:
        """Messages with the columns `offset` and `topic`; they keep so many bytes in memory."""
        self._raw.append(batch)
        self._raw_rows += batch.num_rows
        self._raw_bytes += max(held_bytes, batch.nbytes)
        if self._raw_rows >= ROWS or self._raw_bytes >= BYTES:
            self._reduce()
            if self._pending_bytes >= max(_PENDING_BYTES, self._found.nbytes):
                self._settle()

    def _reduce(self) -> None:
        if self._raw:
            self._pending.append(_newest_of(pa.Table.from_batches(self._raw)))
            self._pending_bytes += self._pending[-1].nbytes
            self._raw, self._raw_rows, self._raw_bytes = [], 0, 0

    def _settle(self) -> None:
        self._reduce()
        if self._pending:
            self._found = _newest_of(pa.concat_tables([self._found, *self._pending]))
            self._pending, self._pending_bytes = [], 0

    def exceeds(self, bytes_max: int) -> bool:
        """Whether it holds more than that."""
        if self._found.nbytes + self._pending_bytes > bytes_max:
            self._settle()  # some topics may have been counted twice
        held: int = self._found.nbytes
        return held > bytes_max

    def keeps(self, table: pa.Table) -> pa.BooleanArray:
        """Which rows are not older than one of their topic that was added. Columns as for `add`. Takes a
        fifth of a second for a million topics, however few rows there are.
        """
        self._settle()
        if not self._found.num_rows or not table.num_rows:
            return pa.repeat(pa.scalar(True), table.num_rows)
        [topics], [offsets] = (self._found.column(name).chunks for name in ("topic", "offset"))
        newest = offsets.take(pc.index_in(table.column("topic"), value_set=topics).combine_chunks())
        kept = pc.less_equal(newest, table.column("offset").combine_chunks())
        return pc.fill_null(kept, True)


def _newest_of(table: pa.Table) -> pa.Table:
    found = table.group_by("topic", use_threads=False).aggregate([("offset", "max")])
    return found.select(["topic", "offset_max"]).rename_columns(["topic", "offset"]).combine_chunks()


def release() -> None:
    """Gives the system the memory back that many topics took."""
    pa.default_memory_pool().release_unused()


def is_tombstone(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Which rows have no payload."""
    return pc.equal(pc.binary_length(batch.column("payload")), 0)


def read_runs(runs: Iterable[Run], columns: Sequence[str] | None = None) -> Batches:
    """What is in extents, one after the other; some columns of it, in the stream's order. OSError."""
    wanted = None if columns is None else [SCHEMA.get_field_index(name) for name in columns]
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=wanted)
    for file, run in runs:
        for each in run:
            yield each, _read(os.pread(file.fileno(), each.length, each.position), each, options)


def _read(data: bytes, extent: Extent, options: pa.ipc.IpcReadOptions) -> pa.RecordBatch | None:
    if len(data) != extent.length or checksum(data) != extent.checksum:
        return None
    table = pa.ipc.open_stream(HEAD + data + END, options=options).read_all()
    if not table.num_rows:
        return pa.RecordBatch.from_pylist([], table.schema)
    [batch] = table.to_batches()
    return batch


def judge(
    runs: Iterable[Run], newest: Newest, goes: Callable[[pa.RecordBatch], pa.BooleanArray]
) -> Iterator[_Judged]:
    """Which rows of extents are the newest of their topics, but for those that go anyway. OSError."""
    waiting: list[tuple[Extent, pa.RecordBatch | None, pa.BooleanArray | None]] = []
    rows = held = 0
    for extent, batch in read_runs(runs, ["offset", "topic", "payload", "received"]):
        named = None if batch is None else batch.select(["offset", "topic"])
        waiting.append((extent, named, None if batch is None else goes(batch)))
        rows, held = rows + extent.rows, held + max(extent.length, named.nbytes if named else 0)
        if rows >= _JUDGED_ROWS or held >= _JUDGED_BYTES:
            yield from _judged(waiting, newest)
            waiting, rows, held = [], 0, 0
    yield from _judged(waiting, newest)


def _judged(
    waiting: list[tuple[Extent, pa.RecordBatch | None, pa.BooleanArray | None]], newest: Newest
) -> Iterator[_Judged]:
    batches = [batch for _, batch, _ in waiting if batch is not None]
    kept = newest.keeps(pa.Table.from_batches(batches)) if batches else None
    at = 0
    for extent, batch, gone in waiting:
        if batch is None or kept is None:
            yield extent, None
        else:
            yield extent, pc.and_not(kept.slice(at, batch.num_rows), gone)
            at += batch.num_rows


@dataclass
class _Gathered:
    """Rows for a batch, and what it covers: adjoining offsets, in which others have been."""

    first: int = 0
    end: int = 0
    first_us: int = 0
    last_us: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def has_room(self, batch: pa.RecordBatch) -> bool:
        return bool(self.rows + batch.num_rows <= ROWS and self.bytes + batch.nbytes <= BYTES)

    def add(self, extent: Extent, kept: pa.RecordBatch) -> None:
        """What was kept of an extent that begins where this ends."""
        self.first_us = extent.first_us if self.first == self.end else min(self.first_us, extent.first_us)
        self.last_us = max(self.last_us, extent.last_us)
        self.end = extent.end
        if kept.num_rows:
            self.batches.append(kept)
            self.rows += kept.num_rows
            self.bytes += kept.nbytes

    def take(self) -> Iterator[Cover]:
        """All of it as one batch; nothing where it covers nothing."""
        if self.batches:
            yield Cover.of(combined(self.batches))._replace(first=self.first, end=self.end)
        elif self.first < self.end:
            empty = pa.RecordBatch.from_pylist([], SCHEMA)
            yield Cover(self.first, self.end, empty, self.first_us, self.last_us)


@dataclass
class Group:
    """Neighbouring segments and what takes their place."""

    old: list[Extent]
    new: list[Extent]
    lost: list[Extent]  # of the old ones, those that are not as they were written


@dataclass
class Compaction:
    """One run over a stream's closed segments: the compacted ones, and those behind them. `stopped` is asked
    now and then; when it says so, the run ends with StoppedError.
    """

    log: StreamLog
    clean: list[Extent]
    dirty: list[Extent]
    topics_bytes_max: int
    stopped: Callable[[], bool] = lambda: False
    _newest: Newest = field(default_factory=Newest)

    def groups(self) -> Iterator[Group]:
        """Writes one segment after the other; who asks for the next has put the last in its place, or a topic
        that was removed may be there again. OSError: the disk or a file fails; then nothing of that segment
        is left.
        """
        end = self._survey()
        before_us = time.time_ns() // 1000 - TOMBSTONE_S * 1_000_000
        for old in self._grouped(chain(self.clean, (each for each in self.dirty if each.first < end))):
            self._check()
            with ExitStack() as stack:
                runs = open_runs(self.log, old, stack)
                kept = list(judge(runs, self._newest, partial(self._goes, before_us)))
                if not _is_compact(old, kept):
                    yield self._rewritten(old, runs, kept)
        self._newest = Newest()
        release()

    def _survey(self) -> int:
        """Adds the topics of as many dirty segments as the limit takes, and at least of one; gives the offset
        after the last.
        """
        end = 0
        for segment in segments_of(self.dirty):
            with ExitStack() as stack:
                runs = open_runs(self.log, segment, stack)
                for file, _ in runs:
                    os.fdatasync(file.fileno())  # with other durability than sync a start may have left it so
                for extent, batch in read_runs(runs, ["offset", "topic"]):
                    self._check()
                    if batch is not None:
                        self._newest.add(batch, extent.length)
            end = segment[-1].end
            if self._newest.exceeds(self.topics_bytes_max):
                break
        return end

    def _grouped(self, extents: Iterable[Extent]) -> Iterator[list[Extent]]:
        """As many neighbouring segments as make up one, by bytes and by time."""
        group: list[Extent] = []
        for segment in segments_of(extents):
            if group and not self._fits(group, segment):
                yield group
                group = []
            group += segment
        if group:
            yield group

    def _fits(self, group: list[Extent], segment: list[Extent]) -> bool:
        log = self.log
        segments = len({each.segment for each in group}) + 1  # each is a file that is open meanwhile
        if segments > _GROUP_SEGMENTS or len(group) + len(segment) > SEGMENT_EXTENTS:
            return False
        if log.segment_us and segment[-1].last_us - group[0].first_us >= log.segment_us:
            return False
        return sum(each.length for each in chain(group, segment)) <= log.compacted_bytes

    def _goes(self, before_us: int, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows are tombstones that readers have had time to see."""
        self._check()
        return pc.and_(is_tombstone(batch), pc.less(batch.column("received").cast(pa.int64()), before_us))

    def _rewritten(self, old: list[Extent], runs: list[Run], kept: Sequence[_Judged]) -> Group:
        lost: list[Extent] = []
        segment = self.log.name_compacted()
        new = write_segment(self.log, segment, self._covers(runs, kept, lost))
        if not new:
            self.log.segment_path(segment).unlink()
        return Group(old, new, lost)

    def _covers(self, runs: list[Run], kept: Sequence[_Judged], lost: list[Extent]) -> Iterator[Cover]:
        """What stays of extents, in large batches; those that are not as they were written go to `lost`."""
        gathered = _Gathered()
        for (extent, batch), (_, wanted) in zip(read_runs(runs), kept, strict=True):
            self._check()
            whole = batch is not None and wanted is not None
            if not whole or extent.first != gathered.end:
                yield from gathered.take()
                gathered = _Gathered(extent.first, extent.first)
            if batch is None or wanted is None:
                lost.append(extent)
                continue
            rows = batch.filter(wanted)
            if gathered.batches and rows.num_rows and not gathered.has_room(rows):
                yield from gathered.take()
                gathered = _Gathered(gathered.end, gathered.end)
            gathered.add(extent, rows)
        yield from gathered.take()

    def is_overtaken(self) -> bool:
        """Whether retention has given up some of its messages."""
        first: int = (self.clean or self.dirty)[0].first
        return self.log.first_offset > first

    def _check(self) -> None:
        check(self.stopped)


def _is_compact(old: list[Extent], kept: Sequence[_Judged]) -> bool:
    """Whether nothing would change: a compacted segment by itself, all of whose messages stay."""
    if not old[0].segment & COMPACTED or old[0].segment != old[-1].segment:
        return False
    return all(wanted is not None and not wanted.false_count for _, wanted in kept)


def find_dirty(log: StreamLog) -> tuple[list[Extent], list[Extent]] | None:
    """A stream's compacted extents and the closed dirty ones, where a run is due: where these have as many
    bytes. None: it is not.
    """
    extents = list(takewhile(lambda each: each.segment != log.last_segment, list(log.extents)))
    clean = count_clean(extents)
    if clean == len(extents) or _length(extents[clean:]) < _length(extents[:clean]):
        return None
    return extents[:clean], extents[clean:]


def count_clean(extents: Sequence[Extent]) -> int:
    """How many of a stream's first extents are compacted: they have each topic at most once."""
    return sum(1 for _ in takewhile(lambda each: each.segment & COMPACTED, extents))


def _length(extents: Iterable[Extent]) -> int:
    return sum(each.length for each in extents)
