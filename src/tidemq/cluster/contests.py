"""Sessions that two nodes have had, neither knowing of the other, as in a split; on the keeper's thread.

That of the client's last CONNECT goes on, or else what was made of it last (`applying.py`), with one
exception. Where a node is not heard any more another one takes its sessions, whose clients may be connected
to it all the time: on both sides of a split. When it hears of that it takes them back as they were. Else
each split would disconnect all clients, and what was in flight to them would come again. So it would to a
client whose connection has just ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemq.cluster.conversion import Conversion
from tidemq.cluster.departures import Departures
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Operation, Owner, PutSession, Stamp, Subscribe

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess


class Contests:
    """`write` makes one batch durable. `share`: another node has had this client's session, and takes
    messages for it still. `counts`: `cluster_sessions_kept`, `cluster_subscriptions_kept`.
    """

    def __init__(
        self,
        node: Node,
        conversion: Conversion,
        access: StoreAccess,
        departures: Departures,
        write: Callable[[list[Operation]], None],
        share: Callable[[str], None],
    ) -> None:
        self._node = node
        self._conversion = conversion
        self._access = access
        self._departures = departures
        self._write = write
        self._share = share
        self._kept: dict[tuple[str, int], float] = {}  # whose sessions, from whom, and when; in this order
        self.counts: Counter[str] = Counter()

    def keep_connected(self, now: float) -> None:
        """Sessions that other nodes have taken without their clients, who are connected here and have not
        been anywhere else, stay here: as they were, under higher epochs of the same CONNECT. So do those
        whose connection here was their last one and has ended, with something in flight: it would come again.
        """
        self._forget_kept(now)
        overruled, kept = self._node.applier.overruled, []
        for client, before in overruled.items():
            session = self._node.rows.sessions.get(client, None)
            if session is not None and self._may_keep(before, session.row):
                epoch = Stamp(session.row.epoch.clock + 1, self._node.incarnation)
                place = max(before.next_sequence, session.row.next_sequence)
                row = replace(before, epoch=epoch, begins=False, next_sequence=place)
                kept.append((row, session.row.home))
        overruled.clear()  # what is not stored now goes: the engine goes on under epochs that do not count
        if kept:
            self._write([row for row, _ in kept])
        for row, taker in kept:
            self.counts["cluster_sessions_kept"] += 1
            self._kept[row.client, taker] = now
            self._conversion.begin_epoch(row)
            self._share(row.client)

    def _may_keep(self, before: PutSession, now: PutSession) -> bool:
        """Not a session that was kept a moment ago: a node that takes it again then does not hear this one,
        although it hears of what this one does, and would go on like this.
        """
        client, departures = before.client, self._departures
        leaves = departures.still_takes(client) or departures.is_asked_for(client)
        if leaves or departures.is_forgetting(client) or (client, now.home) in self._kept:
            return False
        ours = self._conversion.epoch(client) == before.epoch and before.epoch < now.epoch
        if not ours or now.connected != before.connected:
            return False
        flies = bool(before.flights) and before.connected.incarnation == self._node.incarnation
        return flies or self._access.is_online(client.encode())

    def _forget_kept(self, now: float) -> None:
        """No node takes a session of one that it has heard within `cluster_suspect_s`."""
        since = now - self._node.members.suspect_s
        while self._kept and self._kept[oldest := next(iter(self._kept))] < since:
            del self._kept[oldest]

    def doubt(self, clients: Iterable[str]) -> None:
        """Clients whose sessions are here, and who have been connected to another node that had them, too:
        they may hold packet identifiers of messages that are not known here.
        """
        rows, changed = self._node.rows, []
        for client in clients:
            session = rows.sessions.get(client, None)
            if session is not None and self._conversion.has_current(client) and not session.row.unasked:
                changed.append(replace(session.row, begins=False, unasked=True))
        if changed:
            self._write([*changed])
        for row in changed:
            number = self._conversion.number(Owner(SESSION, row.client))
            if number:
                self._access.clear_identifiers(number)

    def subscribe_again(self) -> None:
        """Subscriptions of sessions that are here, which a later change has replaced that does not count, as
        it was in a session that had ended: they are made again, later than that.
        """
        rows, shadowed, again = self._node.rows, self._node.applier.shadowed, []
        for (client, topic_filter), row in shadowed.items():
            now = rows.subscriptions.get(client, topic_filter)
            is_lost = now is not None and rows.is_hidden(client, now.dot)
            if is_lost and row.options is not None and self._conversion.has_current(client):
                stamp = self._node.stamp()
                again.append(Subscribe(client, topic_filter, stamp, row.options, row.subscription_id))
        if again:
            self._write([*again])
        self.counts["cluster_subscriptions_kept"] += len(again)
        shadowed.clear()
