"""What nodes did last before they died: kept in this node's log, next to its own records, for members that
are away. Nobody's server may have had copies of it, and this node may be started again.
"""

from __future__ import annotations

from collections.abc import Collection

from tidemq.cluster.fetching import RecentRecords
from tidemq.cluster.node import Node

KEPT_BYTES_MAX = 2 << 20  # of one node's records, and one record more


class LastWords:
    """Of one node; on the keeper's thread. What is put becomes durable with the next batch."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._dead: set[int] = set()  # of whom it has been kept
        self._last: dict[int, int] | None = None  # of each of whom something is kept; None: look again

    @property
    def _kept(self) -> dict[int, int]:
        if self._last is None:
            rows = self._node.rows
            known = {who for who, _, _ in [*rows.members.all(), *rows.struck.all()]} - {
                self._node.incarnation
            }
            self._last = {each: max(dict(rows.log.of(each))) for each in known if rows.log.has(each)}
        return self._last

    def keep(self, dead: Collection[int], recent: RecentRecords) -> None:
        """Of those who have died since the last time; what is among the `recent`, and applied."""
        rows = self._node.rows
        for each in set(dead) - self._dead:
            applied = rows.vector.get(each, 0)
            if self._node.stability.is_known(each, applied, self._node.members.incarnations):
                continue
            left = KEPT_BYTES_MAX
            for number, text in reversed(list(recent.find(each, 1, applied))):
                rows.log.put(each, number, text)
                self._kept[each] = max(number, self._kept.get(each, 0))
                left -= len(text)
                if left <= 0:
                    break
        self._dead = set(dead)

    def begin_anew(self) -> None:
        """The last batch may not be stored: all is done again."""
        self._dead.clear()
        self._last = None

    def find(self, incarnation: int, first: int, last: int) -> dict[int, bytes]:
        """Of a node's last records those between these numbers."""
        if incarnation not in self._kept:
            return {}
        rows = self._node.rows.log.of(incarnation)
        return {number: text for number, text in rows if first <= number <= last}

    def drop_known(self) -> None:
        """What all members have goes."""
        log, stability = self._node.rows.log, self._node.stability
        for each, last in list(self._kept.items()):
            if stability.is_known(each, last, self._node.members.incarnations):
                for number, _ in log.of(each):
                    log.put(each, number, None)
                del self._kept[each]
