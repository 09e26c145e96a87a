"""Who is a member no more: forgotten by an operator, because it will not come back, or gone by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidemq.cluster.links import Links
from tidemq.cluster.members import STRUCK_TEXT
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Operation, Strike
from tidemq.errors import ClusterError

DROP_S = 3.0


class Membership:
    """Of one node, on the keeper's thread. `write` makes one batch durable."""

    def __init__(self, node: Node, links: Links, write: Callable[[list[Operation]], None]) -> None:
        self._node = node
        self._links = links
        self._write = write
        self._seen_at: dict[int, float] = {}  # when it was seen first that they are none
        self._dropped: set[int] = set()  # that the links have been told of
        self._struck_by = 0

    def forget(self, who: str, now: float, settled: Collection[int]) -> str:
        """A node is gone for good: logs need not be kept for it any more. `who`: its name or incarnation;
        `settled`: dead nodes that have no sessions any more. Gives its name and incarnation.

        ClusterError where it is no member, may still be there, or its sessions are not elsewhere yet.
        """
        incarnation, name = self._find(who)
        shown = f"{name} ({incarnation:016x})"
        members = self._node.members
        if incarnation == self._node.incarnation:
            raise ClusterError(f"{shown} is this node: tidemq cluster drain lets it leave")
        if members.is_live(incarnation, now):
            raise ClusterError(f"{shown} is alive; a node that is to leave is drained, on itself")
        for other in members.known():
            if (
                members.is_live(other.beat.incarnation, now)
                and other.beat.peers.get(incarnation, (0, False))[1]
            ):
                raise ClusterError(f"{shown} is alive: {other.beat.name} hears it, and this node does not")
        if incarnation not in settled:
            raise ClusterError(f"sessions of {shown} are still being taken over; try again in a moment")
        self._write([Strike(incarnation, name)])
        return shown

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

    def hear_struck(self, source: int) -> None:
        """A node says that this one is a member no more. Of two that have forgotten each other none ends."""
        if not self.refuses(source):
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
