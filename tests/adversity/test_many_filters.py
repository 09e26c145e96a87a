"""A client with very many filters is served as fast at the end as at the beginning."""

from __future__ import annotations

import time

from adversity.conftest import StartEngine
from conformance.kit import Client
from conformance.packets import SUBACK, subscribe

FILTERS = 40_000
BATCH = 500


def subscribe_all(client: Client, prefix: str) -> float:
    """Subscribes to `FILTERS` filters, some at a time; returns the seconds of CPU, the engine's too."""
    began = time.process_time()
    for first in range(0, FILTERS, BATCH):
        filters = [(f"{prefix}/{number}", 0) for number in range(first, first + BATCH)]
        client.send(subscribe(1, *filters, version=client.version))
        client.expect(SUBACK, packet_id=1)
    return time.process_time() - began


def test_retained_look_ups_are_not_quadratic(start_engine: StartEngine) -> None:
    """With something retained there is one look-up for each filter, not one for each pair of filters."""
    engine = start_engine(1, subscriptions_max=10 * FILTERS)
    client = Client(engine.port)
    client.connect()
    without = min(subscribe_all(client, f"a{round}") for round in range(2))
    client.publish("else/where", b"x", 1, retain=True)
    assert subscribe_all(client, "b") < 5 * without
