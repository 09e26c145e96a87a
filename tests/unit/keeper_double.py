"""What a keeper stands between: the engine's side, and a store that fails when it is told to."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from tidemq.errors import StoreError
from tidemq.store import MemoryStore


def work(
    *writes: Any,
    references: Sequence[Any] = (),
    reads: Sequence[Any] = (),
    trims: Sequence[Any] = (),
    expired: Sequence[Any] = (),
    purges: Sequence[Any] = (),
    adds: bool = False,
    outdated: bool = False,
    more: bool = False,
) -> SimpleNamespace:
    return SimpleNamespace(
        writes=list(writes),
        references=list(references),
        reads=list(reads),
        trims=list(trims),
        expired=list(expired),
        purges=list(purges),
        adds=adds,
        outdated=outdated,
        more=more,
        streams=0,
    )


class Access:
    """The engine's side: gives the work that a test puts in, and keeps what it is told."""

    def __init__(self) -> None:
        self.works: queue.Queue[Any] = queue.Queue()
        self.told: list[Any] = []  # in order
        self.answers: queue.Queue[Any] = queue.Queue()
        self.refusals: queue.Queue[Any] = queue.Queue()  # the reasons for which messages are refused at once
        self.unreadable: set[bytes] = set()  # keys that no load_... can read
        self.rests: dict[int, Any] = {}  # of a work, by its id

    def open(self, incarnation: int, clock: int, *, as_of_ms: int) -> None:
        self.told.append(("open", incarnation, clock))

    def _load(self, what: str, key: bytes) -> bool:
        self.told.append((what, key))
        return key not in self.unreadable

    def load_session(self, key: bytes, value: bytes) -> bool:
        return self._load("session", key)

    def load_subscription(self, key: bytes, value: bytes) -> bool:
        return self._load("subscription", key)

    def load_received(self, row: bytes) -> bool | None:
        if row[:8] == bytes(7) + b"\x09":
            return False  # its session is gone
        key = next((each for each in self.unreadable if row.startswith(each)), row)
        return True if self._load("received", key) else None

    def load_retained(self, key: bytes, value: bytes) -> bool:
        return self._load("retained", key)

    def load_shared(self, key: bytes, value: bytes) -> bool:
        return self._load("shared", key)

    def load_queue(
        self, rows: Iterable[tuple[bytes, bytes]], orphans: set[Any], held: list[Any], corrupt: list[Any]
    ) -> Any:
        inflight = []
        for key, value in rows:
            self.told.append(("queue", key))
            if key in self.unreadable:
                corrupt.append(key)
            elif key[:8] == bytes(7) + b"\x09":
                orphans.add(9)
            elif key[:8] == bytes(7) + b"\x08" and key[8] == 2:
                held.append((key, value))
            elif key[8] == 2:
                inflight.append((key, value))
        return inflight

    def load_inflight(self, key: bytes, value: bytes, payload: bytes) -> bool:
        return self._load("inflight", key)

    def loaded(self, *, crashed: bool) -> None:
        self.told.append(("loaded", crashed))

    def take_work(self, timeout_s: float) -> Any:
        try:
            return self.works.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return work()

    def poke(self) -> None:
        self.works.put(work())

    def answer(self, done: SimpleNamespace, reason: int = 0) -> None:
        if done.writes or done.references or done.reads or done.trims or done.expired or done.purges:
            self.answers.put((done, reason))

    def rest_of(self, failed: SimpleNamespace) -> Any:
        return self.rests.get(id(failed), work())

    def deliver_rows(self, reactor: int, number: int, rows: Any, more: bool) -> list[bytes]:
        self.answers.put((reactor, number, rows, more))
        return [key for key, _, payload in rows if payload is None]

    def removed(self, number: int, sizes: list[int]) -> None:
        self.answers.put(("removed", number, sizes))

    def expire(self, number: int, rows: Any) -> None:
        self.answers.put((number, rows))

    def refuse(self, reason: int) -> None:
        self.refusals.put(reason)

    def close(self) -> None:
        self.works.put(None)


class Store(MemoryStore):
    """Fails when it is told to, before or after it has taken the batch; knows how it was written."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Any] = []  # of the next writes: None, or what they raise
        self.refused_family = ""  # no write with a row of it succeeds
        self.applied = False
        self.read_failure: Exception | None = None
        self.syncs: list[Any] = []
        self.size = 0
        self.reached = threading.Event()  # something was written after a failure

    def write(self, batch: Any, *, sync: bool) -> None:
        failure = self.failures.pop(0) if self.failures else None
        if any(family == self.refused_family for family, _, _ in batch):
            failure = StoreError("no room")
        if failure is None or self.applied:
            super().write(batch, sync=sync)
            self.syncs.append(sync)
        if failure is not None:
            raise failure

    def sync(self) -> None:
        self.syncs.append("sync")

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.read_failure is not None:
            raise self.read_failure
        return super().get_many(family, keys)

    def size_bytes(self) -> int:
        return self.size

    def rows(self, family: str) -> dict[bytes, bytes]:
        return dict(self.scan(family))
