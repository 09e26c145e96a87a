"""What stands between the engine and the store: loads one from the other at the start, then works for it on a
thread of its own, the only one that uses the store while the broker runs.

A piece of work is what the reactors had when the store became idle. Its writes are one batch; when that is
durable the engine lets the acknowledgements go. Where the store fails, the engine refuses the new messages,
and everything else of the batch is kept and tried again before anything later.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import struct
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from tidemq.broker.durability.commit_times import CommitTimes
from tidemq.broker.durability.dates import find_date_ms
from tidemq.broker.durability.errands import Errands
from tidemq.broker.durability.expiry import Expiry
from tidemq.broker.durability.queue_rows import COUNTED, ID, Counts, chunks, count_writes, returned
from tidemq.broker.durability.windows import Windows
from tidemq.broker.providers import IMPLEMENTATION_SPECIFIC_ERROR, QUOTA_EXCEEDED
from tidemq.errors import StoreError
from tidemq.store import Store, Write
from tidemq.store.interface import Row
from tidemq.store.portable import set_aside_rows

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess, StoreWork
    from tidemq.stream import Streams

T = TypeVar("T")

Durability = Literal["sync", "interval", "os"]

SWEEP_S = 1.0  # between two looks for what has expired, and at the store's size
PURGE_ROWS = 250  # deleted between two pieces of work
PURGE_PAUSE_S = 0.001  # for other work to come in between
COUNTS_MAX = 200_000  # reference counts remembered
DATE_S = 1.0  # between two times that the store is told the time
RETRY_S = 0.1  # after a failure
DRAINED = 2  # works without new messages, after a failure, until publishers are not refused any more
PROBE: Write = ("meta", b"probe", b"")  # makes the store mend itself; only then can anything be read
LOG_S = 10.0  # between two lines about a failure that goes on

STORE_COUNTERS = (
    "store_batches",
    "store_writes",
    "store_failures",
    "store_rows_read",
    "store_corrupt_rows",
)

_log = logging.getLogger("tidemq.store")


class Keeper:
    """Keeps an engine's state in a store: `load` before it starts, `start` with it, `finish` after it.

    Durability: `sync` makes every batch durable before it is acknowledged, `interval` all of them every
    `interval_s`, `os` leaves it to the operating system. `data`: the directory where rows that nobody can
    read are set aside; None: they are dropped. `on_death` is called on the keeper's thread, with the
    reason, when it cannot go on.

    The keeper of a cluster's node (`cluster/keeping.py`) is made of this one: what differs there are the
    methods under "what a cluster does otherwise".
    """

    def __init__(
        self,
        store: Store,
        access: StoreAccess,
        *,
        durability: Durability = "sync",
        interval_s: float = 0.1,
        bytes_max: int = 0,
        data: Path | None = None,
        strict: bool = False,
        streams: Streams | None = None,
        on_death: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._access = access
        self._sync = durability == "sync"
        self._interval_s = interval_s if durability == "interval" else 0.0
        self._bytes_max = bytes_max
        self._data = data
        self._strict = strict
        self._streams = streams
        self._errands = Errands()  # of other threads
        self._on_death = on_death
        self.died = False
        self._thread = threading.Thread(target=self._run, name="tidemq-keeper", daemon=True)
        self._counts: OrderedDict[bytes, int] = OrderedDict()  # of references, of payloads that have a count
        # of batches that failed, by family and key, to go before the next: the last value of a key counts
        self._left: dict[tuple[str, bytes], bytes | None] = {}
        self._left_references: list[tuple[bytes, int]] = []
        self._purges: list[bytes] = []  # how the keys of rows begin that go
        self._trims: list[tuple[int, bytes, int]] = []
        self._expired: dict[bytes, None] = {}  # keys of rows, each once
        self._trimmed: dict[int, bytes] = {}  # the last id that was trimmed off a queue
        self._expiry = Expiry(store, access)
        self._swept = self._synced = time.monotonic()
        self._logged: dict[str, float] = {}  # when each kind of failure was last reported
        self._dated = 0.0  # when the store was last told the time
        self._full = False
        self.counts: Counter[str] = Counter(dict.fromkeys(STORE_COUNTERS, 0))
        self._windows = Windows(store, access, self.counts, self._report)
        self.times = CommitTimes()
        self._drained = 0  # so many works in a row had nothing that was to be undone
        self.failure = ""  # why the last batch failed; empty: it did not

    # --- start -------------------------------------------------------------------------------------

    def load(self) -> None:
        """Brings the engine to where the store is. StoreError when the store cannot be read."""
        self._open()
        self._load_rows()
        self._end_loading()

    def _open(self) -> None:
        store = self._store
        incarnation = store.get("meta", b"incarnation")
        if incarnation is None:
            incarnation = secrets.token_bytes(8)
            store.write([("meta", b"incarnation", incarnation)], sync=True)
        clock = store.get("meta", b"clock") or bytes(8)
        as_of_ms = find_date_ms(self._store)
        self._access.open(int.from_bytes(incarnation), int.from_bytes(clock), as_of_ms=as_of_ms)

    def _end_loading(self) -> None:
        clean = self._store.get("meta", b"clean") is not None
        if clean:
            self._store.write([("meta", b"clean", None)], sync=True)
        self._access.loaded(crashed=not clean)

    def _load_rows(self) -> None:
        store, access = self._store, self._access
        if next(iter(store.scan("cluster")), None) is not None:
            raise StoreError("the store is a cluster's node's: it needs cluster_name, or another directory")
        self._load_each("session", access.load_session)
        self._load_each("subscription", access.load_subscription)
        self._load_received()
        gone = [key for key, value in store.scan("shared") if not access.load_shared(key, value)]
        store.write([("shared", key, None) for key in gone], sync=False)
        self._load_each("retained", access.load_retained)
        self._load_queues()

    def _load_each(self, family: str, load: Callable[[bytes, bytes], bool]) -> None:
        corrupt = [key for key, value in self._store.scan(family) if not load(key, value)]
        self._set_aside(family, corrupt)

    def _load_received(self) -> None:
        """Those of a session that is gone, of which a crash left them, go like its queue."""
        rows = [(key, self._access.load_received(key + value)) for key, value in self._store.scan("received")]
        self._set_aside("received", [key for key, state in rows if state is None])
        self._purges += sorted({key[:8] for key, state in rows if state is False})

    def _load_queues(self) -> None:
        orphans: set[int] = set()
        corrupt: list[bytes] = []
        held: list[tuple[bytes, bytes]] = []
        inflight = self._access.load_queue(self._queue_rows(), orphans, held, corrupt)
        self._return_held([(key, value) for key, value in held if value[1] < 2])
        # what had begun to go out at QoS 2 goes with its session; nobody else may get it (4.8.2)
        self._remove_rows([(key, value) for key, value in held if value[1] == 2])
        for rows in chunks(inflight, 1000):
            payloads = self._store.get_many("payload", [key[ID] for key, _ in rows])
            for (key, value), payload in zip(rows, payloads, strict=True):
                if payload is None or not self._access.load_inflight(key, value, payload):
                    corrupt.append(key)
        self._set_aside("queue", corrupt)
        numbers = {struct.pack(">Q", queue) for queue in orphans}
        self._purges += sorted(numbers.difference(self._purges))

    def _set_aside(self, family: str, keys: list[bytes]) -> None:
        """Moves rows that nobody can read into a file, to report them once; StoreError if strict."""
        if not keys:
            return
        if self._strict:
            raise StoreError(f"the store has a row that cannot be read, in {family}: {keys[0].hex()}")
        self.counts["store_corrupt_rows"] += len(keys)
        for key in keys[:10]:
            _log.error("the store has a row that cannot be read, in %s: %s", family, key.hex())
        if self._data is not None:
            values = self._store.get_many(family, keys)
            set_aside_rows(
                self._data, [(family, key, value or b"") for key, value in zip(keys, values, strict=True)]
            )
        self._store.write([(family, key, None) for key in keys], sync=False)

    # --- the thread --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to work for the engine."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether its thread is at work."""
        return self._thread.is_alive()

    def ask(self, act: Callable[[], T]) -> Future[T]:
        """Does something that uses the store, on its thread, between two pieces of work; from any thread.

        Cancelled before it began, it is not done. StoreError when the keeper has ended.
        """
        future = self._errands.ask(act)
        self._access.poke()
        return future

    @property
    def problem(self) -> str:
        """What keeps it from storing what it should; empty: nothing. From any thread; the log says more."""
        if self.died:
            return "the keeper has died"
        if self.failure:
            return "nothing can be stored"
        return "the store has reached store_bytes_max" if self._full else ""

    def finish(self) -> None:
        """Takes what the reactors, which have ended, still had; returns when the store has all of it."""
        self._access.close()
        self._thread.join()

    def _run(self) -> None:
        """A defect of ours costs a piece of work; what is none of them, as memory that has run out, all."""
        try:
            self._work()
            self._errands.end(StoreError("the keeper has ended"))
        except BaseException as error:  # noqa: BLE001 - the thread has died: everybody is told
            reason = (
                f"the keeper, which stores what is acknowledged, has died: {type(error).__name__}: {error}"
            )
            _log.critical("%s", reason, exc_info=True)
            self.died = True
            self._access.refuse(IMPLEMENTATION_SPECIFIC_ERROR)
            self._errands.end(StoreError(reason))
            self._on_death(reason)

    # --- what a cluster does otherwise -------------------------------------------------------------

    def _take_work(self) -> StoreWork | None:
        return self._access.take_work(self._wait_s())

    def _writes_of(self, work: StoreWork | None) -> tuple[list[Write], list[tuple[bytes, int]]]:
        """What the work writes, and changes of counts of references. None: it is not done."""
        return ([], []) if work is None else (work.writes, work.references)

    def _queue_rows(self) -> Iterable[Row]:
        """Those of the engine's queues, at the start."""
        return self._store.scan("queue")

    def _return_held(self, rows: list[Row]) -> None:
        """Rows that members of shared groups had taken are idle again."""
        self._store.write([w for key, value in rows for w in returned(key, value)], sync=False)

    def _saved(self) -> None:
        """A batch is in the store."""

    @property
    def _is_behind(self) -> bool:
        """Whether something that was done is not in the store yet."""
        return bool(self._left)

    def _leave_undone(self, work: StoreWork) -> None:
        """Of a work that is not done, what must be done all the same comes before the next."""
        rest = self._access.rest_of(work)
        self._leave(rest.writes)
        # of what is undone nothing may stay behind, and it is open whether the count of it is there
        self._left_references += rest.references
        self._left_references += [(message_id, 0) for message_id, _ in work.references]
        self._fix_references()

    def _answer(self, work: StoreWork, reason: int = 0) -> None:
        """Says to the reactors that the work is done, or with a reason code that it is not."""
        self._access.answer(work, reason)

    def _go_on(self) -> None:
        """Between two pieces of work."""

    # --- work --------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (work := self._take_work()) is not None:
            self.times.step()
            try:
                self._commit(work)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - nobody may wait for ever because of it
                _log.exception("the keeper failed")
                self._refuse(StoreError(str(error)))
                self._discard_captured(work)
                self._undo(work)
            for act in (partial(self._do_the_rest, work), self._go_on, self._errands.answer, self._tend):
                self._try(act)
        self._errands.answer()
        self._end()

    def _try(self, act: Callable[[], None]) -> None:
        """A defect of ours in what comes after the writes: what was committed stays so."""
        try:
            act()
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - the rest goes on
            _log.exception("the keeper failed")

    def _wait_s(self) -> float:
        if self._purges:
            return PURGE_PAUSE_S
        if self._is_behind or self.failure:
            return RETRY_S
        return min(SWEEP_S, self._interval_s) if self._interval_s else SWEEP_S

    def _commit(self, work: StoreWork) -> None:
        """Makes the work's writes durable and says so; or says that they are not."""
        # a publisher's later messages must not be kept where its earlier ones were not
        undone = work.adds and (work.outdated or bool(self.failure))
        if undone:
            if not self.failure:
                self._refuse(StoreError("what came before could not be stored"))
            self._discard_captured(work)
            self._undo(work)
        self._drained = 0 if undone or work.more else self._drained + 1
        writes: list[Write] = []
        references: list[tuple[bytes, int]] = []
        try:
            writes, references = self._writes_of(None if undone else work)
            if self._streams is not None and work.streams and not undone:
                writes = [*self._streams.write(work, sync=self._sync), *writes]
            if writes or references or self._is_behind or self.failure:
                self._save(writes, references, sync=self._sync)
        except StoreError as error:
            self._discard_captured(work)
            self._refuse(error)
            if not undone:
                self._undo(work)
            self._drained = 0
            time.sleep(RETRY_S)
            return
        # not before all that was under way when publishers began to be refused has been undone: to take some
        # of it would be out of order, and to undo it later would refuse what came meanwhile, for ever
        if self.failure and self._drained >= DRAINED:
            self._access.refuse(QUOTA_EXCEEDED if self._full else 0)
            _log.warning("the store takes writes again")
            self.failure = ""  # last: readiness says that messages are taken when they are
            self._logged.clear()
        if self._streams is not None:
            self._streams.publish()
        if not undone:
            self._answer(work)

    def _discard_captured(self, work: StoreWork) -> None:
        """What streams get of a work that is not done. It is open whether the store has the extents of it:
        they are removed before the next are written.
        """
        if self._streams is not None and work.streams:
            self._leave(self._streams.discard())
            self._streams.drop(work)

    def _save(self, writes: list[Write], references: list[tuple[bytes, int]], *, sync: bool) -> None:
        """One batch, of what is left and these; StoreError when it could not be written: then all is left."""
        if self.failure:
            self._store.write([PROBE], sync=False)
        counts = self._count(self._left_references + references)
        left = [(family, key, value) for (family, key), value in self._left.items()]
        batch = [*left, *writes, *count_writes(counts)]
        now = time.time()
        if not 0 <= now - self._dated < DATE_S:
            self._dated = now
            batch.append(("meta", b"wall", int(now * 1000).to_bytes(8)))
        with self.times.commit():
            self._store.write(batch, sync=sync)
        self._left.clear()
        self._left_references.clear()
        self._remember(counts)
        self._saved()
        self.counts["store_batches"] += 1
        self.counts["store_writes"] += len(batch)

    def _refuse(self, error: StoreError) -> None:
        """From now on publishers are refused."""
        self._report("nothing can be stored, publishers of QoS 1 and 2 are refused", error)
        self.failure = str(error)
        self._access.refuse(IMPLEMENTATION_SPECIFIC_ERROR)

    def _undo(self, work: StoreWork) -> None:
        """Says that the work is not done."""
        self._leave_undone(work)
        self._answer(work, IMPLEMENTATION_SPECIFIC_ERROR)

    def _leave(self, writes: Iterable[Write]) -> None:
        for family, key, value in writes:
            self._left[family, key] = value

    def _fix_references(self) -> None:
        """Turns what is left to be counted into absolute counts, from those before the batch: it is open
        whether the failed batch is in the store, so nothing may be counted from there.
        """
        try:
            counts = self._count(self._left_references)
        except StoreError:
            return  # then they were not read before the batch either, and it was not written
        self._leave(count_writes(counts))
        self._left_references.clear()
        self._remember(counts)

    def _report(self, what: str, error: StoreError) -> None:
        """Counts a failure, and says so unless the same was said a moment ago."""
        self.counts["store_failures"] += 1
        now = time.monotonic()
        if now - self._logged.get(what, -LOG_S) >= LOG_S:
            self._logged[what] = now
            _log.error("%s: %s", what, error)

    def _end(self) -> None:
        """One last try for what is left: without it what was removed comes again after the start. With it
        goes the note that the end was a clean one, which it is only then.
        """
        synced = self._sync_streams()
        clean: list[Write] = [("meta", b"clean", b"")] if synced else []
        try:
            self._save([*self._writes_of(None)[0], *clean], [], sync=synced)
        except StoreError as error:
            self._report("the store could not be brought up to date in the end", error)

    def _count(self, changes: Iterable[tuple[bytes, int]]) -> Counts:
        """How many references each of these payloads has after the changes; 0: it goes."""
        counts: Counts = {}
        for message_id, change in changes:
            counts[message_id] = counts.get(message_id, 0) + change
        unknown = [message_id for message_id in counts if message_id not in self._counts]
        for message_id, value in zip(unknown, self._store.get_many("reference", unknown), strict=True):
            self._counts[message_id] = int.from_bytes(value) if value else 0
        for message_id, change in counts.items():
            counts[message_id] = max(0, self._counts[message_id] + change)
        return counts

    def _remember(self, counts: Counts) -> None:
        """The counts that the store has now, or will have once what is left is written: until then it would
        say something else, so that one of 0 is remembered too.
        """
        for message_id, count in counts.items():
            if count or self._left:
                self._counts[message_id] = count
                self._counts.move_to_end(message_id)
            else:
                del self._counts[message_id]
        while len(self._counts) > COUNTS_MAX and not self._left:
            self._counts.popitem(last=False)

    # --- what comes after the writes ---------------------------------------------------------------

    def _do_the_rest(self, work: StoreWork) -> None:
        self._purges += work.purges
        self._trims += work.trims
        self._expired.update(dict.fromkeys(work.expired))
        if self._is_behind:  # rows are found as they were: ask again later
            for reactor, queue, _, _ in work.reads:
                self._access.deliver_rows(reactor, queue, [], True)
            return
        if self._trims:
            self._attempt(self._trim)
        if self._expired:
            self._attempt(self._remove_expired)
        for reactor, queue, after, count in work.reads:
            corrupt = self._windows.answer(reactor, queue, after, count)
            self._attempt(partial(self._set_aside, "queue", corrupt))
        if self._purges:
            self._attempt(self._purge)

    def _attempt(self, act: Callable[[], None]) -> None:
        """Work whose failure costs nothing but its delay."""
        try:
            act()
        except StoreError as error:
            self._report("the store fails", error)
            time.sleep(RETRY_S)

    def _trim(self) -> None:
        """The oldest rows of queues that were full, as many of each as were asked for since the last time."""
        counts: Counter[int] = Counter()
        edges: dict[int, bytes] = {}
        for queue, after, count in self._trims:
            counts[queue] += count
            edges[queue] = after
        rows: list[tuple[bytes, bytes]] = []
        for queue, count in counts.items():
            # what was trimmed before is not looked at again; a row that came late below it lives on a little
            found = self._windows.first_rows(queue, max(edges[queue], self._trimmed.get(queue, b"")), count)
            rows += found
            if found:
                self._trimmed[queue] = found[-1][0][ID]
        self._trims = []  # what cannot be removed now is left for later
        self._remove_rows(rows)
        while len(self._trimmed) > COUNTS_MAX:
            del self._trimmed[next(iter(self._trimmed))]

    def _remove_expired(self) -> None:
        """Rows whose time is over, as far as they are there: some were removed on another way after they were
        reported, and a reference that is taken back twice would take the payload from other queues.
        """
        keys, self._expired = list(self._expired), {}
        values = self._store.get_many("queue", keys)
        rows = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
        sizes: dict[int, list[int]] = {}
        for key, value in rows:
            sizes.setdefault(int.from_bytes(key[:8]), []).append(int.from_bytes(value[2:6]))
        for queue, found in sizes.items():
            self._access.removed(queue, found)
        self._remove_rows(rows)

    def _remove_rows(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Removes queue rows with what belongs to them."""
        writes: list[Write] = []
        references: list[tuple[bytes, int]] = []
        for key, value in rows:
            message_id = key[ID]
            writes.append(("queue", key, None))
            if value[0] & COUNTED:
                references.append((message_id, -1))
            else:
                writes.append(("payload", message_id, None))
            expires = value[6:14]
            if any(expires):
                writes.append(("expiry", expires + key[:8] + message_id, None))
        if not writes:
            return
        counts = self._count(references)
        writes += count_writes(counts)
        try:
            self._store.write(writes, sync=False)
        except StoreError:
            self._leave(writes)  # they go before anything else: to count again would be to count twice
            raise
        finally:
            self._remember(counts)

    def _purge(self) -> None:
        """Removes some rows of the first queue that goes; the rest when other work is done."""
        start = self._purges[0]
        rows = list(itertools.islice(self._store.scan("queue", start), PURGE_ROWS))
        self._remove_rows(rows)
        if len(rows) < PURGE_ROWS:
            received: list[Write] = []
            if len(start) == 8:  # a whole session goes
                received += [("received", key, None) for key, _ in self._store.scan("received", start)]
            if received:
                self._store.write(received, sync=False)
            self._purges.pop(0)

    # --- now and then ------------------------------------------------------------------------------

    def _tend(self) -> None:
        now = time.monotonic()
        if self._interval_s and now - self._synced >= self._interval_s:
            self._synced = now
            if self._sync_streams():
                self._attempt(self._store.sync)
        if now - self._swept >= SWEEP_S and not self._is_behind:
            self._swept = now
            self._attempt(self._expiry.sweep)
            self._attempt(self._check_size)
            if self._streams is not None:
                self._attempt(partial(self._streams.tend, self.ask))

    def _sync_streams(self) -> bool:
        """Whether the streams' files are durable. The store comes after them: its rows name what is there."""
        try:
            if self._streams is not None:
                self._streams.sync()
        except StoreError as error:
            self._report("nothing is made durable", error)
            return False
        return True

    def _check_size(self) -> None:
        if not self._bytes_max:
            return
        full = self._store.size_bytes() > self._bytes_max
        if full != self._full:
            self._full = full
            if not self.failure:
                self._access.refuse(QUOTA_EXCEEDED if full else 0)
            if full:
                _log.error("the store has reached store_bytes_max: what would have to be stored is refused")
            else:
                _log.warning("the store is below store_bytes_max again")
