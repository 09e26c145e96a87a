"""How large a node's own log is, without a look at its records: they are counted in blocks."""

from __future__ import annotations

from collections import deque

BLOCK = 1024  # records in one; a log that is kept for a week may have hundreds of millions


class LogSize:
    """Numbers rise by one; the last may come again, where its batch failed."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[int, int]] = deque()  # first number, bytes; all but the last are whole
        self.first = self._last = 0  # of those that are there; 0: none
        self._last_bytes = 0
        self._trimmed_bytes = 0  # of the first block, by the average

    @property
    def records(self) -> int:
        """How many there are."""
        return self._last - self.first + 1 if self.first else 0

    @property
    def bytes(self) -> int:
        """Of all; up to a block's worth is an average."""
        return sum(size for _, size in self._blocks) - self._trimmed_bytes

    def add(self, number: int, size: int) -> None:
        """A record is written."""
        if self.first and number <= self._last:  # the last one again
            first, before = self._blocks.pop()
            self._blocks.append((first, before - self._last_bytes))
        if not self.first:
            self.first = number
        if not self._blocks or number >= self._blocks[-1][0] + BLOCK:
            self._blocks.append((number, 0))
        first, before = self._blocks.pop()
        self._blocks.append((first, before + size))
        self._last, self._last_bytes = number, size

    def trim(self, first: int) -> None:
        """Records before this one are gone."""
        if not self.first or first <= self.first:
            return
        if first > self._last:
            self._blocks.clear()
            self.first = self._last = self._trimmed_bytes = 0
            return
        while len(self._blocks) > 1 and self._blocks[1][0] <= first:
            self._blocks.popleft()
        begins, size = self._blocks[0]
        ends = self._blocks[1][0] if len(self._blocks) > 1 else self._last + 1
        self.first = first
        self._trimmed_bytes = size * (first - begins) // (ends - begins)
