"""Windows of queues that are longer than what a reactor holds: read when it asks for the next one."""

from __future__ import annotations

import itertools
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemq.broker.durability.queue_rows import ID, IDLE, within_bytes
from tidemq.errors import StoreError
from tidemq.store import Store

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

SCANS_OFF = 32  # windows, after one whose payloads did not lie together
PAUSE_S = 0.1  # after a failure


class Windows:
    """Reads for the engine, on the keeper's thread. `report`: of a failure, in words and by its error."""

    def __init__(
        self,
        store: Store,
        access: StoreAccess,
        counts: Counter[str],
        report: Callable[[str, StoreError], None],
    ) -> None:
        self._store = store
        self._access = access
        self._counts = counts
        self._report = report
        self._scans_off = 0  # windows whose payloads are not looked for by a scan

    def first_rows(self, queue: int, after: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """The oldest idle rows of a queue behind this id, at most so many."""
        prefix = struct.pack(">QB", queue, IDLE)
        return list(itertools.islice(self._store.scan("queue", prefix, prefix + after), count))

    def answer(self, reactor: int, queue: int, after: bytes, count: int) -> list[bytes]:
        """Answers a read; where the store fails with nothing, so that the reactor asks again. Gives the keys
        of rows that cannot be read.
        """
        rows: list[tuple[bytes, bytes]] = []
        payloads: list[bytes | None] = []
        more = True
        try:
            rows = within_bytes(self.first_rows(queue, after, count))
            payloads = self._payloads_of([key[ID] for key, _ in rows])
            more = bool(rows)
        except StoreError as error:
            self._report("a queue cannot be read", error)
            rows, payloads = [], []
            time.sleep(PAUSE_S)
        self._counts["store_rows_read"] += len(rows)
        answer = [(key, value, payload) for (key, value), payload in zip(rows, payloads, strict=True)]
        return self._access.deliver_rows(reactor, queue, answer, more)

    def _payloads_of(self, ids: list[bytes]) -> list[bytes | None]:
        """The payloads of a window: by one scan as long as no other lies between them, as in the queue of one
        client, which takes half the time; the rest each by its id.
        """
        payloads: list[bytes | None] = []
        if ids and self._scans_off == 0:
            before = (int.from_bytes(ids[0]) - 1).to_bytes(16)
            for message_id, (key, payload) in zip(
                ids, self._store.scan("payload", b"", before), strict=False
            ):
                if key != message_id:
                    break
                payloads.append(payload)
            self._scans_off = 0 if 2 * len(payloads) >= len(ids) else SCANS_OFF
        elif ids:
            self._scans_off -= 1
        return payloads + self._store.get_many("payload", ids[len(payloads) :])
