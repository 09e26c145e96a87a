"""A process that compacts a stream and kills itself at a step: python compacting.py DATA ENGINE STEP.

Steps are before and behind calls that change the disk, counted from 1, while segments are written and
compacted; with a STEP of 0 it prints how many there are.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemq.config import StreamConfig
from tidemq.store.engines import open_empty
from tidemq.stream import Streams, merging, packing, schema, streams

ROUNDS = 3
TOPICS = 6


class Access:
    """The engine's side: it has nothing for streams."""

    def add_stream(self, _: Any) -> int:
        return 0

    def change_stream(self, *_: Any) -> None:
        pass


class Steps:
    """Counts them, and kills this process at one of them: before it, or behind it."""

    def __init__(self, last: int) -> None:
        self.count, self._last = 0, last

    def around(self, really: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **more: Any) -> Any:
            self._pass()
            result = really(*args, **more)
            self._pass()
            return result

        return act

    def _pass(self) -> None:
        self.count += 1
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def ask(act: Callable[[], None]) -> Future[None]:
    future: Future[None] = Future()
    act()
    future.set_result(None)
    return future


def main(data: Path, engine: str, last: int) -> int:
    """The number of steps."""
    packing.Packer.pack = lambda _self, _, batch: [schema.serialized_batch(batch)]  # type: ignore[method-assign, assignment]
    store = open_empty(data, engine)
    kept = Streams(store, Access(), data)  # type: ignore[arg-type]
    stream = kept.declare(StreamConfig(name="s", filters=("#",), last=True))
    steps = Steps(last)
    really_unlink, really_fsync = Path.unlink, os.fsync
    Path.unlink = steps.around(really_unlink)  # type: ignore[method-assign]
    os.fsync = steps.around(really_fsync)
    setattr(merging, "serialized_batch", steps.around(schema.serialized_batch))  # noqa: B010 - not exported
    store.write = steps.around(store.write)  # type: ignore[method-assign]
    for number in range(ROUNDS):
        for part in range(3):
            write(store, stream.log, number, part)
        kept.tend(ask)
        if (thread := kept._rewriting) is not None:
            thread.join()
    assert kept.counts["stream_compactions"] > 1
    kept.close()
    store.close()
    return steps.count


def write(store: Any, log: Any, number: int, part: int) -> None:
    """A segment; what it says is printed when the store has it."""
    first, now_us = log.next_offset, time.time_ns() // 1000
    rows = [
        {"offset": first + n, "topic": f"t/{n}", "payload": b"%d" % (number * 3 + part)}
        | {"received": now_us, "user_properties": []}
        for n in range(TOPICS if part else 1)
    ]
    log.segment_bytes = 1
    written = log.write([(now_us, now_us, pa.RecordBatch.from_pylist(rows, schema.SCHEMA), len(rows))])
    log.sync()
    store.write(written, sync=True)
    log.publish()
    log.segment_bytes = streams.LAST_SEGMENT_BYTES
    print(log.next_offset, *(f"{row['topic']}={row['payload'].decode()}" for row in rows), flush=True)


if __name__ == "__main__":
    print("steps", main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])), flush=True)
