"""Who is a member no more: gone by itself, forgotten by an operator, or struck off because the others' logs
have waited for it for too long. One that comes back begins anew (`rejoining.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tidemq.cluster.forms import decode, encode
from tidemq.cluster.links import Links
from tidemq.cluster.members import STRUCK_TEXT
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Operation, Strike
from tidemq.cluster.records import clock_of
from tidemq.cluster.vectors import Vector
from tidemq.errors import ClusterError

STRUCK = "struck"

DROP_S = 3.0
SAID_S = 3.0  # that others say that this node is no member, where it says the same of them
SILENT_S = 1.0  # in which they have not said so again
LOOK_S = 1.0  # between two looks at who is absent

# where this is said: how many members there are, the first of them, what is applied, where it is reached
_SAID = "H Q vector text"

_log = logging.getLogger("tidemq.cluster")


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long, and for how much of its own log, a node keeps records for members that are absent."""

    absent_s: float = 604_800.0
    log_bytes_max: int = 16 << 30


class Membership:
    """Of one node, on the keeper's thread. `write` makes one batch durable. `begin_anew` notes, durably, that
    the node is struck off by somebody who has applied these records, and is reached there. `counts`:
    `cluster_members_struck_off`.
    """

    def __init__(
        self,
        node: Node,
        links: Links,
        write: Callable[[list[Operation]], None],
        begin_anew: Callable[[Vector, str], None],
        patience: Patience,
    ) -> None:
        self._node = node
        self._links = links
        self._write = write
        self._begin_anew = begin_anew
        self._patience = patience
        self.counts: Counter[str] = Counter()
        self._looked_at = -LOOK_S
        self._first = 0, 0  # record of the log, and its time: a record may have megabytes
        self._seen_at: dict[int, float] = {}  # when it was seen first that they are none
        self._dropped: set[int] = set()  # that the links have been told of
        self._struck_by = 0
        self._said_since = self._said_at = -SILENT_S

    def forget(self, who: str, now: float, settled: Collection[int]) -> str:
        """A node is gone for good: logs need not be kept for it any more. `who`: its name or incarnation;
        `settled`: dead nodes that have no sessions any more. Gives its name and incarnation.

        ClusterError where it is no member, may still be there, or its sessions are not elsewhere yet.
        """
        incarnation, name = self._find(who)
        shown = f"{name} ({incarnation:016x})"
        if incarnation == self._node.incarnation:
            raise ClusterError(f"{shown} is this node: tidemq cluster drain lets it leave")
        if self._node.members.is_heard(incarnation, now):
            raise ClusterError(f"{shown} is alive; a node that is to leave is drained, on itself")
        hearer = self._hearer_of(incarnation, now)
        if hearer:
            raise ClusterError(f"{shown} is alive: {hearer} hears it, and this node does not")
        if incarnation not in settled:
            raise ClusterError(f"sessions of {shown} are still being taken over; try again in a moment")
        self._write([Strike(incarnation, name)])
        return shown

    def _hearer_of(self, incarnation: int, now: float) -> str:
        """The name of a member that is there and hears this one; empty: nobody does."""
        for other in self._node.members.known():
            there = self._node.members.is_heard(other.beat.incarnation, now)
            if there and other.beat.peers.get(incarnation, (0, False))[1]:
                return other.beat.name
        return ""

    def _find(self, who: str) -> tuple[int, str]:
        rows = self._node.rows
        names = {each: name for each, _, name in rows.members.all()}
        names[self._node.incarnation] = self._node.own.name
        found = [each for each, name in names.items() if who in (name, f"{each:016x}")]
        if len(found) > 1:
            which = ", ".join(f"{each:016x}" for each in found)
            raise ClusterError(f"there are {len(found)} nodes of the name {who!r}; accepted: one of {which}")
        if not found:
            gone = {who for each, _, (name, _) in rows.struck.all() if who in (name, f"{each:016x}")}
            if gone:
                raise ClusterError(f"{who} is a member no more already")
            known = ", ".join(sorted(f"{name} ({each:016x})" for each, name in names.items()))
            raise ClusterError(f"there is no node {who!r}; accepted: {known}")
        return found[0], names[found[0]]

    def refuses(self, source: int) -> bool:
        """Whether nothing counts that a node sends."""
        return self._node.rows.struck.get(source, None) is not None

    def has_left(self, incarnation: int) -> bool:
        """Whether a node is a member no more by its own word. From any thread."""
        struck = self._node.rows.struck.get(incarnation, None)
        return struck is not None and struck[1] == incarnation

    def hear_struck(self, source: int, body: bytes, now: float) -> None:
        """A node says that this one is a member no more. ClusterError where that is no such word."""
        count, first, applied, address = decode(_SAID, body)
        if self._struck_by:
            return
        if self.refuses(source):
            own_count, own_first = _side_of(self._node)
            if (own_count, -own_first) > (count, -first):
                return  # the other side begins anew, which has fewer members, or whose first is later
            if now - self._said_at > SILENT_S:
                self._said_since = now
            self._said_at = now
            if now - self._said_since < SAID_S:
                return  # members are learnt one after the other
        self._begin_anew(applied, address)
        self._struck_by = source

    @property
    def verdict(self) -> str:
        """Why this node cannot go on; empty: it is a member."""
        own = self._node.own
        if self._node.members.unreadable:
            return f"this node, {own.name}, cannot be of the cluster: {self._node.members.unreadable}"
        if self.has_left(own.incarnation) or not (self.refuses(own.incarnation) or self._struck_by):
            return ""
        return f"this node, {own.name} ({own.incarnation:016x}), {STRUCK_TEXT}"

    def advance(self, now: float) -> None:
        """Nobody waits for those who are members no more, whoever has said so. They are told of it first, and
        one that leaves hears that it may.
        """
        for incarnation, _, _ in self._node.rows.struck.all():
            seen_at = self._seen_at.setdefault(incarnation, now)
            if now - seen_at >= DROP_S and incarnation not in self._dropped:
                self._dropped.add(incarnation)
                self._node.incoming.forget(incarnation)
                self._links.drop(incarnation)

    def strike_off(self, settled: Collection[int], now: float) -> None:
        """Members are none any more that are absent, and hold up this node's log, where it is older than
        `absent_s` or larger than `log_bytes_max`. `settled` as for `forget`.
        """
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        why = self._what_is_too_much()
        if not why:
            return
        names = {each: name for each, _, name in self._node.rows.members.all()}
        for each in self._node.members.incarnations:
            absent = each in settled and not self._node.members.is_heard(each, now)
            if absent and self._node.stability.waits_for(each) and not self._hearer_of(each, now):
                name = names.get(each, "")
                _log.warning("%s (%016x) is struck off: it is absent, and %s", name, each, why)
                self.counts["cluster_members_struck_off"] += 1
                self._write([Strike(each, name)])

    def _what_is_too_much(self) -> str:
        """Of this node's log; empty: nothing is."""
        node, size = self._node, self._node.stability.log_size
        if size.bytes > self._patience.log_bytes_max:
            return f"the log that is kept for it has {size.bytes} bytes"
        first = node.stability.first
        if self._first[0] != first and (text := node.record(node.incarnation, first)) is not None:
            self._first = first, clock_of(text)
        age_s = (node.clock.next_ns() - self._first[1]) / 1e9 if self._first[0] == first else 0.0
        return f"a record has waited for it for {age_s:.0f} s" if age_s > self._patience.absent_s else ""


def struck_word(node: Node) -> bytes:
    """What one that is no member is told, as `Membership.hear_struck` takes it."""
    return encode(_SAID, *_side_of(node), node.rows.vector, node.own.address)


def _side_of(node: Node) -> tuple[int, int]:
    """What decides who begins anew of two sides that have struck each other off: how many members it has, and
    the first of them.
    """
    members = node.members.incarnations
    return len(members), members[0]
