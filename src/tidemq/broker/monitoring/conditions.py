"""What alarms are raised for. Each condition gives texts by the alarm's name, as long as it lasts."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from tidemq.bridge.figures import BridgeFigures
from tidemq.broker.clustering import ClusterFigures

DISK_FREE_MIN = 0.1  # share of the file system
CERTIFICATE_DAYS = 14.0
# drops that MQTT demands, and that are no fault of anybody's
DEMANDED = ("dropped_expired", "dropped_offline_qos_0")
FAULT_LINES_S = 60.0
BRIDGE_DOWN_S = 30.0  # that a bridge may take to connect again
EVENT_DROPS = ("events_dropped", "dropped_receiver_full")

_log = logging.getLogger("tidemq.alarms")

Counters = Callable[[], Mapping[str, int]]
Condition = Callable[[float], Mapping[str, str]]  # of the seconds since the last look


class Faults:
    """The last exception, in the log: at most one line a minute."""

    def __init__(self) -> None:
        self._logged_s = -math.inf

    def log(self, text: str) -> None:
        """With what is being handled."""
        if time.monotonic() - self._logged_s >= FAULT_LINES_S:
            self._logged_s = time.monotonic()
            _log.exception("%s", text)


def growth(counters: Counters, names: Callable[[str], bool]) -> Callable[[], int]:
    """By how much the sum of these counters has grown since the last call."""
    known: int | None = None

    def grown() -> int:
        nonlocal known
        total = sum(count for name, count in counters().items() if names(name))
        before, known = known, total
        return 0 if before is None else total - before

    return grown


def store_refuses(problem: Callable[[], str]) -> Condition:
    """The store takes nothing."""
    return lambda _: {"store": text} if (text := problem()) else {}


def disk_is_full(folder: Path) -> Condition:
    """Of the file system of the data directory."""

    def look(_: float) -> Mapping[str, str]:
        free, total = disk_bytes(folder)
        if free >= total * DISK_FREE_MIN:
            return {}
        return {"disk": f"{free / 1e9:.1f} GB of {total / 1e9:.1f} GB are free at {folder}"}

    return look


def disk_bytes(folder: Path) -> tuple[int, int]:
    """Free to this user, and all."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def memory_is_full(memory: Callable[[], tuple[int, int, bool]]) -> Condition:
    """Publishers wait, or are refused."""

    def look(_: float) -> Mapping[str, str]:
        used, most, passed = memory()
        if not passed:
            return {}
        return {"memory": f"{used / 1e6:.0f} MB are used, memory_bytes_max is {most / 1e6:.0f} MB"}

    return look


def certificates_end(ends: Callable[[], Mapping[str, datetime]]) -> Condition:
    """`ends`: until when the certificate at each place is valid."""

    def look(_: float) -> Mapping[str, str]:
        now = datetime.now(UTC)
        found = {}
        for place, end in ends().items():
            days = (end - now).total_seconds() / 86400
            if days < CERTIFICATE_DAYS:
                said = f"ends in {days:.1f} days" if days > 0 else "has ended"
                found[f"certificate-{place}"] = f"the certificate of {place} {said}, at {end:%F %T} UTC"
        return found

    return look


def events_are_lost(counters: Counters) -> Condition:
    """More happened than the broker's control plane, or the embedding program, could take."""
    grown = growth(counters, lambda name: name in EVENT_DROPS)

    def look(_: float) -> Mapping[str, str]:
        count = grown()
        return {"events": f"{count} events were dropped: event_queue_max waited"} if count else {}

    return look


def messages_are_dropped(counters: Counters, per_s_max: float) -> Condition:
    """More than so many a second."""
    grown = growth(counters, lambda name: name.startswith("dropped_") and name not in DEMANDED)

    def look(seconds: float) -> Mapping[str, str]:
        per_s = grown() / max(seconds, 0.001)
        if per_s <= per_s_max:
            return {}
        return {"drops": f"{per_s:.0f} messages a second are dropped; the counters say why"}

    return look


def bridges_are_down(bridges: Callable[[], Iterable[BridgeFigures]]) -> Condition:
    """They have not been connected for long, or may not subscribe to all that they should."""

    def look(_: float) -> Mapping[str, str]:
        found = {}
        for each in bridges():
            status = each.status
            away_s = time.time() - status.since
            if not status.is_connected and away_s >= BRIDGE_DOWN_S:
                error = status.last_error or "it has not connected yet"
                found[f"bridge-{each.name}"] = f"not connected for {away_s:.0f} s: {error}"
            elif status.refused_filters:
                found[f"bridge-{each.name}"] = status.last_error
        return found

    return look


def cluster_is_degraded(cluster: Callable[[], ClusterFigures | None]) -> Condition:
    """Nodes are away, or what is stored has no copies."""

    def look(_: float) -> Mapping[str, str]:
        figures = cluster()
        return {"cluster": "; ".join(figures.degraded)} if figures is not None and figures.degraded else {}

    return look


def clock_jumps(counters: Counters) -> Condition:
    """It was set while the broker ran."""
    grown = growth(counters, lambda name: name == "clock_steps")
    return lambda _: {"clock": "the clock was set; the log says by how much"} if grown() else {}


def looked_at(conditions: Iterable[Condition], seconds: float, faults: Faults) -> dict[str, str]:
    """What all of them find. One that fails is one of the `faults`, and keeps no other from being looked at:
    counters come from providers, too.
    """
    found: dict[str, str] = {}
    for condition in conditions:
        try:
            found.update(condition(seconds))
        except Exception:  # noqa: BLE001 - whatever a provider raises
            faults.log("a condition of alarms cannot be looked at")
    return found
