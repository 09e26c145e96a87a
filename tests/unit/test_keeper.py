"""The keeper, between a store and a double of the engine's side: what it loads, writes, counts, reads,
removes, and what it does when the store fails.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest
from unit.keeper_double import Access, Store, work
from waiting import WAIT_S, wait_until

from tidemq.broker.durability import keeper as module
from tidemq.broker.durability import queue_rows
from tidemq.broker.durability.keeper import DRAINED, Keeper
from tidemq.errors import StoreError, StoreFullError

BROKEN = StoreError("the store cannot be written: Input/output error")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    monkeypatch.setattr(module, "SWEEP_S", 0.005)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def access() -> Access:
    return Access()


@pytest.fixture
def start(store: Any, access: Any) -> Iterator[Callable[..., Keeper]]:
    """Starts a keeper, which is finished after the test."""
    started = []

    def begin(**settings: Any) -> Keeper:
        keeper = Keeper(store, access, **settings)
        keeper.start()
        started.append(keeper)
        return keeper

    yield begin
    for keeper in started:
        if keeper._thread.is_alive():
            keeper.finish()


def told(access: Any) -> Any:
    """The next thing that the engine is told."""
    return access.answers.get(timeout=WAIT_S)


def do(access: Any, *args: tuple[Any, ...], **named: Any) -> int:
    """Gives a piece of work and waits for its answer; the reason."""
    done = work(*args, **named)
    access.works.put(done)
    answered, reason = told(access)
    assert answered is done
    found: int = reason
    return found


def message_id(number: int) -> bytes:
    return struct.pack(">QQ", number * 64, 7)


def queue_row(number: int, at: int, *, status: int = 1, flags: int = 0, expires: int = 0) -> Any:
    """A row of a queue and its payload, as writes."""
    key = struct.pack(">QB", number, status) + message_id(at)
    writes = [
        ("queue", key, struct.pack(">BBIqQ", flags, 1, 100, expires, 0)),
        ("payload", message_id(at), b"p"),
    ]
    if expires:
        writes.append(("expiry", struct.pack(">qQ", expires, number) + message_id(at), b""))
    return writes


# --- loading -----------------------------------------------------------------------------------------


def test_everything_is_loaded_sessions_first(store: Any, access: Any) -> None:
    store.write(
        [
            ("meta", b"clock", struct.pack(">Q", 640)),
            ("retained", b"topic", b"r"),
            ("received", struct.pack(">QH", 1, 5), b""),
            ("shared", struct.pack(">Q", 8), b"$share/g/t"),
            ("subscription", b"\x00\x01cfilter", b"s"),
            ("session", b"c", b"s"),
            *queue_row(1, 1),
            *queue_row(1, 2, status=2),
        ],
        sync=True,
    )
    Keeper(store, access).load()
    kinds = [each[0] for each in access.told]
    order = [
        "open",
        "session",
        "subscription",
        "received",
        "shared",
        "retained",
        "queue",
        "queue",
        "inflight",
        "loaded",
    ]
    assert kinds == order
    assert access.told[0] == ("open", int.from_bytes(store.get("meta", b"incarnation")), 640)


def test_the_incarnation_is_drawn_once(store: Any, access: Any) -> None:
    for _ in range(2):
        Keeper(store, access).load()
    first, second = (each[1] for each in access.told if each[0] == "open")
    assert first == second
    other: Any = Access()
    another: Any = Store()
    Keeper(another, other).load()
    assert other.told[0][1] != first


def test_the_engine_is_told_whether_the_last_one_ended_well(store: Any) -> None:
    ends = []
    for finished in (False, True, False, False):
        access: Any = Access()
        keeper = Keeper(store, access)
        keeper.load()
        ends.append(access.told[-1])
        if finished:
            keeper.start()
            keeper.finish()
    assert ends == [("loaded", crashed) for crashed in (True, True, False, True)]


@pytest.mark.parametrize("family", ["session", "subscription", "received", "retained", "queue"])
def test_a_row_that_cannot_be_read_is_removed_and_reported(
    store: Any, access: Any, caplog: pytest.LogCaptureFixture, family: str
) -> None:
    good, bad = queue_row(1, 1)[0][1], queue_row(1, 2)[0][1]
    store.write([(family, good, b"good"), (family, bad, b"bad")], sync=True)
    access.unreadable.add(bad)
    keeper = Keeper(store, access)
    with caplog.at_level(logging.ERROR, "tidemq"):
        keeper.load()
    assert list(store.rows(family)) == [good]
    assert keeper.counts["store_corrupt_rows"] == 1
    assert bad.hex() in caplog.text


def test_what_a_member_of_a_shared_group_had_taken_is_idle_again(store: Any, access: Any) -> None:
    """With its order, its retain flag and its subscription identifiers, and without a place in an outbox."""
    key = struct.pack(">QB", 8, 2) + message_id(1)
    value = struct.pack(">BBIqQI", 9, 1, 100, 1234, 77, 5)
    store.write([("queue", key, value), ("payload", message_id(1), b"p")], sync=True)
    Keeper(store, access).load()
    idle = struct.pack(">QB", 8, 1) + message_id(1)
    assert store.rows("queue") == {idle: struct.pack(">BBIqQI", 9, 1, 100, 1234, 0, 5)}


def test_a_shared_queue_whose_group_is_gone_is_forgotten(store: Any, access: Any) -> None:
    keys = [struct.pack(">Q", number) for number in (8, 9)]
    store.write([("shared", key, b"$share/g/t") for key in keys], sync=True)
    access.unreadable.add(keys[1])
    Keeper(store, access).load()
    assert list(store.rows("shared")) == keys[:1]


def test_a_message_in_flight_without_its_payload_is_removed(store: Any, access: Any) -> None:
    store.write(queue_row(1, 1, status=2)[:1], sync=True)
    keeper = Keeper(store, access)
    keeper.load()
    assert not store.rows("queue")
    assert keeper.counts["store_corrupt_rows"] == 1


def test_queues_without_a_session_are_purged(store: Any, access: Any, start: Callable[..., Keeper]) -> None:
    store.write([*queue_row(9, 1), *queue_row(1, 2), ("received", struct.pack(">QH", 9, 1), b"")], sync=True)
    keeper = Keeper(store, access)
    keeper.load()
    keeper.start()
    wait_until(lambda: len(store.rows("queue")) == 1)
    wait_until(lambda: not store.rows("received"))
    assert list(store.rows("payload")) == [message_id(2)]
    keeper.finish()


# --- writing -----------------------------------------------------------------------------------------


def test_work_is_answered_when_it_is_written(store: Any, access: Any, start: Callable[..., Keeper]) -> None:
    keeper = start()
    assert do(access, ("session", b"a", b"1"), ("session", b"b", b"2")) == 0
    assert store.rows("session") == {b"a": b"1", b"b": b"2"}
    assert (keeper.counts["store_batches"], keeper.counts["store_writes"]) == (1, 3)  # and the date


@pytest.mark.parametrize(("durability", "sync"), [("sync", True), ("interval", False), ("os", False)])
def test_durability(
    store: Any, access: Any, start: Callable[..., Keeper], durability: str, sync: bool
) -> None:
    keeper = start(durability=durability, interval_s=0.002)
    do(access, ("session", b"a", b"1"))
    assert next(each for each in store.syncs if each != "sync") is sync  # one of the interval may come first
    if durability == "interval":
        wait_until(lambda: "sync" in store.syncs[1:])
    else:
        wait_until(lambda: keeper._swept > keeper._synced)  # a round without work
        assert "sync" not in store.syncs
    keeper.finish()
    assert store.syncs[-1] is True


def test_references_are_counted_and_the_last_takes_the_payload_along(
    store: Any, access: Any, start: Callable[..., Keeper]
) -> None:
    start()
    one, two = message_id(1), message_id(2)
    payloads = [("payload", one, b"1"), ("payload", two, b"2")]
    do(access, *payloads, references=[(one, 1), (two, 1), (one, 1)])
    assert store.rows("reference") == {one: struct.pack(">I", 2), two: struct.pack(">I", 1)}
    do(access, references=[(one, -1), (two, -1)])
    assert store.rows("reference") == {one: struct.pack(">I", 1)}
    assert list(store.rows("payload")) == [one]
    do(access, references=[(one, -1)])
    assert not store.rows("reference")
    assert not store.rows("payload")


def test_references_are_counted_on_from_what_the_store_has(
    store: Any, access: Any, start: Callable[..., Keeper]
) -> None:
    one = message_id(1)
    store.write([("payload", one, b"1"), ("reference", one, struct.pack(">I", 3))], sync=True)
    start()
    do(access, references=[(one, -1)])
    assert store.rows("reference") == {one: struct.pack(">I", 2)}
    do(access, references=[(one, -2)])
    assert not store.rows("payload")


# --- failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [BROKEN, StoreFullError("No space left on device")])
@pytest.mark.parametrize("applied", [False, True])
def test_a_failed_batch_is_refused_and_its_rest_comes_before_the_next(
    store: Any,
    access: Any,
    start: Callable[..., Keeper],
    caplog: pytest.LogCaptureFixture,
    failure: StoreError | StoreFullError,
    applied: bool,
) -> None:
    keeper = start()
    store.applied = applied
    failed = work(("payload", b"new", b"1"), ("session", b"s", b"1"))
    access.rests[id(failed)] = work(("payload", b"new", None), ("session", b"s", b"1"))
    store.failures = [failure, failure]
    with caplog.at_level(logging.WARNING, "tidemq"):
        access.works.put(failed)
        answered, reason = told(access)
        assert answered is failed
        assert reason >= 0x80
        assert do(access, ("session", b"s", b"2")) in (0, reason)
        wait_until(lambda: not keeper.failure)
    assert do(access, ("session", b"t", b"3")) == 0
    assert store.rows("session")[b"t"] == b"3"
    assert not store.rows("payload")
    assert str(failure) in caplog.text
    assert "takes writes again" in caplog.text
    assert keeper.counts["store_failures"] >= 2


@pytest.mark.parametrize("outdated", [False, True])
def test_what_a_publisher_sent_after_what_failed_fails_too(
    store: Any, access: Any, start: Callable[..., Keeper], outdated: bool
) -> None:
    """The store would take it. Outdated: its reactor did not know of the failure."""
    keeper = start()
    first = work(("payload", b"first", b"1"), adds=True)
    later = work(("payload", b"later", b"2"), ("session", b"s", b"1"), adds=True, outdated=outdated)
    access.rests[id(first)] = work(("payload", b"first", None))
    access.rests[id(later)] = work(("payload", b"later", None), ("session", b"s", b"1"))
    store.failures = [BROKEN]
    access.works.put(first)
    if outdated:
        assert told(access) == (first, 0x83)
        wait_until(lambda: not keeper.failure)
        access.works.put(later)
    else:
        access.works.put(later)
        assert told(access) == (first, 0x83)
    assert told(access) == (later, 0x83)
    wait_until(lambda: not keeper.failure and store.rows("session") == {b"s": b"1"})
    assert not store.rows("payload")
    assert do(access, ("payload", b"new", b"3"), adds=True) == 0


def test_it_is_not_over_while_more_was_handed_over(
    store: Any, access: Any, start: Callable[..., Keeper]
) -> None:
    """Of before the failure: it would be taken, while what a publisher sent before it is undone."""
    keeper = start()
    first, later = work(("payload", b"first", b"1"), adds=True), work(("payload", b"later", b"2"), adds=True)
    for each in (first, later):
        access.rests[id(each)] = work()
    store.failures = [BROKEN]
    for each in (first, *(work(("session", b"s", b"1"), more=True) for _ in range(DRAINED + 1)), later):
        access.works.put(each)
    answers = [told(access) for _ in range(3 + DRAINED)]
    assert answers[0] == (first, 0x83)
    assert answers[-1] == (later, 0x83)
    wait_until(lambda: not keeper.failure)
    assert not store.rows("payload")


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_left_is_written_in_the_end_or_the_end_is_not_clean(
    store: Any, access: Any, start: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.2)  # so that the next try is the last
    keeper = start()
    failed = work(("session", b"s", None))
    access.rests[id(failed)] = work(("session", b"s", None), references=[(message_id(1), -1)])
    do(access, ("session", b"s", b"1"), ("payload", message_id(1), b"p"), references=[(message_id(1), 1)])
    store.failures = [BROKEN] * (1 + fails)
    access.works.put(failed)
    assert told(access)[1] >= 0x80
    keeper.finish()
    assert bool(store.rows("session")) == bool(store.rows("payload")) == fails
    assert (store.get("meta", b"clean") is None) == fails


def test_a_failure_is_logged_now_and_then_only(
    store: Any, access: Any, start: Callable[..., Keeper], caplog: pytest.LogCaptureFixture
) -> None:
    keeper = start()
    store.failures = [BROKEN] * 1000
    with caplog.at_level(logging.ERROR, "tidemq"):
        for _ in range(20):
            assert do(access, ("session", b"s", b"1")) >= 0x80
    store.failures.clear()
    assert caplog.text.count("nothing can be stored") == 1
    assert keeper.counts["store_failures"] >= 20


# --- queues ------------------------------------------------------------------------------------------


def test_a_window_is_read_behind_an_id(store: Any, access: Any, start: Callable[..., Keeper]) -> None:
    keeper = start()
    rows = [queue_row(1, at) for at in range(1, 8)]
    do(access, *[write for row in rows for write in row], *queue_row(1, 9, status=2), *queue_row(2, 10))
    do(access, reads=[(3, 1, message_id(2), 3)])
    assert told(access) == (3, 1, [(rows[at][0][1], rows[at][0][2], b"p") for at in (2, 3, 4)], True)
    do(access, reads=[(0, 1, message_id(5), 3)])
    assert told(access)[2] == [(rows[at][0][1], rows[at][0][2], b"p") for at in (5, 6)]
    do(access, reads=[(0, 1, message_id(7), 3)])
    assert told(access) == (0, 1, [], False)
    assert keeper.counts["store_rows_read"] == 5


def test_a_window_has_a_limit_in_bytes(
    store: Any, access: Any, start: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_rows, "READ_BYTES", 350)
    start()
    do(access, *[write for at in range(1, 10) for write in queue_row(1, at)])  # of 100 bytes each
    do(access, reads=[(0, 1, bytes(16), 1000)])
    _, _, rows, more = told(access)
    assert len(rows) == 4
    assert more


def test_a_row_without_its_payload_is_removed(store: Any, access: Any, start: Callable[..., Keeper]) -> None:
    keeper = start()
    do(access, *queue_row(1, 1), queue_row(1, 2)[0])
    do(access, reads=[(0, 1, bytes(16), 10)])
    assert [payload for _, _, payload in told(access)[2]] == [b"p", None]
    wait_until(lambda: len(store.rows("queue")) == 1)
    assert keeper.counts["store_corrupt_rows"] == 1


def test_a_read_that_fails_is_answered_with_nothing_and_logged_now_and_then(
    store: Any, access: Any, start: Callable[..., Keeper], caplog: pytest.LogCaptureFixture
) -> None:
    keeper = start()
    do(access, *queue_row(1, 1))
    store.read_failure = StoreError("the store cannot be read")
    for _ in range(20):
        do(access, reads=[(0, 1, bytes(16), 10)])
        assert told(access) == (0, 1, [], True)
    assert keeper.counts["store_failures"] == 20
    assert caplog.text.count("a queue cannot be read") == 1


def test_the_oldest_rows_are_trimmed(store: Any, access: Any, start: Callable[..., Keeper]) -> None:
    start()
    for at in range(1, 6):
        do(access, *queue_row(1, at, flags=4, expires=1 << 50), references=[(message_id(at), 1)])
    do(access, trims=[(1, message_id(1), 2)])
    wait_until(lambda: len(store.rows("queue")) == 3)
    left = [message_id(at) for at in (1, 4, 5)]
    assert [key[9:] for key in store.rows("queue")] == left
    for family in ("payload", "reference"):
        assert list(store.rows(family)) == left
    assert [key[16:] for key in store.rows("expiry")] == left


def test_a_trim_that_fails_is_done_later(store: Any, access: Any, start: Callable[..., Keeper]) -> None:
    start()
    for at in range(1, 4):
        do(access, *queue_row(1, at, flags=4), references=[(message_id(at), 1)])
    failed = work(("session", b"a", b"1"), trims=[(1, bytes(16), 1)])
    access.rests[id(failed)] = work(("session", b"a", b"1"))
    store.failures = [BROKEN]
    access.works.put(failed)
    assert told(access)[1] >= 0x80
    wait_until(lambda: len(store.rows("queue")) == 2)
    store.failures = [None, BROKEN]  # the batch is written, the trim is not
    do(access, ("session", b"a", b"2"), trims=[(1, bytes(16), 1)])
    wait_until(lambda: len(store.rows("queue")) == 1)
    assert list(store.rows("payload")) == list(store.rows("reference")) == [message_id(3)]


def test_a_queue_is_purged_bit_by_bit_between_other_work(
    store: Any, access: Any, start: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PURGE_ROWS", 2)
    start()
    for at in range(1, 10):
        shared = {"flags": 4, "status": 1 + at % 2}
        do(access, *queue_row(1, at, expires=1 << 50, **shared), references=[(message_id(at), at % 3 + 1)])
    do(access, *queue_row(2, 100), ("received", struct.pack(">QH", 1, 5), b""), purges=[struct.pack(">Q", 1)])
    assert do(access, ("session", b"a", b"1")) == 0
    wait_until(lambda: len(store.rows("queue")) == 1)
    wait_until(lambda: not store.rows("received"))
    assert not store.rows("expiry")
    stays = {message_id(at): struct.pack(">I", at % 3) for at in range(1, 10) if at % 3}
    assert store.rows("reference") == stays
    assert set(store.rows("payload")) == {*stays, message_id(100)}


def test_a_purge_that_fails_counts_nothing_twice(
    store: Any, access: Any, start: Callable[..., Keeper]
) -> None:
    start()
    for at in range(1, 4):
        do(access, *queue_row(1, at, flags=4), references=[(message_id(at), 2)])
    store.failures = [BROKEN, BROKEN]
    access.works.put(work(purges=[struct.pack(">Q", 1)]))
    wait_until(lambda: not store.rows("queue"))
    wait_until(lambda: not store.failures)
    assert store.rows("reference") == {message_id(at): struct.pack(">I", 1) for at in range(1, 4)}
    assert len(store.rows("payload")) == 3


def test_what_has_expired_is_removed_once_whichever_way_it_goes(
    store: Any, access: Any, start: Callable[..., Keeper]
) -> None:
    """A row that a queue's owner had removed when the report of its end came is no reference any more."""
    start()
    for queue in (1, 2, 3):
        do(access, *queue_row(queue, 1, flags=4, expires=1 << 50), references=[(message_id(1), 1)])
    [first, second, _] = store.rows("queue")
    do(access, ("queue", first, None), references=[(message_id(1), -1)])
    do(access, expired=[first, second, second])
    assert told(access) == ("removed", 2, [100])
    wait_until(lambda: len(store.rows("queue")) == 1)
    assert list(store.rows("payload")) == [message_id(1)]
    assert list(store.rows("reference").values()) == [struct.pack(">I", 1)]
    do(access, expired=list(store.rows("queue")))
    assert told(access) == ("removed", 3, [100])
    wait_until(lambda: not store.rows("payload"))


