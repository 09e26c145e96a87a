"""The broker's word about itself: retained messages under `$SYS/broker/`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import tidemq

# topic below $SYS/broker/ and the counter it shows
COUNTER_TOPICS: Mapping[str, str] = {
    "clients/connected": "live_connections",
    "clients/total": "live_sessions",
    "messages/received": "messages_received",
    "messages/sent": "messages_sent",
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
    "subscriptions/count": "subscriptions",
    "retained messages/count": "retained",
}


def plan_sys_messages(counters: Mapping[str, int], uptime_s: int) -> dict[str, str]:
    """Topics and payloads to publish; a counter that the engine does not have is left out."""
    values = {"version": f"tidemq {tidemq.__version__}", "uptime": f"{uptime_s} seconds"}
    for topic, counter in COUNTER_TOPICS.items():
        if counter in counters:
            values[topic] = str(counters[counter])
    values["messages/dropped"] = str(
        sum(count for name, count in counters.items() if name.startswith("dropped_"))
    )
    return {f"$SYS/broker/{topic}": value for topic, value in values.items()}


async def publish_sys_topics(
    counters: Callable[[], Mapping[str, int]], publish: Callable[[str, bytes], None], interval_s: float
) -> None:
    """Publishes at once and then every `interval_s`, until cancelled."""
    began = time.monotonic()
    while True:
        for topic, value in plan_sys_messages(counters(), int(time.monotonic() - began)).items():
            publish(topic, value.encode())
        await asyncio.sleep(interval_s)
