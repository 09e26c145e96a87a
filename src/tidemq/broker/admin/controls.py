"""What the admin listener may ask of a broker, and have it do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tidemq.broker.access.decisions import Decisions
from tidemq.broker.clustering import Clustering
from tidemq.broker.durability.storage import Storage
from tidemq.broker.monitoring.monitor import Monitor
from tidemq.broker.program_subscription import Subscription
from tidemq.broker.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """Of one broker. All of it belongs to the broker's event loop."""

    counters: Callable[[], Mapping[str, int]]
    monitor: Callable[[], Monitor | None]  # None as long as the broker loads what is stored
    problems: Callable[[], Sequence[str]]
    reload: Callable[[], Awaitable[Mapping[str, str]]]
    decisions: Callable[[], Decisions]
    disconnect: Callable[..., Awaitable[bool]]  # as Broker.disconnect
    log_changed: Callable[[], None]  # to be told when the level of what is logged has
    publish: Callable[..., Awaitable[None]]  # as Broker.publish
    subscribe: Callable[..., Subscription]  # as Broker.subscribe
    settings: Callable[[], Settings]
    storage: Callable[[], Storage | None]
    cluster: Clustering | None = None  # None: the broker is no node of one

    def running_monitor(self) -> Monitor:
        """That of a broker that has loaded; nothing that asks for it is answered before."""
        monitor = self.monitor()
        assert monitor is not None
        return monitor
