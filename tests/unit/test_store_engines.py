"""Every engine keeps batches, in families, in key order, through reopening: held against the memory store."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from waiting import WAIT_S

from tidemq.config import Config
from tidemq.errors import StoreError
from tidemq.store import FAMILIES, FORMAT, FreezableStore, MemoryStore, Store
from tidemq.store.rocksdb import make_rocksdb_store
from tidemq.store.sqlite import make_sqlite_store

MAKERS: dict[str, Callable[..., Store]] = {"rocksdb": make_rocksdb_store, "sqlite": make_sqlite_store}


def make_store(engine: str, path: Path, **keys: Any) -> Store:
    return MAKERS[engine](Config(data=path, **keys), {})


@pytest.fixture(params=MAKERS)
def engine(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def store(engine: str, tmp_path: Path) -> Iterator[Store]:
    store = make_store(engine, tmp_path / "data")
    assert store.open() == []
    yield store
    store.close()


KEY = st.binary(max_size=3)
FAMILY = st.sampled_from([family for family in FAMILIES if family != "meta"])
WRITE = st.tuples(FAMILY, KEY, st.none() | st.binary(max_size=4))
STEP = st.one_of(
    st.tuples(st.just("write"), st.lists(WRITE, max_size=12), st.booleans()),
    st.tuples(st.just("scan"), FAMILY, KEY, KEY),
    st.tuples(st.just("get"), FAMILY, st.lists(KEY, max_size=5)),
    st.tuples(st.sampled_from(["reopen", "sync", "compact"])),
)


def run_steps(store: Store, steps: list[tuple[Any, ...]]) -> None:
    model = MemoryStore()
    model.open()
    for name, *arguments in steps:
        if name == "write":
            batch, sync = arguments
            store.write(batch, sync=sync)
            model.write(batch, sync=sync)
        elif name == "scan":
            assert list(store.scan(*arguments)) == list(model.scan(*arguments))
        elif name == "get":
            family, keys = arguments
            assert store.get_many(family, keys) == model.get_many(family, keys)
            assert [store.get(family, key) for key in keys] == model.get_many(family, keys)
        elif name == "reopen":
            store.close()
            assert store.open() == []
        else:
            getattr(store, name)()
    for family in FAMILIES:
        assert list(store.scan(family)) == list(model.scan(family))


@given(steps=st.lists(STEP, max_size=20))
@settings(max_examples=examples(25))
@pytest.mark.parametrize("engine", MAKERS)
def test_it_agrees_with_the_memory_store(engine: str, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as path:
        store = make_store(engine, Path(path))
        store.open()
        run_steps(store, steps)
        store.close()


def test_a_scan_of_many_pages_is_whole_and_stays_in_its_prefix(store: Store) -> None:
    rows = [(b"a%06d" % index, b"x" * (index % 50)) for index in range(3000)]
    big = [(b"b%03d" % index, bytes(300_000)) for index in range(10)]
    neighbours = [(b"\xff", b"1"), (b"\xff\xff", b"2"), (b"\xff\xffa", b"3")]
    store.write([("queue", key, value) for key, value in rows + big + neighbours], sync=False)
    assert list(store.scan("queue", b"a")) == rows
    assert list(store.scan("queue", b"a", b"a002000")) == rows[2001:]
    assert list(store.scan("queue", b"b")) == big
    assert store.get_many("queue", [key for key, _ in big]) == [value for _, value in big]
    assert list(store.scan("queue", b"\xff\xff")) == neighbours[1:]
    assert list(store.scan("queue", b"b", b"a")) == big
    assert list(store.scan("queue", b"a", b"b")) == []


def test_rows_that_are_deleted_behind_a_scan_do_not_disturb_it(store: Store) -> None:
    keys = [b"%06d" % index for index in range(2000)]
    store.write([("queue", key, b"") for key in keys], sync=False)
    seen = []
    for key, _ in store.scan("queue"):
        seen.append(key)
        store.write([("queue", key, None)], sync=False)
    assert seen == keys
    assert list(store.scan("queue")) == []


def test_a_later_write_of_a_batch_counts(store: Store) -> None:
    batch = [("meta", b"a", b"1"), ("meta", b"a", None), ("meta", b"b", None), ("meta", b"b", b"2")]
    store.write(batch, sync=True)
    assert store.get_many("meta", [b"a", b"b"]) == [None, b"2"]


def test_a_batch_with_an_unknown_family_changes_nothing(store: Store) -> None:
    with pytest.raises(KeyError):
        store.write([("queue", b"a", b"1"), ("quue", b"a", b"1")], sync=True)
    assert store.get("queue", b"a") is None
    for read in (lambda: store.get("quue", b""), lambda: list(store.scan("quue"))):
        with pytest.raises(KeyError):
            read()


def test_it_is_used_from_one_thread_after_another(store: Store) -> None:
    thread = threading.Thread(target=lambda: store.write([("queue", b"a", b"1")], sync=True))
    thread.start()
    thread.join()
    assert store.get("queue", b"a") == b"1"


def test_a_closed_store_says_so_and_opens_again(store: Store) -> None:
    store.write([("queue", b"a", b"1")], sync=False)
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [lambda: store.write([], sync=True), store.sync, store.compact]
    uses += [lambda: store.get("queue", b"a"), lambda: list(store.scan("queue"))]
    for use in uses:
        with pytest.raises(StoreError, match="not open"):
            use()
    assert store.open() == []
    assert store.get("queue", b"a") == b"1"


def test_what_was_written_survives_kill_9(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    program = f"""
import os, signal
from pathlib import Path
from tidemq.config import Config
from tidemq.store.{engine} import make_{engine}_store
store = make_{engine}_store(Config(data=Path({str(path)!r})), {{}})
store.open()
for index in range(200):
    store.write([("queue", b"%03d" % index, b"x")], sync=index % 2 == 0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=WAIT_S).returncode == -9
    store = make_store(engine, path)
    assert store.open() == []
    assert [key for key, _ in store.scan("queue")] == [b"%03d" % index for index in range(200)]
    store.close()


