"""One stream's files, as they are written, on a disk that fails now and then."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from unit.stream_kit import batch, payloads, take_batches, write

from tidemq.errors import StoreError
from tidemq.stream import StreamLog, merging, schema
from tidemq.stream.log import REWRITTEN, Extent, read_extent
from tidemq.stream.merging import find_small
from tidemq.stream.ranges import Cursor

SECOND_US = 1_000_000
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    take_batches(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> StreamLog:
    """Of one that has a segment for each second."""
    return opened(tmp_path)


def opened(folder: Path, *extents: Any, next_offset: int = 0) -> StreamLog:
    log = StreamLog("s", folder, extents, next_offset)
    log.segment_us = SECOND_US
    return log


def failing(count: int, really: Callable[..., Any]) -> Callable[..., Any]:
    """Does it so many times; then the disk is full."""
    left = count

    def act(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise FULL
        return really(*args)

    return act


def refused(log: StreamLog, *batches: Any) -> None:
    with pytest.raises(StoreError, match="No space left"):
        log.write(batches)
    log.discard()


def test_a_segment_whose_messages_were_taken_back_is_no_name_for_another(
    log: StreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch of a work goes into one segment and the second begins another, which the disk has no
    room for; what is sent again ends with the offset that this segment was named by.
    """
    write(log, *[b"a"] * 10)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing(1, os.pwritev))  # the batch
        refused(log, batch(10, [b"b"] * 10, SECOND_US - 1), batch(20, [b"c"] * 5, SECOND_US + 1))
    write(log, *[b"B"] * 10, time_us=SECOND_US + 2)
    write(log, b"D", time_us=3 * SECOND_US)
    assert payloads(log) == [*[b"a"] * 10, *[b"B"] * 10, b"D"]
    assert log.damaged() == []


def test_what_the_store_failed_to_take_is_not_written_over(log: StreamLog) -> None:
    """It may have it all the same until the next start: also where that has filled a segment."""
    log.segment_bytes = 5000
    for _ in range(2):
        log.write([batch(0, [os.urandom(3000)], 0)])
        log.discard()
    before = log.segment_path(0).read_bytes()
    write(log, b"a")
    assert log.segment_path(0).read_bytes() == before
    assert payloads(log) == [b"a"]


@pytest.mark.parametrize("rewritten", [0, REWRITTEN], ids=["as it was", "merged"])
def test_a_name_that_was_taken_before_the_start_stays_so(log: StreamLog, rewritten: int) -> None:
    """A segment need not hold the offset that it was named by. Where its end was damaged, that comes next."""
    for number in range(2):
        write(log, b"%d" % number)
    taken = log.segment_path(3 | rewritten)
    log.segment_path(0).rename(taken)
    kept = [each._replace(segment=3 | rewritten) for each in log.extents]
    log.close()
    log = opened(log.folder, *kept, next_offset=3)
    write(log, b"3", time_us=2 * SECOND_US)
    assert payloads(log) == [b"0", b"1", b"3"]
    assert [each.first for each in log.extents] == [0, 1, 3]
    assert log.extents[-1].segment | REWRITTEN != 3 | REWRITTEN  # which would be written over when merged


