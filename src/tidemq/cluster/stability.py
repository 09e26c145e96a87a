"""What nobody can contradict any more: then what has been removed need not be remembered, and logs end.

A record is stable when every member has said, in order with its own records, that it has applied it, and all
that the member had done before saying so is applied here. What comes of it from then on knows of the record.
Only a member's own word counts, which comes on one connection after its messages; a record that somebody else
brought may have overtaken these.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from tidemq.cluster.applying import Applier
from tidemq.cluster.log_size import LogSize
from tidemq.cluster.operations import SESSION, Owner, Stamp
from tidemq.cluster.rows import NEVER, Rows
from tidemq.cluster.vectors import Dot, Vector, has_seen, raised

LOOKED_AT_ONCE = 4096  # in one batch: sessions that have ended, their entries, what is gone, own records
REMOVALS_AT_ONCE = 16_384  # the same

T = TypeVar("T")


class _Walk(Generic[T]):
    """Goes through rows some at a time, however these change meanwhile."""

    def __init__(self, rows: Iterator[T]) -> None:
        self._rows = rows
        self.is_over = False

    def some(self, at_most: int) -> list[T]:
        """The next of them; fewer: there are no more."""
        found = list(itertools.islice(self._rows, at_most))
        self.is_over = len(found) < at_most
        return found


class _Round:
    """Through all that may have become stable, when it `began` or since. `holds`: something of it is not to
    be deleted yet.
    """

    def __init__(self, began: Vector, rows: Rows) -> None:
        self.began = dict(began)
        self.place = b""  # up to which removals were looked at
        self.removals_over = False
        self.gone = _Walk(rows.gone.all())
        self.unfinished = ""  # a client of whose session more is left than is looked at in one batch
        self.holds = False
        self.may_look = 0  # at so many entries more, in this batch
        self._ends = _Walk(rows.ends.all())
        self._client = ""

    @property
    def is_over(self) -> bool:
        """Whether all was looked at."""
        return self.removals_over and self.gone.is_over and self._ends.is_over and not self.unfinished

    def next_ended(self) -> str | None:
        """A client whose session has ended: the one that is unfinished, or the next; None: no more."""
        if self.unfinished:
            client, self.unfinished = self.unfinished, ""
            return client
        while not self._ends.is_over:
            for client, _, _ in self._ends.some(1):
                if client != self._client:  # several ends of one lie together
                    self._client = client
                    return client
        return None


class Stability:
    """What each member is known to have applied. `own`: this node, which is no member for itself."""

    def __init__(self, rows: Rows, applier: Applier, own: int) -> None:
        self._rows = rows
        self._applier = applier
        self._own = own
        self._known: dict[int, dict[int, int]] = {}
        self._said: dict[int, tuple[int, Vector]] = {}  # waits until the member's own records are here
        applied, _ = rows.applied.get(own, None) or (0, b"")
        self._round: _Round | None = None  # that has begun and is not over
        self._looked: dict[str, tuple[Stamp, bool]] = {}  # at those of ended sessions so far; is any left
        self.log_size = LogSize()
        for number, size in rows.log_sizes(own):
            self.log_size.add(number, size)
        self.first = self.log_size.first or applied + 1  # of the own log
        self._first_before = self.first  # as it was before the last `collect`

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

    def has_heard(self, member: int, number: int) -> bool:
        """Whether a member has applied this record of this node, and what it did until it said so is here."""
        return self._known.get(member, {}).get(self._own, 0) >= number

    def is_known(self, incarnation: int, number: int, members: Iterable[int]) -> bool:
        """Whether all of these, but for the node itself, are known to have this record of a node."""
        others = (each for each in members if each not in (self._own, incarnation))
        return all(self._known.get(each, {}).get(incarnation, 0) >= number for each in others)

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
        self._first_before = self.first
        if self._round is None:
            self._round = _Round(stable, self._rows)
        now = self._round
        self._collect_removals(now, stable, moving)
        self._collect_gone(now, stable)
        self._collect_ended(now, stable)
        is_trimmed = self._trim(stable.get(self._own, 0))
        if not now.is_over:
            return True
        self._round = None
        return now.holds or now.began != stable or not is_trimmed

    def begin_anew(self) -> None:
        """What `collect` has deleted last may not be stored: all of it is looked at once more."""
        self._round = None
        self._looked.clear()
        self.first = self._first_before

    def _collect_removals(self, now: _Round, stable: Vector, moving: Container[str]) -> None:
        if not now.removals_over:
            now.place, holds = self._rows.drop_removed(stable, moving, now.place, REMOVALS_AT_ONCE)
            now.holds, now.removals_over = now.holds or holds, not now.place

    def _collect_gone(self, now: _Round, stable: Vector) -> None:
        rows = self._rows
        for name, topic_filter, _ in now.gone.some(LOOKED_AT_ONCE):
            dot = rows.gone.get(name, topic_filter)  # it may have changed since it was read
            if dot is None or not has_seen(stable, dot):
                continue
            if topic_filter is None:
                rows.retained.put(name, None, None)
                rows.gone.put(name, None, None)
            else:
                self._drop_subscription(name, topic_filter)

    def _collect_ended(self, now: _Round, stable: Vector) -> None:
        now.may_look = LOOKED_AT_ONCE
        for _ in range(LOOKED_AT_ONCE):
            client = now.next_ended() if now.may_look else None
            if client is None:
                return
            if self._collect_client(client, stable, now):
                now.unfinished = client

    def _trim(self, last: int) -> bool:
        """Deletes records of this node's log up to this one, so many at once; whether all are."""
        upto = min(last, self.first - 1 + LOOKED_AT_ONCE)
        while self.first <= upto:
            self._rows.log.put(self._own, self.first, None)
            self.first += 1
        self.log_size.trim(self.first)
        return self.first > last

    def _drop_subscription(self, client: str, topic_filter: str) -> None:
        self._rows.subscriptions.put(client, topic_filter, None)
        self._rows.gone.put(client, topic_filter, None)

    def _collect_client(self, client: str, stable: Vector, now: _Round) -> bool:
        """Of a client whose session ended: what went with it; and all of it where no session came after.
        Whether there is more of it than is looked at in one batch.
        """
        rows, owner = self._rows, Owner(SESSION, client)
        ends = rows.ends.of(client)
        session = rows.sessions.get(client, None)
        here = self._applier.home.get(client)
        is_known = all(has_seen(stable, dot) for dot, _ in ends)
        # what the engine still adds to a session that has ended would be the next one's
        is_needed = here is not None and (session is None or session.row.epoch != here)
        if not is_known or is_needed:
            now.holds = now.holds or is_known
            self._looked.pop(client, None)
            return False
        none = session is None
        after, left = self._looked.pop(client, (NEVER, False))
        dropped: list[Stamp] = []
        for message_id, entry in rows.entries_after(owner, after):
            if now.may_look == 0:
                self._applier.drop_entries(owner, dropped)
                self._looked[client] = after, left
                return True
            now.may_look -= 1
            after = message_id
            known = none and all(has_seen(stable, each.dot) for each in entry.adds)
            shown = tuple(each for each in entry.adds if not any(end.hides(each.dot) for _, end in ends))
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
