"""Sessions that no engine has for a moment: what is published for them waits for their home; on the keeper's
thread. How it waits is in `holding.py`.

A session that was to be taken from a node that is dead may stay there: that node is heard again, or is
another one's to take over. Then it is in no engine here, and it is not known yet what its home wants, until
this node has opened to that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from tidemq.cluster.interest import matched_filter
from tidemq.cluster.links import Links
from tidemq.cluster.move_states import Round
from tidemq.cluster.node import Node

LOOKS_AT_ONCE = 1024  # between two pieces of work


class HeldSessions:
    """`counts`: `cluster_sessions_held`."""

    def __init__(self, node: Node, links: Links, counts: Counter[str]) -> None:
        self._node = node
        self._links = links
        self._homes: dict[str, int] = {}  # of clients, for as long as what is published for them waits
        self._round = Round()
        self._counts = counts

    def hold(self, client: str, home: int) -> bool:
        """Has what is published for a session wait for its home; whether it does by now."""
        self._counts["cluster_sessions_held"] += client not in self._homes
        self._homes[client] = home
        filters = [matched_filter(each) for each, _ in self._node.rows.filters(client)]
        return self._links.hold(client, home, [each for each in filters if not each.startswith("$share/")])

    def advance(self, coming: Container[str]) -> None:
        """Ends it for sessions that are not `coming`, where somebody takes what is published for them."""
        if not self._homes:
            return
        apart = self._links.apart()
        for client in self._round.some(self._homes, LOOKS_AT_ONCE):
            if client not in self._homes or client in coming:
                continue
            standing = self._node.rows.standing(client)
            if standing is None or standing.home not in apart:
                del self._homes[client]
                self._links.let_go(client)
            elif standing.home != self._homes[client]:
                self.hold(client, standing.home)