def test_the_directory_is_the_owner_s_alone(engine: str, store: Store, tmp_path: Path) -> None:
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data/engine").read_text() == engine
    assert store.size_bytes() > 0


def test_a_directory_in_use_is_refused_with_the_user_s_process(
    engine: str, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=rf"{tmp_path}/data is in use by process {os.getpid()}$"):
        make_store(engine, tmp_path / "data").open()
    assert list(store.scan("meta")) == [(b"format", FORMAT)]


def test_an_open_store_is_not_opened_again_and_stays_locked(
    store: Store, engine: str, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="open already"):
        store.open()
    with pytest.raises(StoreError, match="in use"):
        make_store(engine, tmp_path / "data").open()


def test_another_engine_s_directory_is_refused(engine: str, store: Store, tmp_path: Path) -> None:
    store.close()
    other = make_store("sqlite" if engine == "rocksdb" else "rocksdb", tmp_path / "data")
    for _ in range(2):
        with pytest.raises(StoreError, match=f"belongs to the store '{engine}'.*migrate"):
            other.open()
        (tmp_path / "data/engine").unlink(missing_ok=True)  # its folder says it as well
    assert store.open() == []


def test_another_format_is_refused_and_left_as_it_is(engine: str, store: Store) -> None:
    store.write([("meta", b"format", b"3")], sync=True)
    store.close()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"has format 3, this version reads 2: start the version"):
            store.open()


def test_a_directory_that_cannot_be_made_is_a_store_error(engine: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        make_store(engine, tmp_path / "file/data").open()


def test_what_is_frozen_stays_as_it_was(store: Store, engine: str) -> None:
    """On whatever thread it is read, and however many rows there are."""
    assert isinstance(store, FreezableStore)
    before = [(b"k%05d" % number, b"v%d" % number) for number in range(2000)]
    store.write([("queue", *row) for row in before], sync=False)
    store.write([("retained", b"t", b"before")], sync=False)
    frozen = store.freeze()
    store.write(
        [("queue", b"k00000", b"changed"), ("queue", b"k00001", None), ("retained", b"t", None)], sync=True
    )
    store.write([("queue", b"k00001x", b"new"), ("queue", b"z", b"new")], sync=True)
    if engine == "rocksdb":  # SQLite waits for who reads
        store.compact()
    found: list[object] = []

    def read() -> None:
        found.append(list(frozen.scan("queue")))
        found.append(list(frozen.scan("queue", b"k0001", b"k00015")))
        found.append(frozen.get_many("retained", [b"t", b"u"]))
        found.append(frozen.get("queue", b"k00001"))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(WAIT_S)
    assert found == [before, before[16:20], [b"before", None], b"v1"]
    assert store.get("queue", b"k00001") is None
    frozen.close()
    frozen.close()
    with pytest.raises(StoreError):
        frozen.get("queue", b"k00000")


def test_a_store_that_is_closed_ends_what_was_frozen_of_it(store: Store) -> None:
    """It could not be opened again otherwise."""
    assert isinstance(store, FreezableStore)
    store.write([("queue", b"k%d" % number, b"") for number in range(2000)], sync=True)
    rows = store.freeze().scan("queue")
    next(rows)
    store.close()
    with pytest.raises(StoreError):
        list(rows)
    assert store.open() == []
    assert len(list(store.scan("queue"))) == 2000
