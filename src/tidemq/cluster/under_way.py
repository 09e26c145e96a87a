"""What of a log is on its way to the replica: sent to it, and not confirmed."""

from __future__ import annotations

from collections import deque


class UnderWay:
    """Pieces, in their order. `bytes`: of all."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, int]] = deque()  # the last record of each, and its bytes
        self.bytes = 0

    def add(self, last: int, size: int) -> None:
        """A piece up to this record was sent."""
        self._pieces.append((last, size))
        self.bytes += size

    def confirm(self, number: int) -> None:
        """The replica has all records up to this one."""
        while self._pieces and self._pieces[0][0] <= number:
            self.bytes -= self._pieces.popleft()[1]

    def lose(self, first: int) -> None:
        """It lacks all from this record on."""
        while self._pieces and self._pieces[-1][0] >= first:
            self.bytes -= self._pieces.pop()[1]
