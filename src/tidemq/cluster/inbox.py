"""What has come from other nodes, and from this node's own `nats-server`, and waits for the keeper."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidemq.cluster.exchange import BEAT

CAME_MAX = 16_384  # messages of other nodes that wait
CAME_BYTES_MAX = 256 << 20  # of these, and one message more
FETCHED, LAST = "fetched", "last"  # what this node has asked for itself
REACHED = "reached"


class Inbox:
    """`take_…` are for the transport's thread and poke the keeper, all else is for its thread. `counts`:
    `cluster_messages_unread`, for which there was no place.
    """

    def __init__(self, poke: Callable[[], object], counts: Counter[str]) -> None:
        self._poke = poke
        self._counts = counts
        self._came: deque[tuple[str, int, Any, float]] = deque()  # kind, whose, body, when
        self._bytes_in = self._bytes_out = 0  # of all that ever came, and was taken; each on its own thread
        self._copies: deque[tuple[bool, int, int]] = deque()  # whether there or lost, whose, number
        self._seen: set[int] = set()  # messages that were seen out of turn

    def take_in(self, kind: str, source: int, body: bytes) -> None:
        """A message of another node."""
        self._take((kind, source, body))

    def take_fetched(self, holder: int, records: Sequence[bytes]) -> None:
        """Copies that were asked for."""
        self._take((FETCHED, holder, records))

    def take_last(self, incarnation: int, number: int) -> None:
        """This node's own server has copies up to this record."""
        self._take((LAST, incarnation, number))

    def take_reached(self, incarnation: int, *, is_reached: bool) -> None:
        """This node can send to another one, or no more."""
        self._take((REACHED, incarnation, is_reached))

    def take_copied(self, to: int, number: int) -> None:
        """Another node has copies up to this record."""
        self._copies.append((True, to, number))
        self._poke()

    def take_lost(self, to: int, first: int) -> None:
        """Another node has no copies from this record on."""
        self._copies.append((False, to, first))
        self._poke()

    def _take(self, message: tuple[str, int, Any]) -> None:
        # a heartbeat that is dropped might be the one that shows that its node is there
        is_full = len(self._came) >= CAME_MAX or self._bytes_in - self._bytes_out >= CAME_BYTES_MAX
        if len(self._came) >= 2 * CAME_MAX or (is_full and message[0] not in (BEAT, REACHED)):
            self._counts["cluster_messages_unread"] += 1  # what matters is asked for again
            return
        self._bytes_in += _bytes_of(message[2])
        self._came.append((*message, time.monotonic()))
        self._poke()

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._came)

    def since(self) -> float:
        """When the oldest that waits has come, of the monotonic clock; infinite: there is none."""
        return self._came[0][3] if self._came else math.inf

    def next(self) -> tuple[str, int, Any, float]:
        """The oldest: kind, whose, body, and when it came. There must be one."""
        self._seen.clear()
        message = self._came.popleft()
        self._bytes_out += _bytes_of(message[2])
        return message

    def unseen(self, kind: str) -> list[tuple[int, Any]]:
        """All of this kind that wait, each once until `next` is called: whose, and body."""
        new = [each for each in list(self._came) if each[0] == kind and id(each) not in self._seen]
        self._seen.update(map(id, new))
        return [(source, body) for _, source, body, _ in new]

    def copies(self) -> Iterator[tuple[bool, int, int]]:
        """What was said of copies: are they there, at whom, and up to (or, lost: from) which record."""
        while self._copies:
            yield self._copies.popleft()


def _bytes_of(body: Any) -> int:
    if isinstance(body, bytes):
        return len(body)
    return sum(map(len, body)) if isinstance(body, list) else 0