# --- now and then ------------------------------------------------------------------------------------


def test_what_has_expired_is_reported_and_what_refers_to_nothing_goes(
    store: Any, access: Any, start: Callable[..., Keeper]
) -> None:
    past, future = int(time.time() * 1000) - 5, int(time.time() * 1000) + 1_000_000
    rows = [queue_row(1, 1, expires=past), queue_row(1, 2, expires=future), queue_row(2, 3, expires=past)]
    store.write([write for row in rows for write in row], sync=True)
    store.write([("expiry", struct.pack(">qQ", past, 1) + message_id(4), b"")], sync=True)
    start()
    reported = [told(access), told(access)]
    assert reported == [(1, [(*rows[0][0][1:], b"p")]), (2, [(*rows[2][0][1:], b"p")])]
    wait_until(lambda: len(store.rows("expiry")) == 3)
    time.sleep(20 * module.SWEEP_S)
    assert access.answers.empty()  # not twice, however long their removal takes


def test_the_size_of_the_store_is_watched(
    store: Any, access: Any, start: Callable[..., Keeper], caplog: pytest.LogCaptureFixture
) -> None:
    store.size = 101
    with caplog.at_level(logging.WARNING, "tidemq"):
        start(bytes_max=100)
        assert access.refusals.get(timeout=WAIT_S) == 0x97
        store.size = 100
        assert access.refusals.get(timeout=WAIT_S) == 0
    assert "store_bytes_max" in caplog.text


