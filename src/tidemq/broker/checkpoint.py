"""Brings the engine's state into a store when the broker stops, and back when it starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemq.errors import StoreError
from tidemq.store import FAMILIES, Store, Write

FORMAT_KEY = b"format"
FORMAT_VERSION = b"1"  # of keys and values; a store with another is refused

Entry = tuple[str, bytes, bytes]  # family, key, value
STATE_FAMILIES = tuple(family for family in FAMILIES if family != "meta")


def load_state(store: Store) -> Iterator[Entry]:
    """Every entry of the store; StoreError when another version wrote it."""
    found = store.get("meta", FORMAT_KEY)
    if found not in (None, FORMAT_VERSION):
        raise StoreError(f"the store has format {found!r}, this version reads {FORMAT_VERSION!r}")
    return ((family, key, value) for family in STATE_FAMILIES for key, value in store.scan(family))


def save_state(store: Store, entries: Iterable[Entry]) -> None:
    """Makes the store hold exactly these entries, in one batch."""
    batch: list[Write] = [("meta", FORMAT_KEY, FORMAT_VERSION)]
    batch += entries
    kept = {(family, key) for family, key, _ in batch}
    for family in STATE_FAMILIES:
        batch += [(family, key, None) for key, _ in store.scan(family) if (family, key) not in kept]
    store.write(batch)
