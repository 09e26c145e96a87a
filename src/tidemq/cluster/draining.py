"""A node that leaves: its sessions go to the others first, then nobody waits for it any more.

What remains in its store is at the others, too. Started again it begins anew (`rejoining.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal

from tidemq.cluster.exchange import Exchange
from tidemq.cluster.links import Links
from tidemq.cluster.moves import TAKE, Moves
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Operation, Strike
from tidemq.cluster.rejoining import note_leaving
from tidemq.cluster.sessions import sessions_of
from tidemq.errors import ClusterError
from tidemq.store import Store

UNDER_WAY_MAX = 256  # sessions that other nodes have been told to take
AGAIN_S = 2.0  # until another node is told, where the first has not taken one
LOOK_S = 0.5  # between two looks at all sessions

Phase = Literal["", "moving", "leaving", "left"]


class Draining:
    """Of one node, on the keeper's thread. `write` makes one batch durable."""

    def __init__(
        self,
        node: Node,
        moves: Moves,
        exchange: Exchange,
        links: Links,
        store: Store,
        write: Callable[[list[Operation]], None],
    ) -> None:
        self._node = node
        self._moves = moves
        self._exchange = exchange
        self._links = links
        self._store = store
        self._write = write
        self.phase: Phase = ""  # empty: the node stays
        self.sessions_left = 0  # as of the last look
        self._told: dict[str, float] = {}  # sessions that others were told to take, and when
        self._turns = itertools.count()
        self._sessions: Iterator[str] = iter(())
        self._seen = 0
        self._looked_at = 0.0
        self._none_left = False

    def begin(self, now: float) -> None:
        """ClusterError where nobody could take the sessions."""
        if not self._others(now):
            raise ClusterError("no other node is alive, so there is none that could take the sessions")
        if not self.phase:
            self.phase = "moving"
            self._moves.keeps_none = True

    @property
    def is_settled(self) -> bool:
        """Whether nothing is here any more that others have not."""
        return self.phase != "" and self._none_left and self._moves.is_quiet

    @property
    def is_member(self) -> bool:
        """Whether the node has not said its last word."""
        return self.phase in ("", "moving")

    def leave(self) -> None:
        """The node's last word."""
        own = self._node.own
        addresses = [each.beat.address for each in self._node.members.known()]
        note_leaving(self._store, addresses)
        self._write([Strike(own.incarnation, own.name)])
        self.phase = "leaving"

    def advance(self, now: float) -> None:
        """Does what can be done now."""
        if self.phase == "moving":
            self._move(now)
        elif self.phase == "leaving" and self._exchange.all_have(self._node.last, now):
            self.phase = "left"

    def _others(self, now: float) -> list[int]:
        return [each for each in self._node.members.live(now) if each != self._node.incarnation]

    def _is_here(self, client: str) -> bool:
        session = self._node.rows.sessions.get(client, None)
        return session is not None and session.row.home == self._node.incarnation

    def _move(self, now: float) -> None:
        others = self._others(now)
        for client, told_at in list(self._told.items()):
            if not self._is_here(client):
                del self._told[client]
            elif now - told_at > AGAIN_S and others:
                self._tell(client, others, now)
        while others and len(self._told) < UNDER_WAY_MAX:
            found = next(self._sessions, None)
            if found is None:
                self._look_again(now)
                return
            self._seen += 1
            if found not in self._told:
                self._tell(found, others, now)

    def _look_again(self, now: float) -> None:
        if now - self._looked_at >= LOOK_S:
            self._none_left = self._seen == 0 and not self._told
            self.sessions_left = max(self._seen, len(self._told))
            self._looked_at, self._seen = now, 0
            self._sessions = sessions_of(self._node.rows, self._node.incarnation)

    def _tell(self, client: str, others: list[int], now: float) -> None:
        self._told[client] = now
        self._links.send(others[next(self._turns) % len(others)], TAKE, client.encode())
