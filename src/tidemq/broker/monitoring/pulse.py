"""Whether the broker is alive: its reactors turn, and its keeper goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemq.broker.durability.keeper import Keeper

TURNS_S = 10.0  # without a turn: an idle reactor has one a second
LOOKS_S = 5.0  # between two looks, at most: they are a second apart
KEEPER_S = 60.0  # without an answer: a disk may take long, but not so long


class Pulse:
    """Looks at the reactors' turns again and again."""

    def __init__(self, turns: Callable[[], Sequence[int]], keeper: Keeper | None) -> None:
        """`keeper`: None: there is none."""
        self._turns = turns
        self._keeper = keeper
        self._paused_s = -math.inf
        self._looked_s = time.monotonic()
        self._known = list(turns())
        self._moved_s = [time.monotonic()] * len(self._known)

    def look(self) -> list[str]:
        """What stands still, in words; empty: nothing."""
        now_s = time.monotonic()
        # longer: the process was paused, or Python was: nobody could turn, or be seen
        if now_s - self._looked_s > LOOKS_S:
            self._moved_s = [now_s] * len(self._moved_s)
            self._paused_s = now_s
        self._looked_s = now_s
        found = []
        for index, turns in enumerate(self._turns()):
            if turns != self._known[index]:
                self._known[index], self._moved_s[index] = turns, now_s
            elif (still_s := now_s - self._moved_s[index]) > TURNS_S:
                found.append(f"reactor {index} has not turned for {still_s:.0f} s")
        if self._keeper is None:
            return found
        if self._keeper.died:
            found.append("the keeper has died")
        elif (still_s := now_s - max(self._keeper.times.seen_s, self._paused_s)) > KEEPER_S:
            found.append(f"the keeper, which stores messages, has not gone on for {still_s:.0f} s")
        return found
