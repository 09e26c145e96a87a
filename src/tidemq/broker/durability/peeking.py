"""A look at the messages of a queue that only the store has. On the keeper's thread."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass

from tidemq.broker.durability.queue_rows import ID, IDLE
from tidemq.engine.door.figures import MessageFigures
from tidemq.store import Store
from tidemq.store.rows import id_clock_ns, parse_payload, parse_queue

BYTES_MAX = 4 << 20  # of payloads that are read for one look


@dataclass(frozen=True, slots=True)
class Peeked:
    """Some messages, in order; the id of the last that was looked at, and whether more follow."""

    messages: list[MessageFigures]
    last: bytes
    more: bool


def peek(store: Store, queue: int, after: bytes, count: int, payload_bytes: int) -> Peeked:
    """Up to `count` messages of a queue with ids above `after`, their payloads cut to so many bytes.

    Raises StoreError where it cannot be read.
    """
    prefix = struct.pack(">QB", queue, IDLE)
    rows = list(itertools.islice(store.scan("queue", prefix, prefix + after), count + 1))
    found: list[MessageFigures] = []
    size = 0
    for key, value in rows[:count]:
        after = key[ID]
        payload = store.get("payload", after)
        if payload is None:
            continue  # it has just gone
        entry, message = parse_queue(key, value), parse_payload(after, payload)
        figures = MessageFigures(
            topic=message.topic,
            payload=message.payload[:payload_bytes],
            payload_bytes=len(message.payload),
            qos=entry.qos,
            retain=message.retain,
            in_flight=False,
            came_ms=id_clock_ns(after) // 1_000_000,
            expires_ms=entry.expires_at_ms,
        )
        found.append(figures)
        size += len(payload)
        if size >= BYTES_MAX:
            break
    return Peeked(found, after, bool(rows) and after != rows[-1][0][ID])
