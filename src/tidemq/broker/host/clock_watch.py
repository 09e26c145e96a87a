"""Notices that the wall clock is set while the broker runs: a line in the log, and a counter.

The engine follows the clock by itself (`engine.wall_clock`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from datetime import UTC, datetime

LOOK_S = 1.0
STEP_S = 0.5  # less is not worth a line

_log = logging.getLogger("tidemq.host")


class ClockWatch:
    """Compares the wall clock with the monotonic one, again and again."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()
        self.counts: Counter[str] = Counter(clock_steps=0)

    def look(self) -> None:
        """Says so if the clock was set since the last look."""
        wall_s = time.time()
        step_s = wall_s - time.monotonic() - self._offset_s
        if abs(step_s) < STEP_S:
            return
        self._offset_s += step_s
        self.counts["clock_steps"] += 1
        way = "forward" if step_s > 0 else "back"
        now = datetime.fromtimestamp(wall_s, UTC)
        _log.warning(
            "the clock was set %s by %.1f s, to %s; dates follow",
            way,
            abs(step_s),
            now,
            extra={"seconds": step_s},
        )

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()
