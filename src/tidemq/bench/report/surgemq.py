"""What others have published of the same workloads: from machines of their own, so of interest only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidemq.bench.report.runs import Run

SURGEMQ = "SurgeMQ, published"
SURGEMQ_NOTE = (
    "SurgeMQ's figures are those of its README of December 2014: clients and broker together on a MacBook "
    "Pro (2.8 GHz i7, four cores), QoS 0; it gives lower bounds, and no payload size. Another machine's, of "
    "another time: they say what the workloads once yielded, not who is faster here."
)
SURGEMQ_RATES: dict[tuple[str, int, int], float] = {
    ("fan", 1, 1): 400_000,
    ("fan", 20, 1): 450_000,
    ("fan", 1, 20): 750_000,
    ("mesh", 20, 20): 700_000,
}


def surgemq_rate(run: Run) -> float | None:
    """Messages a second that SurgeMQ had in this workload; None where nothing was published of it."""
    arguments: Mapping[str, Any] = json.loads(run.arguments)
    clients = arguments.get("clients")
    senders, receivers = arguments.get("senders", clients), arguments.get("receivers", clients)
    if arguments.get("qos") or arguments.get("rate") or senders is None or receivers is None:
        return None
    return SURGEMQ_RATES.get((run.workload, senders, receivers))
