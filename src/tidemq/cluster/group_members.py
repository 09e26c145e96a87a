"""Whether anybody is subscribed to a shared group, as the rows of all nodes' sessions say; on the keeper's
thread.

What nodes tell each other is not enough to end a group by: of a session that has just gone to another node
nothing may have been heard yet but its rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.operations import Stamp
from tidemq.cluster.rows import Rows
from tidemq.errors import StoreError
from tidemq.store import Store

LOOKED_AT_ONCE = 1024  # subscriptions, between two pieces of work
AGAIN_S = 5.0  # between two looks, and no more than a twentieth of the time
SHARED = b"$share/"


class GroupMembers:
    """Looks through all subscriptions, for all groups that are in doubt, a piece at a time."""

    def __init__(self, rows: Rows, store: Store, clock: HybridClock) -> None:
        self._rows = rows
        self._store = store
        self._clock = clock
        self._doubted: set[str] = set()
        self._wanted: set[str] = set()  # those that this look has not found yet
        self._look: Iterator[tuple[bytes, bytes]] | None = None
        self._begun_at = self._next_at = 0.0
        self._begun_ns = 0
        self._ended: dict[str, int] = {}  # groups of which the last look found no member, and when it began

    def doubt(self, group: str) -> None:
        """Nobody takes its messages: the next look is for it, too."""
        self._doubted.add(group)

    def has_ended(self, group: str, message_id: Stamp) -> bool:
        """Whether nobody was subscribed after this message was published, so that it is nobody's."""
        return message_id[0] < self._ended.get(group, 0)

    def advance(self, now: float) -> bool:
        """Looks on; whether a look has come to its end, and some group has ended. StoreError where it cannot
        be read: then all is looked through anew.
        """
        if self._look is None:
            if not self._doubted or now < self._next_at:
                return False
            self._wanted, self._doubted = self._doubted, set()
            self._begun_at, self._begun_ns = now, self._clock.next_ns()
            self._look = self._store.scan("subscription")
        try:
            rows = list(itertools.islice(self._look, LOOKED_AT_ONCE))
        except StoreError:
            self._look, self._wanted, self._doubted = None, set(), self._doubted | self._wanted
            raise
        for key, _ in rows:
            end = 2 + int.from_bytes(key[:2])
            group = key[end:].decode(errors="replace") if key.startswith(SHARED, end) else ""
            if group in self._wanted and self._rows.subscription(key[2:end].decode(), group) is not None:
                self._wanted.discard(group)
        if len(rows) == LOOKED_AT_ONCE and self._wanted:
            return False
        self._look, self._ended = None, dict.fromkeys(self._wanted, self._begun_ns)
        self._next_at = now + max(AGAIN_S, 20 * (now - self._begun_at))
        return bool(self._ended)
