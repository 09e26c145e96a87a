"""What counters are called in Prometheus: `_total` and units in the names, what a group has in common in the
name and what tells its members apart in the label `reason`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GAUGES = ("live_", "memory_")  # how the names of those begin that go up and down
OTHER_GAUGES = ("subscriptions", "retained")
REASONS = {  # how a group's counters begin, and what it is called
    "dropped_": "messages_dropped",
    "refused_": "refused",
    "ended_": "connections_ended",
}
UNITS = {  # of what counts something else than how often: name, and factor to the unit
    "bytes_received": ("received_bytes", 1.0),
    "bytes_sent": ("sent_bytes", 1.0),
    "throttled_ms": ("throttled_seconds", 1e-3),
    "stream_bytes_before_compaction": ("stream_before_compaction_bytes", 1.0),
    "stream_bytes_after_compaction": ("stream_after_compaction_bytes", 1.0),
}
_UNFIT = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True)
class MetricName:
    """`name` is without the suffix `_total` that a total has in the end."""

    name: str
    reason: str = ""  # value of that label; empty: it has none
    factor: float = 1.0
    is_gauge: bool = False


def metric_name(counter: str) -> MetricName:
    """Of any counter, also of a provider's own."""
    counter = _UNFIT.sub("_", counter)
    if counter in OTHER_GAUGES or counter.startswith(GAUGES):
        unit = "_bytes" if counter.startswith("memory_") else ""
        return MetricName(f"tidemq_{counter}{unit}", is_gauge=True)
    if counter in UNITS:
        name, factor = UNITS[counter]
        return MetricName(f"tidemq_{name}", factor=factor)
    for prefix, group in REASONS.items():
        if counter.startswith(prefix):
            return MetricName(f"tidemq_{group}", counter.removeprefix(prefix))
    return MetricName(f"tidemq_{counter}")
