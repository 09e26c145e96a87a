"""To know what others had done at some moment, as far as they are there."""

from __future__ import annotations

import time
from collections.abc import Callable

from tidemq.cluster.node import Node
from tidemq.errors import StoreError

AT_MOST_S = 5.0  # in which others' records must come
PAUSE_S = 0.001  # between two looks


class CatchingUp:
    """Begins at `now`, seconds of the monotonic clock. Who is there then is waited for.

    A node's heartbeats and records come in the order in which it sent them. When a heartbeat has come after
    `now`, the last record of then has come before it, or the heartbeat says that there is one. It may say of
    less than has come: it is said again while the node's keeper waits for its disk.
    """

    def __init__(self, node: Node, now: float) -> None:
        self._node = node
        self._began_at = now
        self._others = {each for each in node.members.live(now) if each != node.incarnation}
        self._last: dict[int, int] = {}  # record that is to be applied here, of those who have said so

    def is_over(self) -> bool:
        """Whether all of it has been applied."""
        for member in self._node.members.known():
            who = member.beat.incarnation
            if member.heard_at > self._began_at and who not in self._last:
                self._last[who] = max(member.beat.number, self._node.incoming.highest(who))
        vector = self._node.rows.vector
        return all(each in self._last and vector.get(each, 0) >= self._last[each] for each in self._others)


def catch_up(node: Node, is_open: Callable[[], bool], go_on: Callable[[], None]) -> None:
    """Does `go_on`, which applies what comes, for as long as something is open that a record may tell which
    was there already. StoreError where such a record has not come in time.
    """
    began_at = time.monotonic()
    catching_up = CatchingUp(node, began_at)
    while is_open() and not catching_up.is_over():
        if time.monotonic() > began_at + AT_MOST_S:
            raise StoreError(f"what other nodes did has not come within {AT_MOST_S:g} s")
        go_on()
        time.sleep(PAUSE_S)
