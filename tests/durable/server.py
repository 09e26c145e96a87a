"""An engine with its keeper on a real store, as the broker runs them, but for tests that look into the store,
make it fail or wait, and take its state away as a crash leaves it.
"""

from __future__ import annotations

import copy
import select
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.kit import Client, connected, kept
from waiting import WAIT_S, wait_until

from tidemq.broker.durability.keeper import Keeper
from tidemq.config import Config, StreamConfig
from tidemq.engine import Connected, Engine, Stopped, StoreAccess
from tidemq.engine.door.listeners import tcp_sockets
from tidemq.engine.door.node_access import NodeAccess
from tidemq.errors import StoreError
from tidemq.limits import Limits
from tidemq.store import FAMILIES, MemoryStore, Store, Write
from tidemq.store.rocksdb import RocksDBStore, make_rocksdb_store
from tidemq.store.rows import IN_FLIGHT
from tidemq.store.sqlite import make_sqlite_store
from tidemq.stream import Streams

KINDS = ("rocksdb", "sqlite", "memory")
MAKERS: dict[str, Callable[[Config, Mapping[str, Any]], Store]] = {
    "rocksdb": make_rocksdb_store,
    "sqlite": make_sqlite_store,
}
KEPT = (
    "meta",
    "session",
    "subscription",
    "shared",
    "retained",
    "stream",
)  # families that may hold rows when all is delivered

Rows = dict[bytes, bytes]


class StoreDouble:
    """A real store behind a lock, so that a test may look into it; it fails and waits when it is told to.

    `failure`: what a write raises; `applied`: after the store has taken the batch all the same, as it is when
    only the sync failed. `hold()` makes writes wait, before the store sees them, until `let_go()`.
    """

    def __init__(self, kind: str, folder: Path, inner: Store | None = None) -> None:
        self.kind = kind
        self.folder = folder
        self.inner = inner or (MemoryStore() if kind == "memory" else MAKERS[kind](Config(data=folder), {}))
        self.failure: StoreError | None = None
        self.read_failure: StoreError | None = None
        self.applied = False
        self.delay_s = 0.0  # before each write
        self.failed = 0  # writes
        self.size: int | None = None  # what it says that it takes on disk; None: what is so
        self.at_gate = threading.Event()  # a write waits
        self._gate = threading.Event()
        self._gate.set()
        self._lock = threading.RLock()

    def hold(self) -> None:
        self.at_gate.clear()
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()

    def open(self) -> list[str]:
        return self.inner.open()

    def write(self, batch: Sequence[Write], *, sync: bool) -> None:
        if not self._gate.is_set():
            self.at_gate.set()
            assert self._gate.wait(WAIT_S), "nobody lets the store go"
        if self.delay_s:
            time.sleep(self.delay_s)
        with self._lock:
            if self.failure is None or self.applied:
                self.inner.write(batch, sync=sync)
            if self.failure is not None:
                self.failed += 1
                raise self.failure

    def sync(self) -> None:
        with self._lock:
            if self.failure is not None:
                raise self.failure
            self.inner.sync()

    def get(self, family: str, key: bytes) -> bytes | None:
        self._check_read()
        with self._lock:
            return self.inner.get(family, key)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_read()
        with self._lock:
            return self.inner.get_many(family, keys)

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self._check_read()
        with self._lock:
            return iter(list(self.inner.scan(family, prefix, after)))

    def size_bytes(self) -> int:
        return self.inner.size_bytes() if self.size is None else self.size

    def compact(self) -> None:
        self.inner.compact()

    def close(self) -> None:
        self.inner.close()

    def rows(self, family: str) -> Rows:
        """All rows of a family, as they are now."""
        with self._lock:
            return dict(self.inner.scan(family))

    def copied(self) -> StoreDouble:
        """Another one, on the state of this moment, between two writes; this one is about to end."""
        place = self.folder.with_name(self.folder.name + "x")
        with self._lock:
            if self.kind == "memory":
                return StoreDouble(self.kind, place, copy.deepcopy(self.inner))
            if isinstance(self.inner, RocksDBStore) and self.inner._database is not None:
                # a compaction would remove files while they are copied; nobody needs another one here
                self.inner._database.cancel_all_background(True)
            shutil.copytree(self.folder, place)
        return StoreDouble(self.kind, place)

    def reopened(self) -> StoreDouble:
        """Another one on the same state, which this one has left."""
        return StoreDouble(self.kind, self.folder, self.inner)

    def _check_read(self) -> None:
        if self.read_failure is not None:
            raise self.read_failure


