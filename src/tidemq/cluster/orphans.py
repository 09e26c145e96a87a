"""Sessions of nodes that are dead: they go to the next node in the ring; on the keeper's thread."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterator

from tidemq.cluster.forms import decode, encode
from tidemq.cluster.links import Links
from tidemq.cluster.members import next_in_ring
from tidemq.cluster.node import Node

TOOK = "took"  # all know where messages for a dead node's sessions go
FIRST_S = 5.0  # after the start, until a member that was never heard counts as dead
TAKEN_AT_ONCE = 64  # sessions of a dead node, between two pieces of work
LOOKED_AT_ONCE = 8192  # sessions, whose home they may have
LOOK_S = 0.5  # between two looks whether any is left
LATE_S = 30.0  # in which sessions are taken that a dead node has had besides those that were known
LACKS_S = 30.0  # until records of a dead node that do not come count as lost

_log = logging.getLogger("tidemq.cluster")


class Orphans:
    """`bring`: a session is to come here. `brings`: whether one is on its way that nobody was asked for.
    `leaves`: whether one waits until the engine has given up what it has of it.
    """

    def __init__(
        self,
        node: Node,
        links: Links,
        bring: Callable[[str], None],
        brings: Callable[[], bool],
        leaves: Callable[[], bool],
        now: float,
    ) -> None:
        self._node = node
        self._links = links
        self._bring = bring
        self._brings = brings
        self._leaves = leaves
        self._begun_at = self._looked_at = now
        self._waiting: dict[int, Iterator[tuple[str, int]]] = {}  # sessions and their homes, by dead node
        self._last: dict[int, int] = {}  # of dead nodes the last record that this node's own server has named
        self._brought: set[int] = set()  # dead nodes of which all that were found have been brought
        self._said: set[int] = set()  # those of which the log has it
        self._settled: set[int] = set()  # dead nodes that have none any more
        # nodes that had none any more when they were heard again: until what they want counts here
        self._unopened: set[int] = set()
        self._lacking: dict[int, float] = {}  # those of which records are missing, and since when
        self._given_up: set[int] = set()  # those of which they do not come, and no session is known
        self._took: dict[int, int] = {}  # those whose sessions came here: when all know, by `announce`
        self._told: set[int] = set()  # those of which another node says that all know where its sessions are
        self.late: dict[int, float] = {}  # those that had none any more, and have some again; since when
        self.mine: list[int] = []  # dead nodes whose sessions and queues are this node's to take

    @property
    def is_searching(self) -> bool:
        """Whether what is published may be nobody's, as sessions are not found yet that are known here, of
        nodes for which nobody waits any more.
        """
        return any(each in self.mine and each not in self._brought for each in self.late)

    @property
    def settled(self) -> Collection[int]:
        """Dead nodes whose sessions are all elsewhere by now, as far as that will ever be known."""
        return self._settled | self._given_up

    def hear_took(self, body: bytes) -> None:
        """Another node has taken a dead one's; ClusterError where that is no message. Where some are there by
        what is known here, that one does not know of these.
        """
        dead: int = decode("Q", body)[0]
        if not self._node.rows.count_at(dead):
            self._told.add(dead)

    def hear_of(self, client: str) -> None:
        """A record of another node says something of a session. If it is at home on a dead node it comes at
        once, whether that one was searched before or not: nobody may wait for it any more.
        """
        standing = self._node.rows.standing(client)
        if standing is not None and standing.home in self.mine:
            self._bring(client)

    def hear_last(self, incarnation: int, number: int) -> None:
        """This node's own server has copies up to this record of a node; 0: none. What is missing here is
        fetched.
        """
        self._last[incarnation] = number
        missing = number - self._node.rows.vector.get(incarnation, 0)
        if missing > 0:
            _log.warning(
                "%d records of node %016x are read from this node's nats-server", missing, incarnation
            )
            self._node.incoming.hear_of({incarnation: number})

    def advance(self, now: float, *, pauses: bool) -> None:
        """Brings some of the sessions of each whose next in the ring this node is, unless it `pauses`."""
        if pauses:
            self.mine = []
            return
        dead, live = self._dead(now), self._node.members.live(now)
        for each in [each for each in self._waiting if each not in dead]:
            del self._waiting[each]
        self._unopened |= self._settled.difference(dead)
        if self._unopened:
            self._unopened.intersection_update(self._links.apart())
        for those in (self._brought, self._said, self._settled, self._told, self._given_up):
            those.intersection_update(dead)
        self._lacking = {each: since for each, since in self._lacking.items() if each in dead}
        self._last = {each: number for each, number in self._last.items() if each in dead}
        self._took = {each: number for each, number in self._took.items() if each in dead}
        self._see_who_is_late(dead, now)
        self.mine = [each for each in dead if next_in_ring(live, each) == self._node.incarnation]
        for each in self.mine:
            if each not in self._settled:
                self._take_over(each)
        if now - self._looked_at > LOOK_S:
            self._looked_at = now
            for each in self.mine:
                if self._node.rows.count_at(each) and each in self._brought and not self._brings():
                    # sessions that came too late to be found, or could not be taken
                    self._waiting.pop(each, None)
                    self._brought.discard(each)
            if self._leaves():
                # a session does not leave while its client is owed an answer, which a dead node owes us
                for each in dead:
                    self._links.refuse(each)
            for each in dead:
                if each not in self._last and self._node.rows.struck.get(each, None) is None:
                    self._links.ask_for_last(each)
            # where they went may not be known yet, nor who has what is held for another one
            waits = any(now - since < LATE_S for since in self.late.values())
            if not waits and not any(each in live for each in self._links.apart()):
                left = [each for each in dead if each not in self._settled]
                self._settle([each for each in left if not self._lacks(each, live, now)])
            for each in self._settled.intersection(self.mine):
                self._links.broadcast(TOOK, encode("Q", each))  # again and again: it may be lost

    def _see_who_is_late(self, dead: Collection[int], now: float) -> None:
        """Nodes that were on another side of a split know of sessions that a dead one had there, or has taken
        there, when those that were known here had gone on elsewhere; also where it was heard meanwhile, too
        short a time to go on.
        """
        doubtful = self._settled | self._unopened.intersection(dead).difference(self.late)
        for each in [each for each in doubtful if self._node.rows.count_at(each)]:
            for those in (self._settled, self._brought, self._told):
                those.discard(each)
            self._took.pop(each, None)
            self._waiting.pop(each, None)
            self.late[each] = now
            _log.warning("node %016x, which is not there, has had more sessions than was known", each)
        there = (each for each in dead if self._node.rows.count_at(each))
        self.late = {each: self.late[each] for each in there if each in self.late}

    def _dead(self, now: float) -> list[int]:
        members = self._node.members
        silent = [each for each in members.incarnations if not members.is_live(each, now)]
        heard = {member.beat.incarnation for member in members.known()}
        dead = [each for each in silent if each in heard or now - self._begun_at > FIRST_S]
        return dead + [each for each, _, _ in self._node.rows.struck.all()]

    def _take_over(self, dead: int) -> None:
        if not self._node.rows.count_at(dead):
            self._waiting.pop(dead, None)
            self._brought.add(dead)
            return
        if dead not in self._said:
            self._said.add(dead)
            _log.warning("node %016x is not there: its sessions go on here", dead)
        if dead not in self._waiting:
            self._waiting[dead] = self._node.rows.homes()
        looked, found = 0, list[str]()
        for client, home in itertools.islice(self._waiting[dead], LOOKED_AT_ONCE):
            looked += 1
            found += [client] if home == dead else []
            if len(found) == TAKEN_AT_ONCE:
                break
        if not looked:
            self._brought.add(dead)
        for client in found:
            self._bring(client)

    def _settle(self, dead: list[int]) -> None:
        """Nobody waits for a dead node any more when the last of its sessions is at home elsewhere, and this
        node knows what its new home wants. Until then what is published waits for the dead one, and is then
        refused.
        """
        for each in dead:
            if self._node.rows.count_at(each):
                continue  # they are looked for
            if each not in self._told and (each not in self._brought or self._brings()):
                continue  # there were some, or another node takes them
            if each in self._told or self._has_told(each):
                self._settled.add(each)
                self._links.taken_over(each)
                if self._node.rows.struck.get(each, None) is None:
                    _log.warning("nobody waits for node %016x: its sessions are elsewhere", each)

    def _lacks(self, dead: int, live: Collection[int], now: float) -> bool:
        """Whether records of a dead node are missing. Where they do not come somebody has to say that they
        are lost, by forgetting the node: they may be about sessions that it had.
        """
        if self._has_all(dead, live):
            self._lacking.pop(dead, None)
            self._given_up.discard(dead)
            return False
        late = now - self._lacking.setdefault(dead, now) > LACKS_S
        if late and dead not in self._given_up and not self._node.rows.count_at(dead):
            self._given_up.add(dead)
            _log.warning(
                "what node %016x did last is not to be had: what is published may wait for it"
                " until it is back, or is forgotten (tidemq cluster forget)",
                dead,
            )
        return True

    def _has_all(self, dead: int, live: Collection[int]) -> bool:
        """Whether all that a dead node did is here, as far as it is to be had: it may have taken sessions. Of
        one that is a member no more nothing is waited for.
        """
        if self._node.rows.struck.get(dead, None) is not None:
            return True
        beats = [member.beat for member in self._node.members.known()]
        others = [each.applied.get(dead, 0) for each in beats if each.incarnation in live]
        last = self._last.get(dead)
        return last is not None and self._node.rows.vector.get(dead, 0) >= max([last, *others])

    def _has_told(self, dead: int) -> bool:
        """Whether all nodes know that what the dead one wanted goes here now."""
        if dead not in self.mine:
            return False
        if dead not in self._took:
            self._took[dead] = self._links.announce()
        return self._links.announced(self._took[dead]) is not None
