"""What the engine says of sessions that left it, or came, and of shared groups, is followed: once, in order,
and later where the store cannot be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemq.cluster.moves import Moves
from tidemq.cluster.shared_queues import SharedQueues
from tidemq.cluster.telling import Telling
from tidemq.errors import StoreError

if TYPE_CHECKING:
    from tidemq.engine import StoreWork


class Following:
    """On the keeper's thread."""

    def __init__(self, moves: Moves, telling: Telling, shared: SharedQueues) -> None:
        self._moves = moves
        self._telling = telling
        self._shared = shared
        self._gone: deque[tuple[bytes, int, bool]] = deque()  # client, its next place, whether it is here
        self._come: deque[tuple[bytes, bool]] = deque()  # client, whether it is here

    def follow(self, work: StoreWork, *, rows_left: bool) -> None:
        """`rows_left`: there are rows that could not be stored yet, maybe of sessions that have left: what
        these did comes first. StoreError where something is to be followed later.
        """
        for number in work.let_go:
            self._shared.let_go(number)
        self._shared.given(work.given)
        self._gone += work.left
        self._come += work.arrived
        if not rows_left:
            self._each(self._gone, self._follow_gone)
        self._each(self._come, self._follow_come)

    def _each(self, waiting: deque[Any], follow: Callable[..., None]) -> None:
        while waiting:
            first = waiting.popleft()
            try:
                follow(*first)
            except StoreError:
                waiting.appendleft(first)
                raise

    def _follow_gone(self, client: bytes, place: int, here: bool) -> None:
        self._moves.departures.left(client.decode(), place, here=here)

    def _follow_come(self, client: bytes, here: bool) -> None:
        self._moves.arrived(client.decode(), here)
        self._telling.arrived(client.decode())
