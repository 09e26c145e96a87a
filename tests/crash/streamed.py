"""The stream of everything that a run published, looked at when the broker has ended for good."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from crash.history import NEVER, History, Message

from tidemq.store.engines import open_existing
from tidemq.stream.log import EXTENT, FAMILY, Extent, read_extent
from tidemq.stream.schema import END, HEAD

NAME = "all"
DECLARED = '[{"name": "all", "filters": ["#"]}]'  # as TIDEMQ_STREAMS has it


def judge_stream(history: History, data: Path, find: Callable[[bytes], Message | None]) -> None:
    """Every acknowledged message is in it, QoS 2 once, in its publisher's order; offsets have no gaps."""
    rows = list(_rows(data))
    offsets = [row["offset"] for row in rows]
    if offsets != list(range(len(offsets))):
        history.fail("stream", f"offsets are not 0 to {len(offsets) - 1}", client="broker")
    messages = [message for row in rows if (message := find(row["payload"])) is not None]
    counts = Counter(id(message) for message in messages)
    for message in history.messages:
        times = counts[id(message)]
        named = bool(message.payload)  # a removal of what is retained cannot be told from another
        kept = named and message.acknowledged_at < NEVER and not message.refused and message.qos > 0
        if kept and not times:
            history.fail("stream", "was acknowledged and is not in the stream", message, message.publisher)
        if times > 1 and message.qos == 2:
            history.fail("stream", f"is {times} times in the stream", message, message.publisher)
    _check_order(history, messages)


def _check_order(history: History, messages: list[Message]) -> None:
    """What is sent again may come again; of one publisher, topic and QoS (4.6) the first of each come in the
    order of their numbers.
    """
    seen: set[int] = set()
    last: dict[tuple[str, str, int], int] = {}
    for message in messages:
        if id(message) in seen:
            continue
        seen.add(id(message))
        way = (message.publisher, message.topic, message.qos)
        if message.qos and message.number < last.get(way, -1):
            history.fail("stream", "comes after a later one in the stream", message, message.publisher)
        if message.qos:
            last[way] = max(message.number, last.get(way, -1))


def _rows(data: Path) -> Iterator[dict[str, Any]]:
    with closing(open_existing(data)) as store:
        extents = [read_extent(*row) for row in store.scan(FAMILY, NAME.encode() + EXTENT)]
    [folder] = (data / "streams").glob(f"{NAME}.*")
    for each in extents:
        yield from pa.ipc.open_stream(HEAD + _bytes(folder, each) + END).read_all().to_pylist()


def _bytes(folder: Path, extent: Extent) -> bytes:
    with (folder / f"{extent.segment:020}.arrow").open("rb") as file:
        return os.pread(file.fileno(), extent.length, extent.position)
