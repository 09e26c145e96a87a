"""The keeper and streams: what the store says of a stream's files is durable no sooner than they are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.keeper_double import Access as EngineSide
from unit.keeper_double import Store, work
from unit.stream_kit import Access, batch, take_batches

from tidemq.broker.durability.keeper import Keeper
from tidemq.config import StreamConfig
from tidemq.errors import StoreError
from tidemq.stream import Streams

ERROR = OSError(5, "Input/output error")


class Kept:
    """Streams that note among the store's syncs when theirs were, or fail."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.failures = 0

    def sync(self) -> None:
        if self.failures:
            self.failures -= 1
            self.store.syncs.append("failed")
            raise StoreError("the stream s cannot be synced: Input/output error")
        self.store.syncs.append("streams")

    def publish(self) -> None:
        pass

    def tend(self, _: object) -> None:
        pass


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def kept(store: Any) -> Kept:
    return Kept(store)


@pytest.fixture(params=["sync", "interval", "os"])
def keeper(request: pytest.FixtureRequest, store: Any, kept: Kept) -> Iterator[Keeper]:
    keeper = Keeper(store, EngineSide(), durability=request.param, interval_s=3600, streams=kept)  # type: ignore[arg-type]
    keeper.start()
    yield keeper
    if keeper._thread.is_alive():
        keeper.finish()


def test_a_clean_end_syncs_streams_and_then_the_store(keeper: Keeper, store: Any) -> None:
    keeper.finish()
    assert store.syncs == ["streams", True]
    assert store.get("meta", b"clean") is not None


def test_an_end_without_what_the_streams_have_is_not_clean(
    keeper: Keeper, store: Any, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.failures = 1
    keeper._leave([("session", b"left", b"1")])
    keeper.finish()
    assert store.syncs == ["failed", False]
    assert store.get("session", b"left") == b"1"
    assert store.get("meta", b"clean") is None
    assert "the stream s cannot be synced" in caplog.text


def test_the_store_is_not_synced_before_the_streams_are(store: Any, kept: Kept) -> None:
    access = EngineSide()
    keeper = Keeper(store, access, durability="interval", interval_s=0.001, streams=kept)  # type: ignore[arg-type]
    kept.failures = 2
    keeper.start()
    deadline = time.monotonic() + 20
    while "sync" not in store.syncs:
        assert time.monotonic() < deadline
        access.works.put(work())
        time.sleep(0.001)
    keeper.finish()
    assert store.syncs[:4] == ["failed", "failed", "streams", "sync"]


def test_a_stream_that_cannot_be_synced_keeps_no_other_from_it(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_batches(monkeypatch)
    streams = Streams(store, Access(), tmp_path)  # type: ignore[arg-type]
    for name in "abc":
        streams.declare(StreamConfig(name=name, filters=("#",)))
        streams.all[name].log.write([batch(0, [b"x"], 0)])
    synced = 0

    def second_fails(_: int) -> None:
        nonlocal synced
        synced += 1
        if synced == 2:
            raise ERROR

    monkeypatch.setattr(os, "fdatasync", second_fails)
    with pytest.raises(StoreError, match="the stream b cannot be synced"):
        streams.sync()
    assert synced == 3
    streams.close()
