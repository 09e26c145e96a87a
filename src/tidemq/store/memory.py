"""A store in memory: the model that the tests hold the others against."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidemq.config import Config
from tidemq.store.interface import FAMILIES, FORMAT, FORMAT_KEY, Row, Write


class MemoryStore:
    """Keeps everything until the object goes; closing loses nothing, so a second broker finds it again.

    Cost: a write is constant, the first scan after a new key sorts the family.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[bytes, bytes]] = {family: {} for family in FAMILIES}
        self._sorted: dict[str, list[bytes]] = {}  # keys in order; a family is missing after its keys changed

    def open(self) -> list[str]:
        """Nothing can be damaged."""
        self._values["meta"].setdefault(FORMAT_KEY, FORMAT)
        return []

    def write(self, batch: Sequence[Write], *, sync: bool) -> None:
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

    def sync(self) -> None:
        """Nothing to do."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key; None when there is none."""
        return self._values[family].get(key)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        return [self._values[family].get(key) for key in keys]

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """Keys that start with `prefix` and come after `after`, in order, as of the call."""
        values = self._values[family]
        keys = self._sorted.get(family)
        if keys is None:
            keys = self._sorted[family] = sorted(values)
        start = max(bisect_left(keys, prefix), bisect_right(keys, after) if after else 0)
        found = []
        for index in range(start, len(keys)):
            if not keys[index].startswith(prefix):
                break
            found.append((keys[index], values[keys[index]]))
        return iter(found)

    def size_bytes(self) -> int:
        """Nothing is on disk."""
        return 0

    def compact(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do: the values stay."""


def make_memory_store(_: Config, __: Mapping[str, Any]) -> None:
    """The entry point `memory`: no store at all, so that the engine keeps no journal."""
