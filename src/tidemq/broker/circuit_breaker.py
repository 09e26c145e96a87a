"""A circuit breaker: a service that fails again and again is left alone for a time, then tried once."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Opens after `failures_max` failures in a row. Open, it refuses for `open_s` seconds; then it lets one
    call through: that one closes it, or opens it for as long again.
    """

    def __init__(self, failures_max: int, open_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures_max = failures_max
        self._open_s = open_s
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None  # None: closed
        self._probing = False
        self._era = 0  # calls that began before the last opening or closing say nothing any more

    @property
    def is_open(self) -> bool:
        """Whether it refuses calls, or waits for its probe."""
        return self._open_until is not None

    def enter(self) -> int | None:
        """A permit to call, to be given to `leave`; None refuses."""
        if self._open_until is not None:
            if self._probing or self._clock() < self._open_until:
                return None
            self._probing = True
        return self._era

    def leave(self, permit: int, succeeded: bool) -> None:
        """How the call went."""
        if permit != self._era:
            return
        if succeeded:
            self._failures = 0
            if self._open_until is not None:
                self._close()
            return
        self._failures += 1
        if self._open_until is not None or self._failures >= self._failures_max:
            self._open()

    def _open(self) -> None:
        self._open_until = self._clock() + self._open_s
        self._probing = False
        self._era += 1

    def _close(self) -> None:
        self._open_until = None
        self._probing = False
        self._era += 1
