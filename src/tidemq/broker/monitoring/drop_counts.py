"""Whose messages were dropped, and why: what the engine reports of it, added up by client."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from tidemq.engine.door.events import Dropped

CLIENTS_MAX = 1000  # and causes; the one that was quiet the longest goes


@dataclass(slots=True)
class DropCount:
    """Messages of one client that were dropped for one cause, a counter's name. `last_ms`: wall clock."""

    client_id: str
    cause: str
    messages: int
    last_ms: int


class DropCounts:
    """Since the broker started, or since it was forgotten for others. Belongs to the broker's event loop."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str], DropCount] = OrderedDict()

    def add(self, event: Dropped) -> None:
        """What the engine has reported: a second after the first drop, then every ten seconds."""
        key = event.client_id, event.counter
        count = self._counts.pop(key, None) or DropCount(*key, 0, 0)
        count.messages += event.messages
        count.last_ms = time.time_ns() // 1_000_000
        self._counts[key] = count
        if len(self._counts) > CLIENTS_MAX:
            self._counts.popitem(last=False)

    def largest(self, count: int) -> list[DropCount]:
        """Those with most messages first."""
        return sorted(self._counts.values(), key=lambda each: each.messages, reverse=True)[:count]
