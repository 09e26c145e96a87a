"""Compaction and `kill -9`, at steps that change the disk: the newest message of each topic is there."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from durable.compacting import Access

from tidemq.store.engines import open_existing
from tidemq.stream import Streams
from tidemq.stream.ranges import Cursor
from tidemq.stream.table import read_table

SCRIPT = Path(__file__).with_name("compacting.py")


def run(data: Path, engine: str, step: int) -> list[str]:
    """What it printed, as far as it came."""
    command = [sys.executable, "-P", str(SCRIPT), str(data), engine, str(step)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == (-9 if step else 0)
    return done.stdout.splitlines()


@pytest.mark.parametrize("engine", ["sqlite", "rocksdb"])
def test_the_newest_of_each_topic_survives(engine: str, tmp_path: Path) -> None:
    *_, last = run(tmp_path / "whole", engine, 0)
    count = int(last.split()[1])
    assert count > 30
    for step in range(1 if engine == "sqlite" else 4, count + 1, 13):
        data = tmp_path / str(step)
        check(data, run(data, engine, step))


def check(data: Path, printed: list[str]) -> None:
    newest: dict[str, str] = {}
    end = 0
    for line in printed:
        offset, *pairs = line.split()
        end = int(offset)
        newest |= dict(pair.split("=") for pair in pairs)
    with closing(open_existing(data)) as store:
        streams = Streams(store, Access(), data)  # type: ignore[arg-type]
        assert streams.load([]) == []
        assert streams.counts["stream_messages_damaged"] == 0
        if not streams.all:
            assert not printed
            return
        log = streams.all["s"].log
        with ExitStack() as stack:
            table = read_table(log, 1 << 20, stack)
            rows = [row for batch in table.batches(["topic", "payload"]) for row in batch.to_pylist()]
        found = {row["topic"]: row["payload"].decode() for row in rows}
        assert len(found) == len(rows)
        # one more segment may be there than was told of
        assert log.next_offset >= end
        if log.next_offset == end:
            assert found == newest
        assert found.keys() >= newest.keys()
        assert all(int(found[topic]) >= int(payload) for topic, payload in newest.items())
        cursor = Cursor(log, ("#",), 0)
        while not cursor.at_end:
            cursor.read(100)
        assert cursor.take_missed() == 0
        files = {log.segment_path(each.segment) for each in log.extents}
        assert set(log.folder.iterdir()) == files
        streams.close()
