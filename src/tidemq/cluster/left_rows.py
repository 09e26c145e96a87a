"""What is left of works that could not be stored: it goes before the next.

It is converted with that, not before: until the store takes writes again, it is open whether it has them, and
nothing may be readable.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tidemq.cluster.conversion import Described

if TYPE_CHECKING:
    from tidemq.engine import StoreWork


class LeftRows:
    """Rows as those of `StoreWork.described`, and with them `StoreWork.elsewhere`."""

    def __init__(self) -> None:
        self._rows: Described = []
        self._elsewhere: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, described: Described, elsewhere: Collection[bytes] = ()) -> None:
        """All but new messages, which go, in case the store has them, and with them that they came."""
        messages: dict[bytes, bytes] = {}
        for row in described:
            if row[0] == "add":
                key, moved, message = row[2], row[-2], row[-1]
                if message is not None:
                    messages[key] = message
                self._rows.append((*row[:-1], messages[key]) if moved else ("remove", row[1], key, 0))
            else:
                self._rows.append((*row[:3], None) if row[:2] == ("put", "received") else row)
        self._elsewhere.update(elsewhere)

    def with_work(self, work: StoreWork | None) -> tuple[Described, Collection[bytes]]:
        """What is to be converted now."""
        described, elsewhere = ([], set()) if work is None else (work.described or [], work.elsewhere)
        if not self._rows:
            return described, elsewhere
        return [*self._rows, *described], {*self._elsewhere, *elsewhere}

    def clear(self) -> None:
        """It is in the store."""
        self._rows.clear()
        self._elsewhere.clear()
