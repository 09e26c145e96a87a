"""All streams of a broker: declared, filled from the engine's captured messages, kept within their retention.

A stream's declaration and its extents are rows of the store, its messages are files below the data directory.
Everything that writes runs on the keeper's thread; other threads look at `Stream` objects and read files.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemq.config import StreamConfig
from tidemq.errors import StoreError, UsageError
from tidemq.store import Store, Write
from tidemq.store.directory import sync_directory
from tidemq.stream.growth import Growth
from tidemq.stream.log import COMPACTED, FAMILY, SEGMENT_BYTES, SEGMENTS, Extent, StreamLog
from tidemq.stream.stored import (
    StoredStream,
    describe_loss,
    read_streams,
    require_packages,
    stream_folder,
)

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess, StoreWork
    from tidemq.stream.compaction import Compaction

    Ask = Callable[[Callable[[], None]], Future[None]]

_log = logging.getLogger("tidemq.streams")

_DECLARATION = b"\x00"  # in a key, after the stream's name
_SEGMENT_BYTES_MIN = 1 << 20
MERGE_PAUSE_S = 60.0  # of a stream, after a segment could not be written
_DELETED = ".deleted"  # ends the name of a folder whose stream is none any more

LAST_SEGMENT_BYTES = 16 << 20  # of a stream with `last`: compaction begins with the closed ones
TOPICS_BYTES_MAX = 128 << 20  # as `limits.compaction_bytes_max` has it

STREAM_COUNTERS = (
    "stream_messages",
    "stream_messages_dropped",
    "stream_messages_damaged",
    "stream_compactions",
    "stream_compactions_failed",
    "stream_messages_compacted",
    "stream_bytes_before_compaction",
    "stream_bytes_after_compaction",
)


@dataclass(slots=True)
class Stream:
    """One stream. `epoch` tells it from another of the same name; `number` is the engine's."""

    config: StreamConfig
    epoch: int
    log: StreamLog
    number: int
    merged_offset: int = 0  # segments before it are merged, or large, or cannot be read
    merge_at_s: float = 0.0  # not before this time, of the monotonic clock
    judged_segment: int | None = None  # the last when it was looked whether a compaction is due

    def describe(self) -> dict[str, Any]:
        """What readers are told of it."""
        extents = self.log.extents
        return {
            "name": self.config.name,
            "filters": list(self.config.filters),
            "retention_s": self.config.retention_s,
            "retention_bytes": self.config.retention_bytes,
            "compression": self.config.compression,
            "last": self.config.last,
            "epoch": self.epoch,
            "first_offset": self.log.first_offset,
            "next_offset": self.log.next_offset,
            "bytes": self.log.size_bytes,
            "first_us": extents[0].first_us if extents else None,
            "last_us": extents[-1].last_us if extents else None,
        }

    def declaration(self) -> Write:
        """The row of the store that holds it."""
        value = self.config.model_dump(mode="json") | {
            "epoch": self.epoch,
            "next_offset": self.log.next_offset,
        }
        return FAMILY, self.config.name.encode() + _DECLARATION, json.dumps(value).encode()


@dataclass(slots=True)
class _Rewrite:
    """Segments of a stream whose place another takes: merged, or compacted."""

    stream: Stream
    old: list[Extent]
    new: list[Extent] = field(default_factory=list)
    lost: list[Extent] = field(default_factory=list)  # of the old ones: they are not as they were written
    placed: bool = False  # it is done


