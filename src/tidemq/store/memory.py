"""A store in memory: for tests and for brokers whose state may go with the process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from tidemq.config import Config
from tidemq.store.interface import FAMILIES, Write


class MemoryStore:
    """Keeps everything until the object goes; closing loses nothing, so a second broker finds it again.

    Cost: a write is constant, the first scan after a new key sorts the family.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[bytes, bytes]] = {family: {} for family in FAMILIES}
        self._sorted: dict[str, list[bytes]] = {}  # keys in order; a family is missing after its keys changed

    def open(self) -> None:
        """Nothing to do."""

    def write(self, batch: Iterable[Write]) -> None:
        """Applies the batch; KeyError on an unknown family before anything is changed."""
        writes = [(family, self._values[family], key, value) for family, key, value in batch]
        for family, values, key, value in writes:
            if value is None:
                if values.pop(key, None) is not None:
                    self._sorted.pop(family, None)
            else:
                if key not in values:
                    self._sorted.pop(family, None)
                values[key] = value

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key; None when there is none."""
        return self._values[family].get(key)

    def scan(self, family: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix` and their values, in order, as of the call."""
        values = self._values[family]
        keys = self._sorted.get(family)
        if keys is None:
            keys = self._sorted[family] = sorted(values)
        found = []
        for index in range(bisect_left(keys, prefix), len(keys)):
            if not keys[index].startswith(prefix):
                break
            found.append((keys[index], values[keys[index]]))
        return iter(found)

    def close(self) -> None:
        """Nothing to do: the values stay."""


def make_memory_store(_: Config) -> MemoryStore:
    """The entry point `memory`; it has no options."""
    return MemoryStore()