class Server:
    """A running engine and keeper; `port` is where it listens. Without a store there is no keeper. Further
    keywords are limits."""

    access_kind: type[StoreAccess] = StoreAccess

    def __init__(
        self,
        store: StoreDouble | None,
        reactors: int = 1,
        *,
        queue_full: str = "drop_newest",
        store_bytes_max: int = 0,
        streams: Sequence[StreamConfig] = (),
        linked: int = 0,
        **limits: int,
    ) -> None:
        self.reactors = reactors
        self.settings: dict[str, Any] = {
            "queue_full": queue_full,
            "streams": streams,
            "linked": linked,
            **limits,
        }
        self.engine = Engine(Limits(**limits), reactors=reactors, queue_full=queue_full)
        self.engine.report_connections = True
        if linked:
            self.nodes = NodeAccess(self.engine, batch_bytes_max=linked)
        self.running = True
        if store is not None:
            self.store = store
            self.damage = store.open()
            self.access = self.access_kind(self.engine)
            self.streams = Streams(store, self.access, store.folder)
            self.keeper = Keeper(store, self.access, bytes_max=store_bytes_max, streams=self.streams)
            self.keeper.load()
            self.damage += self.streams.load(streams)
        self.stored = store is not None
        sockets = tcp_sockets("127.0.0.1", 0, reactors)
        self.engine.listen(sockets)
        self.port: int = sockets[0].getsockname()[1]
        self.engine.start()
        if self.stored:
            self.keeper.start()

    def stop(self) -> None:
        """Ends as the broker does; nothing of the engine may be left."""
        if not self.running:
            return
        self.running = False
        if self.stored:
            self.store.let_go()
        self.engine.stop()
        self._wait_for_goodbye()
        if self.stored:
            self.keeper.finish()
            self.streams.close()
        self.engine.close()
        if self.stored:
            self.store.close()
        left = {name: value for name, value in self.engine.live_objects().items() if value}
        assert not left, f"left after close(): {left}"

    def _wait_for_goodbye(self) -> None:
        deadline = time.monotonic() + 15
        while not any(isinstance(event, Stopped) for event in self.engine.events()):
            left = deadline - time.monotonic()
            assert left > 0, "the engine does not stop"
            select.select([self.engine.fileno()], [], [], left)

    def restart(
        self,
        crash: bool,
        reactors: int | None = None,
        meanwhile: Callable[[], None] = lambda: None,
        **changes: Any,
    ) -> Server:
        """The next one on the same state. `crash`: on what the store holds now, of which the engine says
        nothing to anybody; else after a clean stop. `meanwhile` happens while none is there."""
        if crash:
            store = self.store.copied()
            self.store.failure = None
            self.stop()
        else:
            self.stop()
            store = self.store.reopened()
        meanwhile()
        return type(self)(store, reactors or self.reactors, **(self.settings | changes))

    # --- what the test asks ------------------------------------------------------------------------

    def count(self, name: str) -> int:
        counters: dict[str, int] = self.engine.counters()
        if self.stored:
            counters.update(self.keeper.counts)
            counters.update(self.streams.counts)
        return counters[name]

    def wait_for(self, name: str, least: int = 1) -> int:
        """Waits until a counter has reached a value; returns what it has."""
        wait_until(lambda: self.count(name) >= least, f"{name} is {least}")
        return self.count(name)

    def rows(self, family: str) -> Rows:
        return self.store.rows(family)

    def wait_for_rows(self, family: str, count: int) -> Rows:
        """Waits until a family has so many rows: an acknowledgement of a client's is answered by nothing."""
        wait_until(lambda: len(self.rows(family)) == count, f"{count} rows in {family}")
        return self.rows(family)

    def wait_for_in_flight(self, count: int) -> None:
        """Waits until so many queue rows say that they were sent: at QoS 1 that is written a little later."""
        wait_until(
            lambda: sum(key[8] == IN_FLIGHT for key in self.rows("queue")) == count, f"{count} in flight"
        )

    def wait_until_empty(self) -> None:
        """Waits until nothing is left of any message, and so of any queue."""
        wait_until(lambda: not self.left(), f"no rows but {self.left()}")

    def left(self) -> dict[str, int]:
        """How many rows the families have that are empty when all is delivered."""
        if not self.stored:
            return {}
        return {
            family: len(rows) for family in FAMILIES if family not in KEPT and (rows := self.rows(family))
        }

    def reactor_of(self, client: Client) -> int:
        """The reactor that a client which has just connected lives on."""
        found: list[int] = []

        def look() -> bool:
            for event in self.engine.events():
                if isinstance(event, Connected) and event.client_id == client.client_id:
                    found.append(event.connection >> 56)
            return bool(found)

        wait_until(look, f"an event tells of {client.client_id}")
        return found[-1]

    def back(self, client_id: str, version: int = 5, *, present: bool = True, **settings: Any) -> Client:
        """A client that resumes its session, which is there or not."""
        client = Client(self.port, version)
        connack = client.connect(client_id, **(kept(version) | settings))
        if version > 3:  # MQTT 3.1 does not say
            assert connack.session_present == present
        return client

    def back_or_new(self, client_id: str, **settings: Any) -> Client:
        """A client with its session, whether there was one or not."""
        client = Client(self.port)
        client.connect(client_id, **(kept(5) | settings))
        return client

    def connected_on(self, reactor: int, version: int = 5, **settings: Any) -> Client:
        """A client with a new session of its own on this reactor."""
        for _ in range(200):
            client = connected(self, version, **settings)
            if self.reactor_of(client) == reactor:
                return client
            client.disconnect(**({"session_expiry": 0} if settings.get("session_expiry") else {}))
        raise AssertionError(f"the system gives no connection to reactor {reactor}")
