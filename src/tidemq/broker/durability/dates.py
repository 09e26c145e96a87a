"""The date as of which a store is loaded."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from tidemq.store import Store

CLOCK_TOLERANCE_MS = 60_000  # that the clock may be behind after a restart without a word
SANE_CLOCK_MS = 1_735_689_600_000  # 2025: no clock that is right says less

_log = logging.getLogger("tidemq.store")


def find_date_ms(store: Store) -> int:
    """The date as of which what is stored has its time left: now, or, where the clock was or is wrong,
    that of the last write, as if no time had passed since.
    """
    now, last = time.time_ns() // 1_000_000, int.from_bytes(store.get("meta", b"wall") or b"")
    if last and (now < last - CLOCK_TOLERANCE_MS or last < SANE_CLOCK_MS):
        text = "the clock says %s, and at the last write it said %s: what is stored goes on from there"
        _log.warning(text, *(datetime.fromtimestamp(each / 1000, UTC) for each in (now, last)))
        return last
    return now
