"""What has expired in queues that are in the store alone: found by its time, and reported to the engine."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemq.broker.durability.queue_rows import IDLE
from tidemq.store import Store, Write

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

SWEEP_ROWS_MAX = 10_000  # of one sweep
EXPIRE_AGAIN_S = 30.0  # a row is reported again that its reactor could not drop then
EXPIRING_MAX = 100_000  # rows of which it is remembered that they were reported


class Expiry:
    """Looks for it on the keeper's thread."""

    def __init__(self, store: Store, access: StoreAccess) -> None:
        self._store = store
        self._access = access
        self._after = b""  # where the next sweep begins
        self._reported: dict[bytes, float] = {}  # idle rows: when

    def sweep(self) -> None:
        """Tells the engine of some; StoreError when they cannot be read."""
        end = struct.pack(">Q", int(time.time() * 1000))
        by_queue: dict[bytes, list[bytes]] = {}
        done: list[Write] = []
        last = b""
        for key, _ in itertools.islice(self._store.scan("expiry", b"", self._after), SWEEP_ROWS_MAX):
            if key[:8] > end:
                break
            last = key
            by_queue.setdefault(key[8:16], []).append(key)
        # those before it are on their way out; from the front again when none are left
        self._after = last
        for number, keys in by_queue.items():
            done += self._report(number, keys)
        if done:
            self._store.write(done, sync=False)

    def _report(self, number: bytes, keys: list[bytes]) -> Iterator[Write]:
        """Reports the idle rows among them; gives the deletion of what refers to no row."""
        row_keys = [number + bytes([IDLE]) + key[16:] for key in keys]
        values = self._store.get_many("queue", row_keys)
        payloads = self._store.get_many("payload", [key[16:] for key in keys])
        rows = []
        now = time.monotonic()
        for key, row_key, value, payload in zip(keys, row_keys, values, payloads, strict=True):
            if value is None or payload is None:
                self._reported.pop(row_key, None)
                yield ("expiry", key, None)  # in flight, which is completed, or gone
            elif now - self._reported.get(row_key, -EXPIRE_AGAIN_S) >= EXPIRE_AGAIN_S:
                # twice would be counted twice: the removal may be on its way for longer than a sweep takes
                self._reported[row_key] = now
                rows.append((row_key, value, payload))
        while len(self._reported) > EXPIRING_MAX:
            del self._reported[next(iter(self._reported))]
        if rows:
            self._access.expire(int.from_bytes(number), rows)
