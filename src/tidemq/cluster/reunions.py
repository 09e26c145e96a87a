"""Nodes that did not hear each other for a while begin anew; on the keeper's thread.

Meanwhile sessions have moved, and whoever was not heard has been passed over: it does not know where to, and
has sent messages to their old homes. So what the two had sent each other and not answered is void: publishers
are refused, who may send it again. The two go on when each hears all that the other hears, knows what these
want, and has applied what they did: as a node does that begins.

From then on publishers send to both, and both sides may have a session, until each has applied what the other
did. So from the moment on that they hear each other all sessions are shared (`Sharing.everybody`).
"""

from __future__ import annotations

import logging
from math import inf

from tidemq.cluster.interest import matched_filter
from tidemq.cluster.links import Links
from tidemq.cluster.node import Node
from tidemq.cluster.sessions import sessions_of

MEET_S = 20.0  # in which a node and those that are there hear what each of them wants

_log = logging.getLogger("tidemq.cluster")


class Reunions:
    """Of one node."""

    def __init__(self, node: Node, links: Links) -> None:
        self._node = node
        self._links = links
        self._silent: set[int] = set()
        self._back: set[int] = set()  # nodes that are heard again, and to which this one has not opened
        self._back_at = 0.0
        self._reach: dict[int, int] = {}  # records of all that are there, as of then
        self._unaware: dict[int, int] = {}  # of opened ones: the last record here, until they have applied it
        self._expected: dict[int, bool] = {}  # nodes that were not there: whether anything is for them

    def passed_over(self) -> list[int]:
        """Nodes that are not waited for until they know something."""
        apart = self._silent.union(self._links.apart())
        return [each for each in self._node.members.incarnations if each in apart]

    def meeting(self) -> set[int]:
        """Nodes that are heard again, and hear this one, but do not know yet what all have done."""
        return {each for each in self._back if self._node.members.is_heard_by(each)}

    def may_serve(self, now: float) -> bool:
        """Whether a message that is published here goes to all nodes that want it, or waits for them."""
        if not self.has_met_all(now):
            return False
        there = {*self._others(now), self._node.incarnation}
        silent = [each for each in self._node.members.incarnations if each not in there]
        for each in silent:
            if each not in self._expected:
                filters = self._filters_of(each)
                self._expected[each] = bool(filters)
                if filters:
                    self._links.expect(each, filters)
        apart = self._links.apart()
        return all(each in apart for each in silent if self._expected[each])

    def _filters_of(self, home: int) -> list[str]:
        """To which the sessions there are subscribed, as far as this node knows."""
        rows = self._node.rows
        clients = sessions_of(rows, home)
        return sorted({matched_filter(each) for client in clients for each, _ in rows.filters(client)})

    def has_met_all(self, now: float) -> bool:
        """Whether a message that is published here goes to all nodes that want it."""
        members = self._node.members
        return members.has_met_all(now) and all(map(self._links.has_met, self._others(now)))

    def _others(self, now: float) -> list[int]:
        return [each for each in self._node.members.live(now) if each != self._node.incarnation]

    def advance(self, now: float, *, opens: bool) -> None:
        """Parts with nodes that are not heard any more, opens to those that are heard again; not before it
        `opens`, or after `MEET_S`.
        """
        members, there = self._node.members, set(self._others(now))
        silent = set(members.incarnations) - there - {self._node.incarnation}
        for each in silent - self._silent:
            self._links.part(each)
        self._silent = silent
        back = there.intersection(self._links.apart())
        if back - self._back:
            self._back_at = now
            beats = [member.beat for member in members.known()]
            self._reach = {beat.incarnation: beat.number for beat in beats if beat.incarnation in there}
        self._back = back
        knows_all = opens and bool(back) and self._knows_all(now)
        if knows_all or (back and now - self._back_at > MEET_S):
            if not knows_all:
                _log.warning("not all nodes have said what they want: what is published here may miss them")
            for each in back:
                self._links.open(each)
                self._unaware[each] = self._node.last
        self._unaware = {each: number for each, number in self._unaware.items() if each in there}
        if self._unaware:
            self._drop_aware()
        self._node.sharing.everybody = bool(back or self._unaware)

    def _drop_aware(self) -> None:
        for member in self._node.members.known():
            beat = member.beat
            if beat.applied.get(self._node.incarnation, 0) >= self._unaware.get(beat.incarnation, inf):
                del self._unaware[beat.incarnation]

    def _knows_all(self, now: float) -> bool:
        vector = self._node.rows.vector
        known = all(vector.get(each, 0) >= number for each, number in self._reach.items())
        return known and self.has_met_all(now)
