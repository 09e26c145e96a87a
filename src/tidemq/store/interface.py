"""What the broker asks of a store: batches of writes, point reads and ordered scans over byte keys.

A store knows nothing of MQTT. Keys and values are the engine's (`rows.py` parses them); a family is a name
out of `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from tidemq.errors import StoreError

# what each holds, and the layouts of keys and values: docs/store.md
FAMILIES = (
    "payload",
    "reference",
    "queue",
    "expiry",
    "session",
    "received",
    "subscription",
    "shared",
    "retained",
    "stream",
    "log",
    "cluster",
    "meta",
)

# of a store on disk, in its `counts`: things found damaged; rows (RocksDB) or pages (SQLite) of its log that
# were on the disk, or have others behind them, and cannot be read
DAMAGE_COUNTERS = ("store_damaged", "store_log_lost")

FORMAT_KEY = b"format"  # in the family `meta`
FORMAT = b"2"  # of all rows; 2 is the first that was released
OLDER: tuple[bytes, ...] = ()  # formats that `migration.py` makes this one of
INCOMPLETE = b"incomplete"  # of a store that is being filled; any version refuses it

Write = tuple[str, bytes, bytes | None]
"""Family, key and value; None deletes the key."""

Row = tuple[bytes, bytes]
"""Key and value."""


class Store(Protocol):
    """Keeps keys and values in families. Used from one thread at a time.

    StoreError, from any method, when durability is in doubt or data cannot be read; StoreFullError when
    there is no room. After a failed write it is open whether the batch is in the store, but it is so whole or
    not at all: writing it again is right. A write first repairs what an earlier one left broken, so that the
    store recovers by itself when the cause has gone.

    What a read finds damaged is set aside and logged, and the read goes on with the rest; that of a strict
    store raises StoreError.

    Found by name through the entry points `tidemq.stores`.
    """

    def open(self) -> list[str]:
        """Makes the store ready; gives a line for each thing set aside because it was damaged.

        A store that was closed may be opened again. StoreError: the directory is in use, its format is of
        another version, or something is damaged and the store is strict.
        """

    def write(self, batch: Sequence[Write], *, sync: bool) -> None:
        """Applies all of the batch or nothing, in order; durable on return when `sync`."""

    def sync(self) -> None:
        """Makes every earlier write durable."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key; None when there is none."""

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """Keys that start with `prefix` and come after `after` (empty: all), in the order of their bytes.

        A key that is written or deleted while the scan is read may be seen or not; every other one is seen
        once.
        """

    def size_bytes(self) -> int:
        """What the store takes on disk."""

    def compact(self) -> None:
        """Gives the room of deleted rows back to the disk; reads and writes everything, so it takes long."""

    def close(self) -> None:
        """Releases what `open` took; may be called twice."""


@runtime_checkable
class CopyableStore(Store, Protocol):
    """A store with files that can be copied while it is open."""

    def copy_to(self, folder: Path) -> None:
        """Makes a data directory of what it holds, durably, in an empty folder; StoreError when it cannot."""


class Frozen(Protocol):
    """What a store held at one moment. For any thread, while the store goes on. StoreError where it cannot be
    read, or the store has been closed meanwhile.
    """

    def get(self, family: str, key: bytes) -> bytes | None:
        """As in `Store`."""

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """As in `Store`."""

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """As in `Store`."""

    @property
    def is_open(self) -> bool:
        """Whether neither it nor the store has been closed."""

    def close(self) -> None:
        """Until then the store keeps what was deleted since; may be called twice."""


@runtime_checkable
class FreezableStore(Store, Protocol):
    """A store that goes on while what it held at one moment is read."""

    def freeze(self) -> Frozen:
        """What it holds now. On the thread that uses the store; it takes microseconds."""


def check_format(store: Store, path: Path, formats: Collection[bytes]) -> None:
    """Marks a new store below `path` with this version's format. StoreError where it has one that is not
    among `formats`; it says what to do.
    """
    found = store.get("meta", FORMAT_KEY)
    if found is None:
        store.write([("meta", FORMAT_KEY, FORMAT)], sync=True)
    elif found not in formats:
        raise StoreError(_explain_format(found, path))


def _explain_format(found: bytes, path: Path) -> str:
    if found == INCOMPLETE:
        return f"the store in {path} is incomplete: what made it has not ended; remove it and make it again"
    format_text = found[:20].decode(errors="replace")
    text = f"the store in {path} has format {format_text}, this version reads {FORMAT.decode()}"
    if found in OLDER:
        return f"{text}: make another one of it with `tidemq store migrate --data {path} --to NEW`"
    return f"{text}: start the version that wrote it, or go back to a backup or a dump that this one reads"


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key behind all that start with `prefix`; None when there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
