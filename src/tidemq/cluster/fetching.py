"""Records that are missing: when they are asked for again, and what other nodes than their own can give."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from tidemq.cluster.incoming import Gap
from tidemq.cluster.members import BEAT_S
from tidemq.cluster.records import dot_of
from tidemq.errors import ClusterError

FETCH_S_MAX = 2.4  # until records are asked for again, of which none has come
RECENT_BYTES_MAX = 2 << 20  # of one node's records that others are given, and one record more


class Fetch:
    """Records of one node that were asked for: until when no others are."""

    def __init__(self) -> None:
        self._first = self._last = 0
        self._at = self._wait_s = 0.0

    def is_due(self, gap: Gap, now: float) -> bool:
        """Whether these are to be asked for now: at first, when the last question has been answered, or when
        its answer does not go on. Who is asked may have much to do, and would answer each question.
        """
        asked, goes_on = gap.first <= self._last, gap.first > self._first
        if asked and goes_on:
            self._first, self._at, self._wait_s = gap.first, now, 2 * BEAT_S
        if asked and now - self._at < self._wait_s:
            return False
        again = asked and not goes_on
        self._wait_s = min(2 * self._wait_s, FETCH_S_MAX) if again else BEAT_S
        self._first, self._last, self._at = gap.first, gap.last, now
        return True


class RecentRecords:
    """The last that have come of each other node, as they came: for a third one that did not hear them, when
    their node is not there to be asked, nor who has its copies.
    """

    def __init__(self) -> None:
        self._texts: dict[int, deque[tuple[int, bytes]]] = {}
        self._bytes: dict[int, int] = {}

    def note(self, text: bytes) -> None:
        """It has come; what is no record is not kept."""
        try:
            incarnation, number = dot_of(text)
        except ClusterError:
            return
        texts = self._texts.setdefault(incarnation, deque())
        texts.append((number, text))
        size = self._bytes.get(incarnation, 0) + len(text)
        while size > RECENT_BYTES_MAX and len(texts) > 1:
            size -= len(texts.popleft()[1])
        self._bytes[incarnation] = size

    def find(self, incarnation: int, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Those of a node that are among these, with their numbers, in the order in which they came."""
        return (each for each in self._texts.get(incarnation, ()) if first <= each[0] <= last)

    def keep(self, members: Collection[int]) -> None:
        """Those of these nodes alone."""
        for each in [each for each in self._texts if each not in members]:
            del self._texts[each]
            del self._bytes[each]
