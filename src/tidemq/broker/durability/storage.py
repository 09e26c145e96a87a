"""What a broker keeps on disk: its store, its streams, and the keeper that writes both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tidemq.broker.completion import complete
from tidemq.broker.durability.keeper import Keeper
from tidemq.broker.providers import counts_of
from tidemq.config import Config
from tidemq.store import MemoryStore, Store
from tidemq.stream import Streams

if TYPE_CHECKING:
    from tidemq.engine import Engine, StoreAccess

_log = logging.getLogger("tidemq.store")


class Storage:
    """Of one broker. `keeper` is None until it has loaded; `streams` stays None where a program has brought a
    store that is not on disk.
    """

    def __init__(self, store: Store, config: Config, make_keeper: Callable[..., Keeper] = Keeper) -> None:
        self.store = store
        self.keeper: Keeper | None = None
        self.streams: Streams | None = None
        self._config = config
        self._make_keeper = make_keeper

    async def load(self, engine: Engine, died: Callable[[str], None]) -> None:
        """Opens the store and brings the engine to where it is, beside the event loop: it takes seconds.
        `died`: called on any thread when the keeper's has ended.
        """
        await complete(asyncio.to_thread(self._load, engine, died))

    @property
    def is_on_disk(self) -> bool:
        """Whether it can have streams, and copies of itself."""
        return not isinstance(self.store, MemoryStore) and self._config.data.is_dir()

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._config.data

    @property
    def problem(self) -> str:
        """What keeps it from storing; empty: nothing."""
        return self.keeper.problem if self.keeper is not None else ""

    def counts(self) -> dict[str, int]:
        """Counters of all its parts, by name."""
        found = dict(counts_of(self.store))
        if self.keeper is not None:
            found.update(self.keeper.counts)
        if self.streams is not None:
            found.update(self.streams.counts)
        return found

    def rows(self, family: str, prefix: bytes) -> list[bytes]:
        """Values of what is kept beside the engine's state. Before the keeper begins."""
        return [value for _, value in self.store.scan(family, prefix)]

    def finish(self) -> None:
        """Writes the last of what is to be stored; the engine has ended."""
        if self.keeper is not None:
            self.keeper.finish()

    def close(self) -> None:
        """Closes the files; first the keeper, where a start has failed after it began."""
        if self.keeper is not None and self.keeper.is_running:
            self.keeper.finish()
        if self.streams is not None:
            self.streams.close()
        self.store.close()

    def _load(self, engine: Engine, died: Callable[[str], None]) -> None:
        from tidemq.engine import StoreAccess

        for line in self.store.open():
            _log.error("%s", line)
        config = self._config
        access = StoreAccess(engine)
        self.streams = self._open_streams(access)
        keeper = self._make_keeper(
            self.store,
            access,
            durability=config.durability,
            interval_s=config.durability_interval_ms / 1000,
            bytes_max=config.limits.store_bytes_max,
            data=config.data if config.data.is_dir() else None,
            strict=config.store_strict,
            streams=self.streams,
            on_death=died,
        )
        keeper.load()
        if self.streams is not None:
            for line in self.streams.load(config.streams):
                _log.error("%s", line)
        self.keeper = keeper

    def _open_streams(self, access: StoreAccess) -> Streams | None:
        if not self.is_on_disk:
            return None
        topics_bytes_max = self._config.limits.compaction_bytes_max
        return Streams(self.store, access, self._config.data, topics_bytes_max=topics_bytes_max)
