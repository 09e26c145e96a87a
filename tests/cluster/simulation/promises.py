"""What a publisher is owed: an answer when all whom its message went to have answered."""

from __future__ import annotations

from collections.abc import Callable


class Promise:
    """`done` is told once, whether all have kept it; parts are added until `close`."""

    def __init__(self, done: Callable[[bool], None]) -> None:
        self._done: Callable[[bool], None] | None = done
        self._parts: set[object] = {self}

    def part_of(self, part: object) -> None:
        """One more has to answer."""
        self._parts.add(part)

    def part(self) -> Callable[[bool], None]:
        """One more, and how it answers."""
        part = object()
        self._parts.add(part)
        return lambda kept: self.settle(part, kept)

    def close(self) -> None:
        """These are all."""
        self.settle(self, True)

    def settle(self, part: object, kept: bool) -> None:
        """One has answered."""
        self._parts.discard(part)
        if self._done is not None and (not kept or not self._parts):
            done, self._done = self._done, None
            done(kept)
