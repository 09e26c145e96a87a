"""Records that are missing: whom to ask, and when again; what was sent lately, and what other nodes than
their own can give.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from tidemq.cluster.incoming import Gap
from tidemq.cluster.members import BEAT_S
from tidemq.cluster.records import dot_of
from tidemq.cluster.vectors import Vector
from tidemq.errors import ClusterError

FETCH_S, FETCH_S_MAX = 2 * BEAT_S, 2.4  # until records are asked for again, of which none has come
UNREAD_S_MAX = 10.0  # the same, while something has come that was not read
GIVEN_S = 1.5  # in which what was sent is not sent again
RECENT_BYTES_MAX = 64 << 20  # of all nodes' records that others are given, and one record more


class Holder(NamedTuple):
    """Who may have records of a node: another node, or the server of one, which has copies."""

    node: int
    copies: bool = False


class Fetch:
    """Records of one node that were asked for: until when no others are, and who is asked."""

    def __init__(self) -> None:
        self._first = self._last = 0
        self._at = self._wait_s = 0.0
        self._round_s = FETCH_S  # for who is asked for the first time; longer when all have been asked
        self._is_answered = False
        self._asked: Holder | None = None
        self._itself: Holder | None = None
        self._passed: list[Holder] = []  # that were asked, and gave nothing

    def is_due(self, gap: Gap, now: float, holders: Collection[Holder], *, unread: bool = False) -> bool:
        """Whether these are to be asked for now: at first, when the last question has been answered, or when
        its answer does not go on, or who was asked is not among the `holders` any more. Who is asked may have
        much to do, and would answer each question; and where messages are `unread`, the answer may be among
        them.
        """
        asked, goes_on = gap.first <= self._last, gap.first > self._first
        if asked and goes_on:
            self._first, self._at, self._wait_s = gap.first, now, FETCH_S
        self._is_answered |= goes_on
        wait_s = max(self._wait_s, UNREAD_S_MAX) if unread else self._wait_s
        if asked and now - self._at < wait_s and self._asked in holders:
            return False
        if asked and not self._is_answered and self._asked is not None:
            self._pass_over(self._asked)
        self._first, self._last, self._at = gap.first, gap.last, now
        return True

    def _pass_over(self, holder: Holder) -> None:
        """It has not answered. The node itself has all that is missing: it is asked some more times."""
        if holder != self._itself or self._wait_s >= FETCH_S_MAX:
            self._passed.append(holder)
            self._asked = None

    def choose(self, holders: Sequence[Holder], itself: Holder) -> Holder:
        """Whom to ask now: who has answered, else the first of these who was not asked yet. `itself`: the
        node whose records they are.
        """
        self._itself = itself
        if self._asked is None or self._asked not in holders:
            left = [each for each in holders if each not in self._passed]
            if not left:
                self._passed.clear()
                self._round_s = min(2 * self._round_s, FETCH_S_MAX)
            self._asked, self._wait_s = (left or holders)[0], self._round_s
        elif self._is_answered:
            self._wait_s = self._round_s = FETCH_S
        else:
            self._wait_s = min(2 * self._wait_s, FETCH_S_MAX)
        self._is_answered = False
        return self._asked


class Given:
    """What was sent to whom lately: who asks again may do so because the answer is on its way."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, int], list[tuple[int, int, float]]] = {}  # first and last, and when

    def rest(self, to: int, incarnation: int, first: int, now: float) -> int:
        """The first of these records that was not sent to a node lately."""
        lately = [each for each in self._pieces.get((to, incarnation), ()) if now - each[2] < GIVEN_S]
        self._pieces[to, incarnation] = lately
        for begin, end, _ in sorted(lately):
            if begin <= first <= end:
                first = end + 1
        return first

    def note(self, to: int, incarnation: int, piece: tuple[int, int], now: float) -> None:
        """Those from the first to the last of a piece were sent, after `rest` was asked."""
        self._pieces[to, incarnation].append((*piece, now))

    def keep(self, members: Collection[int]) -> None:
        """Of these nodes alone."""
        self._pieces = {each: pieces for each, pieces in self._pieces.items() if each[0] in members}


class RecentRecords:
    """The last that have come of each other node, as they came: for a third one that did not hear them, when
    their node is not there to be asked, nor who has its copies. What all members have goes.
    """

    def __init__(self) -> None:
        self._texts: dict[int, deque[tuple[int, bytes]]] = {}
        self._bytes: Counter[int] = Counter()

    def note(self, text: bytes) -> None:
        """It has come; what is no record is not kept."""
        try:
            incarnation, number = dot_of(text)
        except ClusterError:
            return
        self._texts.setdefault(incarnation, deque()).append((number, text))
        self._bytes[incarnation] += len(text)
        while self._bytes.total() > RECENT_BYTES_MAX and len(text) < self._bytes.total():
            self._drop_first(max(self._bytes, key=self._bytes.__getitem__))

    def drop_stable(self, stable: Vector) -> None:
        """What all members have, up to these records."""
        for each, texts in self._texts.items():
            while texts and texts[0][0] <= stable.get(each, 0):
                self._drop_first(each)

    def _drop_first(self, incarnation: int) -> None:
        self._bytes[incarnation] -= len(self._texts[incarnation].popleft()[1])

    def find(self, incarnation: int, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Those of a node that are among these, with their numbers, in the order in which they came."""
        return (each for each in self._texts.get(incarnation, ()) if first <= each[0] <= last)

    def keep(self, members: Collection[int]) -> None:
        """Those of these nodes alone."""
        for each in [each for each in self._texts if each not in members]:
            del self._texts[each]
            del self._bytes[each]
