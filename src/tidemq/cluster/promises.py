"""When what is owed for a batch may be said: it is durable here, and somebody else has a copy.

Batches are under way together; their promises are kept in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

Acks = Literal["one", "two"]
Degraded = Literal["acknowledge", "refuse"]

UNDER_WAY_MAX = 64
DEGRADED_S = 1.5  # without a copy


@dataclass(slots=True)
class _Batch:
    number: int
    begun_at: float
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """A batch whose promises are settled. `degraded`: there are not the copies that there should be.
    `refused`: so its publishers are not acknowledged.
    """

    number: int
    degraded: bool
    refused: bool


class Promises:
    """`acks`: how many copies it takes. `degraded`: what becomes of a batch of which there is no second copy
    after `degraded_s`. Times are seconds of a monotonic clock.
    """

    def __init__(self, acks: Acks, degraded: Degraded, *, degraded_s: float = DEGRADED_S) -> None:
        self._two = acks == "two"
        self._degraded = degraded
        self._degraded_s = degraded_s
        self._batches: deque[_Batch] = deque()
        self._early: deque[_Batch] = deque()  # settled without a copy, not long ago
        self._copied = self._taken = 0  # the last of which there are copies; whose promises are settled
        self.is_degraded = False

    @property
    def refuses(self) -> bool:
        """Whether publishers are refused now, because there are no copies."""
        return self.is_degraded and self._degraded == "refuse"

    @property
    def problem(self) -> str:
        """What a message is acknowledged without, in words; empty: nothing that it should have."""
        if not self.is_degraded:
            return ""
        if self.refuses:
            return "no other node has copies of what is stored here: publishers of QoS 1 and 2 are refused"
        return "no other node has copies of what is stored here: it is acknowledged all the same"

    @property
    def may_begin(self) -> bool:
        """Whether one more batch may be under way."""
        return len(self._batches) < UNDER_WAY_MAX

    def begin(self, number: int, now: float) -> None:
        """A batch is written."""
        self._batches.append(_Batch(number, now))

    def durable(self, number: int) -> None:
        """All up to this one are on the disk here."""
        for batch in self._batches:
            batch.durable = batch.durable or batch.number <= number

    def copied(self, number: int) -> None:
        """The replica has all up to this one."""
        self._copied = max(self._copied, number)
        if self._copied >= self._taken:
            self.is_degraded = False

    def take(self, now: float) -> list[Kept]:
        """Those that are settled now, in order."""
        self._see_who_came(now)
        kept = []
        while self._batches and (first := self._batches[0]).durable:
            copied = first.number <= self._copied
            late = now - first.begun_at >= self._degraded_s
            if self._two and not copied and not late and not self.is_degraded:
                break
            if self._two:
                self.is_degraded = not copied
            self._batches.popleft()
            self._taken = first.number
            degraded = self._two and not copied
            if degraded:
                self._early.append(first)
            kept.append(Kept(first.number, degraded, degraded and self._degraded == "refuse"))
        return kept

    def _see_who_came(self, now: float) -> None:
        """There are copies in time again where one came in time of a batch that was not waited for. While
        batches come one after the other, the last one never has a copy when it is settled.
        """
        while self._early and (first := self._early[0]):
            is_old = now - first.begun_at >= self._degraded_s
            if not is_old and first.number > self._copied:
                return
            self._early.popleft()
            if not is_old:
                self.is_degraded = False
