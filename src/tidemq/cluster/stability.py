"""What nobody can contradict any more: then what has been removed need not be remembered, and logs end.

A record is stable when every member has said, in order with its own records, that it has applied it, and all
that the member had done before saying so is applied here. What comes of it from then on knows of the record.
Only a member's own word counts, which comes on one connection after its messages; a record that somebody else
brought may have overtaken these.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from tidemq.cluster.applying import Applier
from tidemq.cluster.log_size import LogSize
from tidemq.cluster.operations import SESSION, Owner, Stamp
from tidemq.cluster.rows import NEVER, Rows
from tidemq.cluster.vectors import Dot, Vector, has_seen, raised

LOOKED_AT_ONCE = 4096  # entries of sessions that have ended, in one batch
REMOVALS_AT_ONCE = 16_384  # the same


class Stability:
    """What each member is known to have applied. `own`: this node, which is no member for itself."""

    def __init__(self, rows: Rows, applier: Applier, own: int) -> None:
        self._rows = rows
        self._applier = applier
        self._own = own
        self._known: dict[int, dict[int, int]] = {}
        self._said: dict[int, tuple[int, Vector]] = {}  # waits until the member's own records are here
        applied, _ = rows.applied.get(own, None) or (0, b"")
        self._place = b""  # up to which removals were looked at, this time
        self._holds_removals = False  # and whether any of a session that moves was among them
        self._may_look = LOOKED_AT_ONCE  # at so many entries more
        self._looked: dict[str, tuple[Stamp, bool]] = {}  # at those of ended sessions so far; is any left
        self.log_size = LogSize()
        for number, text in sorted(rows.log.of(own)):
            self.log_size.add(number, len(text))
        self.first = self.log_size.first or applied + 1  # of the own log

    def hear(self, member: int, number: int, vector: Vector) -> None:
        """A member has made records up to this number, and applied these."""
        if member != self._own:
            self._said.setdefault(member, (number, dict(vector)))

    def take_in(self) -> None:
        """Believes what members have said, as soon as their own records are here."""
        for member, (number, vector) in list(self._said.items()):
            if has_seen(self._rows.vector, Dot(member, number)):
                known = {**raised(self._known.get(member, {}), vector), member: number}
                self._known[member] = known
                del self._said[member]

    def waits_for(self, member: int) -> bool:
        """Whether a member is not known to have the first record of this node's log."""
        return self._known.get(member, {}).get(self._own, 0) < self.first

    def stable(self, members: Iterable[int], unanswered: Iterable[Vector]) -> dict[int, int]:
        """The last stable record of each node; `unanswered` as in `Node`."""
        known = (self._known.get(each, {}) for each in members if each != self._own)
        vectors: list[Vector] = [*known, *unanswered]
        return {
            incarnation: min([number, *(each.get(incarnation, 0) for each in vectors)])
            for incarnation, number in self._rows.vector.items()
        }

    def collect(self, stable: Vector, moving: Container[str]) -> bool:
        """Deletes what is remembered of stable removals, a piece at a time, and the stable part of this
        node's log. Of sessions that are `moving` this node itself may be about to add what has been removed.
        Whether there is anything that is to be deleted later.
        """
        rows = self._rows
        held = bool(self._place) and self._holds_removals
        self._place, holds = rows.drop_removed(stable, moving, self._place, REMOVALS_AT_ONCE)
        self._holds_removals = held or holds
        held = self._holds_removals or bool(self._place)
        for name, topic_filter, dot in rows.gone.all():
            if has_seen(stable, dot) and topic_filter is None:
                rows.retained.put(name, None, None)
                rows.gone.put(name, None, None)
            elif has_seen(stable, dot) and topic_filter is not None:
                self._drop_subscription(name, topic_filter)
        self._may_look = LOOKED_AT_ONCE
        for client in sorted({client for client, _, _ in rows.ends.all()}):
            if self._may_look == 0:
                held = True
                break
            held = self._collect_client(client, stable) or held
        while self.first <= stable.get(self._own, 0):
            rows.log.put(self._own, self.first, None)
            self.first += 1
        self.log_size.trim(self.first)
        return held

    def _drop_subscription(self, client: str, topic_filter: str) -> None:
        self._rows.subscriptions.put(client, topic_filter, None)
        self._rows.gone.put(client, topic_filter, None)

    def _collect_client(self, client: str, stable: Vector) -> bool:
        """Of a client whose session ended: what went with it; and all of it where no session came after.
        Whether there is more of it than is looked at in one batch.
        """
        rows, owner = self._rows, Owner(SESSION, client)
        ends = rows.ends.of(client)
        if not all(has_seen(stable, dot) for dot, _ in ends):
            self._looked.pop(client, None)
            return False
        none = rows.sessions.get(client, None) is None
        after, left = self._looked.pop(client, (NEVER, False))
        dropped: list[Stamp] = []
        for message_id, entry in rows.entries_after(owner, after):
            if self._may_look == 0:
                self._applier.drop_entries(owner, dropped)
                self._looked[client] = after, left
                return True
            self._may_look -= 1
            after = message_id
            known = none and all(has_seen(stable, each.dot) for each in entry.adds)
            shown = tuple(
                each for each in entry.adds if not any(has_seen(end.seen, each.dot) for _, end in ends)
            )
            if known or not shown:
                dropped.append(message_id)
                continue
            left = left or none
            if shown != entry.adds:
                rows.entries.put(owner, message_id, replace(entry, adds=shown))
        self._applier.drop_entries(owner, dropped)
        for topic_filter, each in rows.subscriptions.of(client):
            if rows.is_hidden(client, each.dot) or (none and has_seen(stable, each.dot)):
                self._drop_subscription(client, topic_filter)
            else:
                left = left or none
        if not left:
            for dot, _ in ends:
                rows.ends.put(client, dot, None)
        return False