class Streams:
    """The streams of one broker. `load` comes before the engine starts, all else while the keeper runs."""

    def __init__(
        self, store: Store, access: StoreAccess, data: Path, *, topics_bytes_max: int = TOPICS_BYTES_MAX
    ) -> None:
        self._store = store
        self._access = access
        self._data = data
        self._by_name: dict[str, Stream] = {}  # replaced, never changed: other threads read it
        self._rewriting: threading.Thread | None = None
        self._rewritten: _Rewrite | None = None  # what the store has not taken yet
        self._closing = threading.Event()
        self.topics_bytes_max = topics_bytes_max  # that a compaction, or a table, holds at a time
        self._written: list[Stream] = []  # by the work that is being committed
        self.growth = Growth()
        self.counts: Counter[str] = Counter(dict.fromkeys(STREAM_COUNTERS, 0))

    @property
    def all(self) -> Mapping[str, Stream]:
        """The streams by their names, as they are now."""
        return self._by_name

    # --- declaring ---------------------------------------------------------------------------------

    def load(self, configured: Sequence[StreamConfig]) -> list[str]:
        """Opens the streams that the store knows and declares those of the configuration; gives a line for
        each that has lost messages. StoreError when one cannot be opened.
        """
        lines = [line for stored in read_streams(self._store) for line in self._open(stored)]
        self._remove_leftovers()
        for config in configured:
            self.declare(config)
        return lines

    def _open(self, stored: StoredStream) -> list[str]:
        require_packages()
        config, epoch, next_offset, extents = stored
        folder = stored.folder(self._data)
        _make_folder(folder)  # in case somebody has removed it
        log = StreamLog(config.name, folder, extents, next_offset)
        lost = log.damaged()
        if lost:
            kept = sorted(set(log.extents).difference(lost))
            log = StreamLog(config.name, folder, kept, log.next_offset)
            self.counts["stream_messages_damaged"] += sum(each.rows for each in lost)
        stream = Stream(config, epoch, log, self._access.add_stream(config.filters))
        if lost:
            gone = [each.removal(config.name) for each in lost]
            self._store.write([stream.declaration(), *gone], sync=True)
        log.remove_leftovers()
        self._bound(stream)
        self._by_name = self._by_name | {config.name: stream}
        return [describe_loss(config.name, lost)] if lost else []

    def _remove_leftovers(self) -> None:
        """Removes what is left of deleted streams, and empty folders: of streams that the store did not take.
        Messages of a stream that the store does not know stay, for it may have lost that.
        """
        kept = {stream.log.folder for stream in self._by_name.values()}
        for folder in (self._data / "streams").glob("*"):
            if folder.suffix == _DELETED:
                self.remove_files(folder)
            elif folder not in kept:
                with suppress(OSError):
                    folder.rmdir()

    def declare(self, config: StreamConfig) -> Stream:
        """Makes a stream, or gives one that is there other filters and another retention; durable. UsageError
        for a malformed filter, or when a package is missing; StoreError when it cannot be written down.
        """
        known = self._by_name.get(config.name)
        if known is None:
            return self._make(config)
        before = known.config
        self._change_filters(known, before, config)
        known.config = config
        try:
            self._store.write([known.declaration()], sync=True)
        except StoreError:
            known.config = before
            self._change_filters(known, config, before)
            raise
        self._bound(known)
        return known

    def _change_filters(self, stream: Stream, before: StreamConfig, after: StreamConfig) -> None:
        old, new = set(before.filters), set(after.filters)
        self._access.change_stream(stream.number, sorted(old - new), sorted(new - old))

    def _make(self, config: StreamConfig) -> Stream:
        require_packages()
        epoch = secrets.randbits(53)  # exact in any reader of JSON
        folder = stream_folder(self._data, config.name, epoch)
        # what is captured from now on waits for this thread
        number = self._access.add_stream(config.filters)
        stream = Stream(config, epoch, StreamLog(config.name, folder, [], 0), number)
        try:
            _make_folder(folder)
            self._store.write([stream.declaration()], sync=True)
        except StoreError as error:
            self._access.change_stream(number, config.filters, [])
            raise StoreError(f"the stream {config.name} cannot be made: {error}") from error
        self._bound(stream)
        self._by_name = self._by_name | {config.name: stream}
        return stream

    def delete(self, name: str) -> Path:
        """Ends a stream; UsageError where there is none. Gives its folder, for `remove_files`."""
        stream = self._by_name.get(name)
        if stream is None:
            raise UsageError(f"there is no stream {name!r}")
        gone = [each.removal(name) for each in stream.log.extents]
        self._store.write([*gone, (FAMILY, stream.declaration()[1], None)], sync=True)
        self._access.change_stream(stream.number, stream.config.filters, [])
        self._by_name = {key: value for key, value in self._by_name.items() if key != name}
        self.growth.tell()
        folder = stream.log.folder
        deleted = folder.with_name(folder.name + _DELETED)
        try:
            return folder.rename(deleted)  # so that the next start knows it, if this process removes it not
        except OSError:
            return folder

    @staticmethod
    def remove_files(folder: Path) -> None:
        """Removes what is left of a deleted stream. A reader that has a file open keeps it. From any thread:
        another stream of that name has a folder of its own.
        """
        shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def _bound(stream: Stream) -> None:
        """Batches as the stream's configuration has them. Segments so small that retention, which gives up
        whole ones, is kept with some precision.
        """
        stream.log.compression = stream.config.compression
        stream.judged_segment = None
        limit = stream.config.retention_bytes or SEGMENT_BYTES * SEGMENTS
        largest = min(SEGMENT_BYTES, max(_SEGMENT_BYTES_MIN, limit // SEGMENTS))
        stream.log.compacted_bytes = largest
        stream.log.segment_bytes = min(largest, LAST_SEGMENT_BYTES) if stream.config.last else largest
        stream.log.segment_us = int(stream.config.retention_s * 1e6) // SEGMENTS

    # --- filling -----------------------------------------------------------------------------------

    def write(self, work: StoreWork, *, sync: bool) -> list[Write]:
        """Writes what the work has for streams, durable if `sync`; gives the rows that the store must have
        before `publish`. StoreError: call `discard`.
        """
        rows: list[Write] = []
        for stream in self._by_name.values():
            if not work.streams >> stream.number & 1:
                continue
            self._written.append(stream)
            offset = stream.log.written_offset
            rows += stream.log.write(self._access.captured_rows(work, stream.number, offset))
        if sync:
            for stream in self._written:
                stream.log.sync()
        return rows

    def publish(self) -> None:
        """The store has the rows: readers may have the messages."""
        for stream in self._written:
            self.counts["stream_messages"] += stream.log.publish()
        if self._written:
            self.growth.tell()
        self._written.clear()

    def discard(self) -> list[Write]:
        """Forgets what was written last; gives the rows that have to go from the store."""
        gone: list[Write] = []
        for stream in self._written:
            gone += stream.log.discard()
        self._written.clear()
        return gone

    def drop(self, work: StoreWork) -> None:
        """Counts the messages of a work that is not done."""
        for stream in self._by_name.values():
            if work.streams >> stream.number & 1:
                rows = sum(batch[3] for batch in self._access.captured_rows(work, stream.number, 0))
                self.counts["stream_messages_dropped"] += rows

    def sync(self) -> None:
        """Makes all that was written durable; StoreError when one cannot be, after all others."""
        failure: StoreError | None = None
        for stream in self._by_name.values():
            try:
                stream.log.sync()
            except StoreError as error:
                failure = error
        if failure is not None:
            raise failure

    # --- now and then ------------------------------------------------------------------------------

    def tend(self, ask: Ask) -> None:
        """Gives up what is beyond the retention, and has streams with `last` compacted and small batches
        merged, one stream or segment at a time, by a thread that lets `ask` do what is for this one.
        StoreError when the store fails.
        """
        pending = self._rewritten
        if pending is not None:  # before its rows are given up, which the store may have already
            self._finish(pending)
        for stream in self._by_name.values():
            self._forget(stream)
        if pending is None and self._rewriting is None and (act := self._find_due(ask)):
            self._rewriting = threading.Thread(target=act, name="tidemq-rewrite", daemon=True)
            self._rewriting.start()

    def _forget(self, stream: Stream) -> None:
        age_us = int(stream.config.retention_s * 1e6)
        before = time.time_ns() // 1000 - age_us if age_us else 0
        gone = stream.log.expired(before_us=before, bytes_max=stream.config.retention_bytes)
        if gone:
            writes = [each.removal(stream.config.name) for each in gone]
            # durable before the files go: what the store names must be there after a power failure
            self._store.write([*writes, stream.declaration()], sync=True)
            stream.log.forget(gone)

    def _find_due(self, ask: Ask) -> Callable[[], None] | None:
        """What the other thread is to do, if anything: a compaction before a merge."""
        now = time.monotonic()
        streams = [
            each for each in self._by_name.values() if len(each.log.extents) > 1 and now >= each.merge_at_s
        ]
        for stream in streams:
            if (compaction := self._find_dirty(stream)) is not None:
                return partial(self._compact, stream, compaction, ask)
        for stream in streams:
            from tidemq.stream.merging import find_small

            extents, stream.merged_offset = find_small(stream.log, stream.merged_offset)
            if extents:
                return partial(self._merge, _Rewrite(stream, extents), ask)
        return None

    def _find_dirty(self, stream: Stream) -> Compaction | None:
        """What is to be compacted; it is looked for once for each segment that has begun."""
        log = stream.log
        if not stream.config.last or stream.judged_segment == log.last_segment:
            return None
        from tidemq.stream.compaction import Compaction, find_dirty

        found = find_dirty(log)
        if found is None:
            stream.judged_segment = log.last_segment
            return None
        return Compaction(log, *found, self.topics_bytes_max, self._closing.is_set)

    def _merge(self, merge: _Rewrite, ask: Ask) -> None:
        """On a thread of its own. A segment that cannot be read stays as it is until the next start."""
        from tidemq.stream.merging import merge as merged

        stream, what = merge.stream, "batches of the stream %s cannot be merged: %s"
        try:
            merge.new = merged(stream.log, merge.old)
            self._rewritten = merge
            ask(partial(self._finish, merge))
        except OSError as error:
            _log.error(what, stream.config.name, error)
            stream.merge_at_s = time.monotonic() + MERGE_PAUSE_S
        except ValueError as error:  # Arrow's are
            _log.error(what, stream.config.name, error)
            stream.merged_offset = merge.old[-1].end
        finally:
            self._rewriting = None

    def _compact(self, stream: Stream, compaction: Compaction, ask: Ask) -> None:
        """On a thread of its own. What fails is tried again from the beginning, after a while."""
        from tidemq.stream.compaction import StoppedError

        try:
            for group in compaction.groups():
                rewrite = self._rewritten = _Rewrite(stream, group.old, group.new, group.lost)
                ask(partial(self._finish, rewrite)).result()
                if not rewrite.placed or not stream.config.last:
                    return
            self.counts["stream_compactions"] += 1
        except (StoppedError, StoreError):
            pass  # what the store has not taken is its keeper's to try again
        except Exception as error:  # noqa: BLE001 - whatever it is, not at once again
            overtaken = isinstance(error, FileNotFoundError) and compaction.is_overtaken()
            if overtaken or self._by_name.get(stream.config.name) is not stream:
                return  # its files have gone
            self.counts["stream_compactions_failed"] += 1
            _log.error("the stream %s cannot be compacted: %s", stream.config.name, error)
            stream.merge_at_s = time.monotonic() + MERGE_PAUSE_S
        finally:
            self._rewriting = None

    def _finish(self, rewrite: _Rewrite) -> None:
        """Puts what was rewritten in its place. StoreError: then it is tried again, as it is, for the store
        may have the rows of it.
        """
        if self._rewritten is not rewrite:
            return  # it was tried again meanwhile
        log, name = rewrite.stream.log, rewrite.stream.config.name
        if self._by_name.get(name) is not rewrite.stream or not log.has(rewrite.old[0]):
            log.remove_segments(rewrite.new)  # deleted, or given up by the retention, meanwhile
        else:
            gone = [each.removal(name) for each in rewrite.old]
            declared = [rewrite.stream.declaration()] if rewrite.lost else []  # with the next offset
            self._store.write([*gone, *(each.write(name) for each in rewrite.new), *declared], sync=True)
            log.replace(rewrite.old, rewrite.new)
            rewrite.placed = True
            self._count(rewrite)
        self._rewritten = None

    def _count(self, rewrite: _Rewrite) -> None:
        old, new, lost = (
            sum(each.rows for each in part) for part in (rewrite.old, rewrite.new, rewrite.lost)
        )
        if lost:
            self.counts["stream_messages_damaged"] += lost
            _log.error("%s", describe_loss(rewrite.stream.config.name, rewrite.lost))
        if not rewrite.new or rewrite.new[0].segment & COMPACTED:
            self.counts["stream_messages_compacted"] += old - new - lost
            self.counts["stream_bytes_before_compaction"] += sum(each.length for each in rewrite.old)
            self.counts["stream_bytes_after_compaction"] += sum(each.length for each in rewrite.new)

    @property
    def closing(self) -> bool:
        """Whether the broker stops: who works for a reader may end."""
        return self._closing.is_set()

    def close(self) -> None:
        """Ends what the other thread does, and closes the files. The keeper has ended."""
        self._closing.set()
        if (rewriting := self._rewriting) is not None:
            rewriting.join()
        for stream in self._by_name.values():
            stream.log.close()


def _make_folder(folder: Path) -> None:
    """Makes a stream's folder and the one of all streams, durable; StoreError when that fails."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for above in (folder.parent, folder.parent.parent):
            sync_directory(above)
    except OSError as error:
        raise StoreError(f"the folder {folder} cannot be made: {error.strerror}") from error
