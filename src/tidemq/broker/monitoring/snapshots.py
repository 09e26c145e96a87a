"""What a broker does in one second, for whoever watches it: made once, however many do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidemq.broker.monitoring.monitor import Monitor
from tidemq.engine.door.figures import Histogram

INTERVAL_S = 1.0
WATCHERS_MAX = 16
WAITING_MAX = 4  # snapshots that one who is slow has not taken; what is more it misses
RATES = ("messages_received", "messages_sent", "bytes_received", "bytes_sent", "connections_accepted")
CAUSES = ("dropped_", "refused_")  # how the counters of what was lost begin

Snapshot = Mapping[str, Any]
Waiting = asyncio.Queue[Snapshot | None]  # None: the broker stops


@dataclass(slots=True)
class _Before:
    """What the last snapshot was made from."""

    at_s: float
    counters: Mapping[str, int]
    histograms: Mapping[str, Histogram]


@dataclass(slots=True)
class Snapshots:
    """Of one broker; belongs to its event loop. Nothing is made while nobody watches."""

    monitor: Callable[[], Monitor | None]
    _watchers: set[Waiting] = field(default_factory=set)
    _task: asyncio.Task[None] | None = None

    def watch(self) -> Waiting | None:
        """Gets one snapshot a second from now on; None: WATCHERS_MAX watch. To be given back to `leave`."""
        if len(self._watchers) >= WATCHERS_MAX:
            return None
        waiting = Waiting(WAITING_MAX)
        self._watchers.add(waiting)
        if self._task is None:
            self._task = asyncio.create_task(self._make())
        return waiting

    def leave(self, waiting: Waiting) -> None:
        """It watches no more."""
        self._watchers.discard(waiting)
        if not self._watchers and self._task is not None:
            self._task.cancel()
            self._task = None

    def close(self) -> None:
        """Tells all who watch that it ends."""
        for waiting in self._watchers:
            if waiting.full():
                waiting.get_nowait()
            waiting.put_nowait(None)

    async def _make(self) -> None:
        before: _Before | None = None
        while True:
            monitor = self.monitor()
            if monitor is not None:
                now = _Before(time.monotonic(), monitor.counters_and_sizes(), monitor.histograms())
                snapshot = made(monitor, before or now, now)
                before = now
                for waiting in self._watchers:
                    if not waiting.full():
                        waiting.put_nowait(snapshot)
            await asyncio.sleep(INTERVAL_S)


def made(monitor: Monitor, before: _Before, now: _Before) -> Snapshot:
    """What has happened from `before` to `now`; rates are per second."""
    seconds = max(now.at_s - before.at_s, 1e-9)

    def per_s(name: str) -> float:
        return round((now.counters.get(name, 0) - before.counters.get(name, 0)) / seconds, 3)

    lost = [name for name in now.counters if name.startswith(CAUSES) and now.counters[name]]
    gauges = monitor.gauges()
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "uptime_s": gauges["tidemq_uptime_seconds"],
        "per_s": {name: per_s(name) for name in RATES},
        "connections": now.counters["live_connections"],
        "sessions": now.counters["sessions"],
        "subscriptions": now.counters["subscriptions"],
        "retained": now.counters["retained"],
        "queued_messages": now.counters["live_entries"],  # in memory
        "oldest_queued_s": gauges["tidemq_oldest_queued_seconds"],
        "lost": {name: {"total": now.counters[name], "per_s": per_s(name)} for name in sorted(lost)},
        "seconds": {
            name: quantiles(_grown(before.histograms[name], histogram))
            for name, histogram in now.histograms.items()
        },
        "memory_used": gauges["tidemq_memory_used_bytes"],
        "memory_max": gauges["tidemq_memory_max_bytes"],
        "store_bytes": gauges.get("tidemq_store_bytes"),
        "disk_free": gauges.get("tidemq_disk_free_bytes"),
        "reactors": [
            {"load": each.load, "connections": each.connections} for each in monitor.view.reactors()
        ],
        "alarms": [each.describe() for each in monitor.alarms.active],
    }


def _grown(before: Histogram, now: Histogram) -> Sequence[int]:
    return [new - old for old, new in zip(before.counts, now.counts, strict=True)]


def quantiles(counts: Sequence[int]) -> dict[str, float | None]:
    """Seconds that half and 99 % of them took at most, to a power of two; None: there were none."""
    return {"p50": _quantile(counts, 0.5), "p99": _quantile(counts, 0.99)}


def _quantile(counts: Sequence[int], share: float) -> float | None:
    total = sum(counts)
    passed = 0
    for bucket, count in enumerate(counts):
        passed += count
        if count and passed >= total * share:
            return float(2**bucket) / 1e9
    return None