@pytest.mark.parametrize("step", ["open", "pwrite", "fsync"])
def test_a_segment_that_could_not_be_begun_is_begun_anew(
    log: StreamLog, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """With its head, and with its name on the disk; and what failed leaves no file."""
    write(log, b"a")
    log.segment_us = 1
    with monkeypatch.context() as patch:
        patch.setattr(os, step, failing(0, getattr(os, step)))
        for _ in range(3):
            refused(log, batch(1, [b"b"], 10))
    synced: list[int] = []
    fsync = os.fsync

    def note(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", note)
    write(log, b"b", time_us=20)
    assert synced == [log.folder.stat().st_ino]
    files = sorted(log.folder.iterdir())
    assert files == [log.segment_path(0), log.segment_path(1)]
    assert all(each.read_bytes().startswith(schema.HEAD) for each in files)
    assert payloads(log) == [b"a", b"b"]


def test_a_file_that_somebody_removed_is_followed_by_another(log: StreamLog) -> None:
    write(log, b"a")
    log.close()
    log = opened(log.folder, *log.extents)
    log.segment_path(0).unlink()
    write(log, b"b")
    assert log.segment_path(1).read_bytes().startswith(schema.HEAD)


@pytest.mark.parametrize("kept", [0, 2])
def test_a_reader_comes_to_the_end_though_the_last_messages_are_missing(log: StreamLog, kept: int) -> None:
    for number in range(4):
        write(log, b"%d" % number)
    log.close()
    log = opened(log.folder, *log.extents[:kept], next_offset=4)
    cursor = Cursor(log, ("#",), 0)
    rows = [row["offset"] for _ in range(3) for row in cursor.read(10)]
    assert rows == list(range(kept))
    assert cursor.at_end
    write(log, b"4")
    assert not cursor.at_end
    assert [row["offset"] for row in cursor.read(10)] == [4]


class Disk:
    """What would be there after a power failure: a sync that failed leaves what was written as if it were on
    the disk, so that the next one does not bring it there.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0  # of the next syncs
        self._durable: dict[int, bytearray] = {}
        self._dirty: dict[int, list[tuple[int, bytes]]] = {}
        self._pwrite, self._pwritev = os.pwrite, os.pwritev
        monkeypatch.setattr(os, "pwrite", self._write)
        monkeypatch.setattr(os, "pwritev", self._write_pieces)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _write(self, file: int, data: bytes, position: int) -> int:
        self._dirty.setdefault(os.fstat(file).st_ino, []).append((position, bytes(data)))
        return self._pwrite(file, data, position)

    def _write_pieces(self, file: int, pieces: Sequence[bytes], position: int) -> int:
        self._dirty.setdefault(os.fstat(file).st_ino, []).append((position, b"".join(pieces)))
        return self._pwritev(file, pieces, position)

    def _sync(self, file: int) -> None:
        number = os.fstat(file).st_ino
        written = self._dirty.pop(number, [])
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "Input/output error")
        durable = self._durable.setdefault(number, bytearray())
        for position, data in written:
            durable.extend(bytes(max(position + len(data) - len(durable), 0)))
            durable[position : position + len(data)] = data

    def has(self, log: StreamLog) -> bool:
        """Whether all that readers may have is on it."""
        for each in log.extents:
            path = log.segment_path(each.segment)
            durable = self._durable.get(path.stat().st_ino, b"")
            if durable[each.position : each.position + each.length] != log.read(each):
                return False
            if not durable.startswith(schema.HEAD):
                return False
        return True


@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.parametrize("before", [0, 1])
def test_what_a_failed_sync_left_behind_is_durable_with_the_next(
    log: StreamLog, monkeypatch: pytest.MonkeyPatch, failures: int, before: int
) -> None:
    disk = Disk(monkeypatch)
    for _ in range(before):
        write(log, b"before")
    for number in range(3):
        write(log, b"%d" % number, sync=False)
    disk.failures = failures
    for _ in range(failures):
        with pytest.raises(StoreError, match="Input/output error"):
            log.sync()
        log.write([batch(log.next_offset, [b"refused"], 0)])
        log.discard()
        assert not disk.has(log)
    log.sync()
    assert disk.has(log)
    write(log, b"after")
    assert disk.has(log)


def test_what_a_failed_sync_left_behind_is_durable_before_the_next_segment(
    log: StreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    write(log, b"a", sync=False)
    disk.failures = 2
    for _ in range(2):
        with pytest.raises(StoreError, match="Input/output error"):
            log.write([batch(1, [b"b"], 2 * SECOND_US)])
        log.discard()
    write(log, b"b", time_us=2 * SECOND_US)
    assert {each.segment for each in log.extents} == {0, 1}
    assert disk.has(log)


def in_order(log: StreamLog, times_us: Sequence[Sequence[int]]) -> None:
    for each in times_us:
        write(log, *[b""] * len(each), time_us=each)


OVERLAPPING = [(0, 5), (7, 2), (3, 4), (6, 6), (20, 9), (8, 8)]  # when the messages of batches came


def lowest_offset(log: StreamLog, time_us: int) -> int:
    """By looking at all: of the first batch that has a message of that time or later."""
    return next((each.first for each in log.extents if each.last_us >= time_us), log.next_offset)


@pytest.mark.parametrize("restarted", [False, True], ids=["as written", "after a restart"])
def test_an_offset_is_found_by_time_where_batches_overlap(log: StreamLog, restarted: bool) -> None:
    in_order(log, OVERLAPPING)
    rows = [(key[1:], value) for _, key, value in (each.write("s") for each in log.extents)]
    if restarted:
        log = opened(log.folder, *(read_extent(*row) for row in rows))  # type: ignore[arg-type]
    for time_us in range(25):
        found = log.offset_at(time_us)
        assert found == lowest_offset(log, time_us)
        assert not any(
            came_us >= time_us and 2 * number + at < found
            for number, times_us in enumerate(OVERLAPPING)
            for at, came_us in enumerate(times_us)
        )
    assert [(key[1:], value) for _, key, value in (each.write("s") for each in log.extents)] == rows


@pytest.mark.parametrize("gone", range(1, 6))
def test_an_offset_is_found_by_time_when_older_batches_are_gone(log: StreamLog, gone: int) -> None:
    in_order(log, OVERLAPPING)
    log.forget(log.extents[:gone])
    assert [log.offset_at(time_us) for time_us in range(25)] == [
        lowest_offset(log, time_us) for time_us in range(25)
    ]


def test_a_segment_is_too_old_when_all_of_its_messages_are(log: StreamLog) -> None:
    in_order(log, [(0, 5), (4, 4), (2 * SECOND_US,)])
    assert log.expired(before_us=5, bytes_max=0) == []
    assert len(log.expired(before_us=6, bytes_max=0)) == 2


class Counted(list[Extent]):
    """Extents that count how many of them are looked at."""

    looked = 0

    def __getitem__(self, at: Any) -> Any:
        self.looked += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Extent]:
        self.looked += len(self)
        return super().__iter__()


def test_in_a_long_stream_few_extents_are_looked_at(tmp_path: Path) -> None:
    extents = [
        Extent(at * 1100, 1100, at // 200 * 220_000, at % 200 * 1000, 1000, 7, at, at) for at in range(20_000)
    ]
    log = opened(tmp_path, *extents)
    looked = 0
    for _ in range(3):
        found, looked = find_small(log, looked)
    assert (found, looked) == ([], 220_000 * 99)  # the last is written to
    log.extents = counted = Counted(log.extents)
    assert find_small(log, looked) == ([], looked)
    assert log.offset_at(15_000) == 15_000 * 1100
    assert log.find(15_000 * 1100 + 5, 15_002 * 1100) == extents_at(log, 15_000, 15_001)
    assert log.find(0, 1 << 60, 2000) == extents_at(log, 0, 1)
    assert log.has(extents[7])
    assert counted.looked < 200


def extents_at(log: StreamLog, *places: int) -> list[Extent]:
    return [log.extents[at] for at in places]


def test_a_look_for_small_batches_ends_before_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on there the next time."""
    monkeypatch.setattr(merging, "LOOKED_EXTENTS", 30)
    rows = [1100] * 80 + [1] * 20
    offsets = list(itertools.accumulate(rows, initial=0))
    extents = [Extent(offsets[at], rows[at], at // 10, 0, 1000, 7, 0, 0) for at in range(len(rows))]
    log = opened(tmp_path, *extents)
    looked = 0
    for expected in (30, 60, 80):
        found, looked = find_small(log, looked)
        assert looked == offsets[expected]
    assert [each.first for each in found] == offsets[80:90]
    assert find_small(log, looked) == (found, looked)
