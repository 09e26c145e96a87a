"""Answers that the engine is owed for its works, in their order: when what they did has its copies."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemq.cluster.links import Links
from tidemq.cluster.promises import Promises
from tidemq.cluster.refusal import Refusal

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess, StoreWork


@dataclass(frozen=True, slots=True)
class _Owed:
    """For all up to a record, and for what was announced, as of `Links.announce`; 0: nothing was."""

    number: int
    work: StoreWork
    reason: int
    announced: int


class Owed:
    """On the keeper's thread."""

    def __init__(self, access: StoreAccess, links: Links, counts: Counter[str]) -> None:
        self._access = access
        self._links = links
        self._answers: deque[_Owed] = deque()
        self._refusal = Refusal(counts)
        self.kept = 0  # the last record whose promises are kept

    def __bool__(self) -> bool:
        return bool(self._answers)

    def add(self, number: int, work: StoreWork, reason: int, *, announces: bool) -> None:
        """One more, when what was done up to this record has its copies. `announces`: and other nodes know
        what they are to send here.
        """
        announced = self._links.announce() if announces else 0
        self._answers.append(_Owed(number, work, reason, announced))

    def settle(self, promises: Promises, now: float, otherwise: int | None, *, pauses: bool) -> None:
        """Answers works whose promises can be kept. `otherwise`, `pauses`: as in `Refusal.follow`."""
        for kept in promises.take(now):
            self.kept = kept.number
            self._refusal.note(kept)
        self._refusal.follow(promises, self._access, otherwise, pauses=pauses)
        while self._answers and (first := self._answers[0]).number <= self.kept:
            if first.announced and self._links.announced(first.announced) is None:
                return
            self._answers.popleft()
            if self._refusal.covers(first.number) and not first.reason:
                self._access.answer_uncopied(first.work)
            else:
                self._access.answer(first.work, first.reason)
        self._refusal.forget_before(self._answers[0].number if self._answers else self.kept)

    def answer_all(self) -> None:
        """There is no more to wait for."""
        while self._answers:
            first = self._answers.popleft()
            self._access.answer(first.work, first.reason)
