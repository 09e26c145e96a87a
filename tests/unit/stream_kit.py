"""Streams' files with messages of a test's own, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from tidemq.errors import StoreError
from tidemq.stream import StreamLog, packing, schema
from tidemq.stream.log import Extent

Batch = tuple[int, int, pa.RecordBatch, int]


class Access:
    """The engine's side: numbers streams."""

    def __init__(self) -> None:
        self.count = 0

    def add_stream(self, _: Any) -> int:
        self.count += 1
        return self.count - 1

    def change_stream(self, *_: Any) -> None:
        pass


def ask(act: Callable[[], None]) -> Future[None]:
    """Does it at once, as a keeper's thread that has nothing else to do."""
    future: Future[None] = Future()
    try:
        act()
    except StoreError as error:
        future.set_exception(error)
    else:
        future.set_result(None)
    return future


def take_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a log takes Arrow's batches where the engine would give it buffers."""
    monkeypatch.setattr(packing.Packer, "pack", lambda _self, _, batch: [schema.serialized_batch(batch)])


def batch(first: int, payloads: Sequence[bytes], *times_us: int) -> Batch:
    """Messages from an offset on; when each came, or all of them."""
    times = times_us if len(times_us) == len(payloads) else times_us * len(payloads)
    messages = [
        {"offset": first + at, "topic": "t", "payload": payload, "received": time_us, "user_properties": []}
        for at, (payload, time_us) in enumerate(zip(payloads, times, strict=True))
    ]
    columns = pa.RecordBatch.from_pylist(messages, schema.SCHEMA)
    return min(times), max(times), columns, len(payloads)


def write(log: StreamLog, *payloads: bytes, time_us: int | Sequence[int] = 0, sync: bool = True) -> None:
    """One batch, for readers to have."""
    times_us = (time_us,) if isinstance(time_us, int) else time_us
    log.write([batch(log.next_offset, payloads, *times_us)])
    if sync:
        log.sync()
    log.publish()


def payloads(log: StreamLog) -> list[bytes]:
    """Of all messages, from the files."""
    return [payload for each in log.extents for payload in _payloads(log, each)]


def _payloads(log: StreamLog, extent: Extent) -> Iterator[bytes]:
    with log.segment_path(extent.segment).open("rb") as file:
        file.seek(extent.position)
        data = file.read(extent.length)
    assert schema.checksum(data) == extent.checksum
    yield from pa.ipc.open_stream(schema.HEAD + data + schema.END).read_all()["payload"].to_pylist()
