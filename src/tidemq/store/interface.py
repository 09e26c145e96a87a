"""What the broker asks of a store: batches of writes, point reads and ordered scans over byte keys.

A store knows nothing of MQTT. Keys and values are the engine's; a family is a name out of `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

# payload: message id -> message; queue: queue id, status, message id -> options; session: client id -> its
# state; subscription: client id, filter -> options; retained: topic -> message; stream: its settings; meta:
# format and server
FAMILIES = ("payload", "queue", "session", "subscription", "retained", "stream", "meta")

Write = tuple[str, bytes, bytes | None]
"""Family, key and value; None deletes the key."""


class Store(Protocol):
    """Keeps keys and values in families. Raises StoreError when durability is in doubt.

    Used from one thread at a time. Found by name through the entry points `tidemq.stores`.
    """

    def open(self) -> None:
        """Makes the store ready; a store that was closed may be opened again."""

    def write(self, batch: Iterable[Write]) -> None:
        """Applies all of the batch or nothing, in order."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key; None when there is none."""

    def scan(self, family: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix` and their values, in the order of the keys' bytes, as of the call."""

    def close(self) -> None:
        """Releases what `open` took; may be called twice."""
