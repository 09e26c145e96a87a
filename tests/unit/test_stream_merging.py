"""Small batches become large ones, also where a file, the disk or the store fails."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from unit.keeper_double import Store
from unit.stream_kit import Access, ask, payloads, take_batches, write
from waiting import WAIT_S

from tidemq.config import StreamConfig
from tidemq.errors import StoreError
from tidemq.stream import Streams, streams

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    take_batches(monkeypatch)
    monkeypatch.setattr(streams, "MERGE_PAUSE_S", 0.05)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def kept(store: Store, tmp_path: Path) -> Streams:
    """Two streams, in five segments each, the last of which is written to."""
    kept = Streams(store, Access(), tmp_path)  # type: ignore[arg-type]
    for name in "ab":
        kept.declare(StreamConfig(name=name, filters=("#",), retention_s=0, retention_bytes=0))
        log = kept.all[name].log
        log.segment_us = 10
        for number in range(50):
            row = log.next_offset
            write(log, b"%d" % number, time_us=number)
            store.write([log.extents[row].write(name)], sync=False)
    return kept


def tend(kept: Streams, until: Callable[[], bool] = lambda: True) -> None:
    """Once, or until it holds, each time with all that comes of it."""
    deadline = time.monotonic() + WAIT_S
    while True:
        kept.tend(ask)
        if kept._rewriting is not None:
            kept._rewriting.join(WAIT_S)
        if until():
            return
        assert time.monotonic() < deadline


def batches(kept: Streams, name: str) -> int:
    return len(kept.all[name].log.extents)


def merged(kept: Streams, name: str) -> bool:
    """Whether all segments but the last are a batch each."""
    return batches(kept, name) == 4 + 10


def harm(kept: Streams, name: str, at: int) -> None:
    extent = kept.all[name].log.extents[at]
    path = kept.all[name].log.segment_path(extent.segment)
    data = bytearray(path.read_bytes())
    data[extent.position + 200] ^= 1
    path.write_bytes(data)


def test_a_damaged_segment_stays_as_it_is_and_all_others_are_merged(
    kept: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    harm(kept, "a", 13)
    tend(kept, lambda: merged(kept, "b"))
    assert batches(kept, "a") == 3 + 20
    assert [each.first for each in kept.all["a"].log.damaged()] == [13]
    for _ in range(10):
        tend(kept)
    assert len(caplog.messages) == 1
    assert "the batch at " in caplog.text
    assert len(list(kept.all["a"].log.folder.iterdir())) == 5


@pytest.mark.parametrize("applied", [False, True], ids=["not written", "written all the same"])
def test_a_store_that_fails_takes_it_later(kept: Streams, store: Store, applied: bool) -> None:
    """What it may have is not written over before."""
    store.applied = applied
    failure = StoreError("the store cannot be written: Input/output error")
    store.failures = [failure, failure]
    log = kept.all["a"].log
    tend(kept)
    assert batches(kept, "a") == 50
    [merged_file] = log.folder.glob("09*")
    written = merged_file.stat()
    with pytest.raises(StoreError):
        tend(kept)
    assert merged_file.stat() == written
    assert batches(kept, "a") == 50
    assert len(payloads(log)) == 50
    tend(kept, lambda: merged(kept, "a") and merged(kept, "b"))
    assert payloads(log) == [b"%d" % number for number in range(50)]


def test_what_was_given_up_before_the_store_took_it_leaves_no_file(kept: Streams, store: Store) -> None:
    store.failures = [StoreError("the store cannot be written: Input/output error")]
    stream = kept.all["a"]
    tend(kept)
    stream.config = stream.config.model_copy(update={"retention_bytes": 1})
    tend(kept, lambda: batches(kept, "a") == 10 and merged(kept, "b"))
    assert [each.name for each in stream.log.folder.iterdir()] == [f"{40:020}.arrow"]


def test_a_full_disk_is_tried_again_and_keeps_nothing(kept: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    log = kept.all["a"].log
    files = sorted(log.folder.iterdir())
    tries = 0

    def fail(_: int) -> None:
        nonlocal tries
        tries += 1
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        tend(kept, lambda: tries >= 3)
        assert sorted(log.folder.iterdir()) == files
    tend(kept, lambda: merged(kept, "a") and merged(kept, "b"))


def test_a_large_batch_says_when_the_first_and_the_last_of_its_messages_came(kept: Streams) -> None:
    log = kept.all["a"].log
    for times_us in [(107, 101, 108, 103), (104, 102), (102, 102), (200,)]:
        write(log, *[b""] * len(times_us), time_us=times_us)
    found_us = {time_us: log.offset_at(time_us) for time_us in range(101, 210)}
    tend(kept, lambda: batches(kept, "a") == 6 + 1)
    large, last = log.extents[-2:]
    assert (large.first_us, large.last_us, last.last_us) == (101, 108, 200)
    for time_us, offset in found_us.items():
        assert log.offset_at(time_us) == (large.first if time_us <= 108 else offset)
