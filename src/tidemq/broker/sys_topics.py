"""The broker's word about itself: retained messages under `$SYS/broker/`, by the names of mosquitto(8)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping

import tidemq

LOOK_S = 1.0  # between two looks for maxima and moving averages
# topic below $SYS/broker/ and the counter that it shows
COUNTER_TOPICS: Mapping[str, str] = {
    "clients/connected": "live_connections",
    "clients/total": "sessions",
    "messages/received": "packets_received",
    "messages/sent": "messages_sent",
    "publish/messages/received": "messages_received",
    "publish/messages/sent": "messages_sent",
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
    "subscriptions/count": "subscriptions",
    "retained messages/count": "retained",
    "store/messages/count": "live_messages",
    "store/messages/bytes": "memory_messages",
}
# the same, of moving averages a minute
LOAD_TOPICS: Mapping[str, str] = {
    "load/messages/received": "packets_received",
    "load/messages/sent": "messages_sent",
    "load/publish/received": "messages_received",
    "load/publish/sent": "messages_sent",
    "load/publish/dropped": "dropped",
    "load/bytes/received": "bytes_received",
    "load/bytes/sent": "bytes_sent",
    "load/sockets": "connections_accepted",
}
MINUTES = (1, 5, 15)


class SysTopics:
    """What is published, as it follows from looks at the counters."""

    def __init__(self) -> None:
        self._totals: Mapping[str, int] = {}
        self._loads = {(topic, minutes): 0.0 for topic in LOAD_TOPICS for minutes in MINUTES}
        self._maxima: dict[str, int] = {}

    def look(self, counters: Mapping[str, int], seconds: float) -> None:
        """Follows maxima and moving averages; `seconds` since the last look."""
        totals = dict(counters) | {"dropped": _dropped(counters)}
        if self._totals and seconds > 0:
            for topic, counter in LOAD_TOPICS.items():
                a_minute = (totals.get(counter, 0) - self._totals.get(counter, 0)) * 60 / seconds
                for minutes in MINUTES:
                    before = self._loads[topic, minutes]
                    self._loads[topic, minutes] = a_minute + (before - a_minute) * math.exp(
                        -seconds / 60 / minutes
                    )
        self._totals = totals
        for name in ("live_connections", "memory_used"):
            if name in counters:
                self._maxima[name] = max(self._maxima.get(name, 0), counters[name])

    def plan(self, uptime_s: int) -> dict[str, str]:
        """Topics and payloads; a counter that the engine does not have is left out."""
        counters = self._totals
        values = {"version": f"tidemq {tidemq.__version__}", "uptime": f"{uptime_s} seconds"}
        for topic, counter in COUNTER_TOPICS.items():
            if counter in counters:
                values[topic] = str(counters[counter])
        values["messages/dropped"] = values["publish/messages/dropped"] = str(counters["dropped"])
        if "sessions" in counters:
            away = counters["sessions"] - counters.get("live_connections", 0)
            values["clients/disconnected"] = str(max(away, 0))
        if "live_connections" in self._maxima:
            values["clients/maximum"] = str(self._maxima["live_connections"])
        if "memory_used" in self._maxima:
            values["heap/current size"] = str(counters["memory_used"])
            values["heap/maximum size"] = str(self._maxima["memory_used"])
        if "shared_groups" in counters:
            values["shared_subscriptions/count"] = str(counters["shared_groups"])
        for (topic, minutes), load in self._loads.items():
            if LOAD_TOPICS[topic] in counters:
                values[f"{topic}/{minutes}min"] = f"{load:.2f}"
        return {f"$SYS/broker/{topic}": value for topic, value in values.items()}


def _dropped(counters: Mapping[str, int]) -> int:
    return sum(count for name, count in counters.items() if name.startswith("dropped_"))


async def publish_sys_topics(
    counters: Callable[[], Mapping[str, int]], publish: Callable[[str, bytes], None], interval_s: float
) -> None:
    """Publishes at once and then every `interval_s`, until cancelled."""
    began = looked = time.monotonic()
    published = -math.inf
    topics = SysTopics()
    while True:
        now = time.monotonic()
        topics.look(counters(), now - looked)
        looked = now
        if now - published >= interval_s:
            published = now
            for topic, value in topics.plan(int(now - began)).items():
                publish(topic, value.encode())
        await asyncio.sleep(min(LOOK_S, max(published + interval_s - time.monotonic(), 0.0)))
