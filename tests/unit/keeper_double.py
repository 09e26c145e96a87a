"""What a keeper stands between: the engine's side, and a store that fails when it is told to."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace

from tidemq.store import MemoryStore


def work(*writes, references=(), reads=(), trims=(), expired=(), purges=(), adds=False, outdated=False):
    return SimpleNamespace(
        writes=list(writes),
        references=list(references),
        reads=list(reads),
        trims=list(trims),
        expired=list(expired),
        purges=list(purges),
        adds=adds,
        outdated=outdated,
        streams=0,
    )


class Access:
    """The engine's side: gives the work that a test puts in, and keeps what it is told."""

    def __init__(self):
        self.works = queue.Queue()
        self.told = []  # in order
        self.answers = queue.Queue()
        self.refusals = queue.Queue()  # the reasons for which messages are refused at once
        self.unreadable = set()  # keys that no load_... can read
        self.rests = {}  # of a work, by its id

    def open(self, incarnation, clock, *, as_of_ms):
        self.told.append(("open", incarnation, clock))

    def _load(self, what, key):
        self.told.append((what, key))
        return key not in self.unreadable

    def load_session(self, key, value):
        return self._load("session", key)

    def load_subscription(self, key, value):
        return self._load("subscription", key)

    def load_received(self, key):
        if key[:8] == bytes(7) + b"\x09":
            return False  # its session is gone
        return True if self._load("received", key) else None

    def load_retained(self, key, value):
        return self._load("retained", key)

    def load_shared(self, key, value):
        return self._load("shared", key)

    def load_queue(self, rows, orphans, held, corrupt):
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

    def load_inflight(self, key, value, payload):
        return self._load("inflight", key)

    def loaded(self, *, crashed):
        self.told.append(("loaded", crashed))

    def take_work(self, timeout_s):
        try:
            return self.works.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return work()

    def poke(self):
        self.works.put(work())

    def answer(self, done, reason=0):
        if done.writes or done.references or done.reads or done.trims or done.expired or done.purges:
            self.answers.put((done, reason))

    def rest_of(self, failed):
        return self.rests.get(id(failed), work())

    def deliver_rows(self, reactor, number, rows, more):
        self.answers.put((reactor, number, rows, more))
        return [key for key, _, payload in rows if payload is None]

    def removed(self, number, sizes):
        self.answers.put(("removed", number, sizes))

    def expire(self, number, rows):
        self.answers.put((number, rows))

    def refuse(self, reason):
        self.refusals.put(reason)

    def close(self):
        self.works.put(None)


class Store(MemoryStore):
    """Fails when it is told to, before or after it has taken the batch; knows how it was written."""

    def __init__(self):
        super().__init__()
        self.failures = []  # of the next writes: None, or what they raise
        self.applied = False
        self.read_failure = None
        self.syncs = []
        self.size = 0
        self.reached = threading.Event()  # something was written after a failure

    def write(self, batch, *, sync):
        failure = self.failures.pop(0) if self.failures else None
        if failure is None or self.applied:
            super().write(batch, sync=sync)
            self.syncs.append(sync)
        if failure is not None:
            raise failure

    def sync(self):
        self.syncs.append("sync")

    def get_many(self, family, keys):
        if self.read_failure is not None:
            raise self.read_failure
        return super().get_many(family, keys)

    def size_bytes(self):
        return self.size

    def rows(self, family):
        return dict(self.scan(family))