def test_what_is_asked_and_cancelled_costs_nobody_anything(
    start: Callable[..., Keeper], access: Any, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = start()
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> int:
        begun.set()
        assert go_on.wait(WAIT_S)
        return 1

    running = keeper.ask(wait)
    assert begun.wait(WAIT_S)
    waiting = [keeper.ask(lambda: store.write([("meta", b"no", b"")], sync=False)) for _ in range(3)]
    assert all(each.cancel() for each in waiting)
    assert not running.cancel()  # what has begun is done
    go_on.set()
    assert running.result(WAIT_S) == 1
    assert do(access, ("queue", b"k", b"v"), adds=True) == 0
    assert store.get("meta", b"no") is None
    assert keeper.counts["store_failures"] == 0
    assert not caplog.records


def test_a_defect_after_a_commit_takes_nothing_back(
    start: Callable[..., Keeper], access: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = start()
    monkeypatch.setattr(keeper, "_tend", defect)
    assert do(access, ("queue", b"k", b"v"), adds=True) == 0
    assert do(access, ("queue", b"l", b"v"), adds=True) == 0
    assert access.refusals.empty()


def defect() -> None:
    raise ValueError("a defect")


def test_what_is_asked_of_a_keeper_that_has_ended_is_refused(
    start: Callable[..., Keeper], access: Any
) -> None:
    keeper = start()
    keeper.finish()
    with pytest.raises(StoreError, match="ended"):
        keeper.ask(int).result(WAIT_S)


def test_a_keeper_that_dies_answers_whoever_asked(start: Callable[..., Keeper], access: Any) -> None:
    deaths: SimpleQueue[str] = SimpleQueue()
    keeper = start(on_death=deaths.put)
    monkey = MemoryError("no memory")

    def die() -> None:
        raise monkey

    keeper._tend = die  # type: ignore[method-assign]
    asked = [keeper.ask(int) for _ in range(3)]
    assert "MemoryError" in deaths.get(timeout=WAIT_S)
    for each in asked:
        with suppress(StoreError):
            assert each.result(WAIT_S) == 0
    with pytest.raises(StoreError, match="MemoryError"):
        keeper.ask(int).result(WAIT_S)
    assert access.refusals.get(timeout=WAIT_S) >= 0x80
    keeper.finish()
