"""Sessions that this node has taken from another one, which it does not hear, and without their clients; on
the keeper's thread. These may be connected to that node all the time, on the other side of a split, and no
session ends while its client is connected [MQTT-4.1.0-1]. So the time of these, their Session Expiry
Interval, does not begin yet.

It begins when that node has heard of it, and what it did then is known here: sessions of clients that are
connected there it keeps (`contests.py`). Or when it is a member no more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tidemq.cluster.conversion import Conversion
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Owner, PutSession

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

AT_ONCE = 1024  # sessions whose time begins, between two pieces of work


class Unattended:
    """`may_be_elsewhere` before the engine gets a session, `add` afterwards."""

    def __init__(self, node: Node, conversion: Conversion, access: StoreAccess) -> None:
        self._node = node
        self._conversion = conversion
        self._access = access
        # by the node to which their clients were connected: record of this node that says that they are here
        self._taken: dict[int, deque[tuple[int, str]]] = {}

    def may_be_elsewhere(self, row: PutSession) -> bool:
        """Whether its client was connected to a member, not to this one, when that was heard last."""
        came_to = row.connected.incarnation
        is_elsewhere = came_to != self._node.incarnation and came_to in self._node.members.incarnations
        return is_elsewhere and row.ends_at_ms == 0

    def add(self, row: PutSession) -> None:
        """The last record of this node has this row, and the engine gets the session."""
        taken = self._taken.setdefault(row.connected.incarnation, deque())
        taken.append((self._node.last, row.client))

    def advance(self) -> None:
        """Has the time of some begin."""
        members, left = self._node.members.incarnations, AT_ONCE
        for came_to, taken in list(self._taken.items()):
            is_member = came_to in members
            while taken and left:
                record, client = taken[0]
                if is_member and not self._node.stability.has_heard(came_to, record):
                    break
                left -= 1
                taken.popleft()
                number = self._conversion.number(Owner(SESSION, client))
                if number:  # else it has left, or is kept where its client is
                    self._access.let_expire(number)
            if not taken:
                del self._taken[came_to]
