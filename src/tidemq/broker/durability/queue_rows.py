"""Rows of queues and counts of references, as the keeper has them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tidemq.store import Write

READ_BYTES = 4 << 20  # of messages in one answer to a read, and one message more

IDLE = 1  # status of a row in a queue's key
COUNTED = 4  # flag in a queue row: the payload has a count of its references
ID = slice(9, 25)  # the message id in a queue row's key

Counts = dict[bytes, int]
"""References of each payload, by its message id."""


def count_writes(counts: Counts) -> list[Write]:
    """The writes that bring the counts up to date, and remove payloads that nothing refers to."""
    writes: list[Write] = []
    for message_id, count in counts.items():
        writes.append(("reference", message_id, struct.pack(">I", count) if count else None))
        if not count:
            writes.append(("payload", message_id, None))
    return writes


def returned(key: bytes, value: bytes) -> Iterator[Write]:
    """A row that a member of a shared group had taken is idle again, without its place in an outbox."""
    yield ("queue", key, None)
    yield ("queue", key[:8] + bytes([IDLE]) + key[9:], value[:14] + bytes(8) + value[22:])


def within_bytes(rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The first of them, as many as one answer holds."""
    total = 0
    for index, (_, value) in enumerate(rows):
        total += int.from_bytes(value[2:6])
        if total > READ_BYTES:
            return rows[: index + 1]
    return rows


def chunks(items: list[tuple[bytes, bytes]], size: int) -> Iterator[list[tuple[bytes, bytes]]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
