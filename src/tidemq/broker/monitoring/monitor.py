"""What looks after the broker while it runs: once a second at what alarms are raised for, now and then at
what takes longer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tidemq.bridge.figures import BridgeFigures
from tidemq.broker.clustering import ClusterFigures
from tidemq.broker.monitoring import conditions
from tidemq.broker.monitoring.alarms import Alarm, Alarms
from tidemq.broker.monitoring.certificates import certificate_ends
from tidemq.broker.monitoring.client_lists import ClientLists
from tidemq.broker.monitoring.drop_counts import DropCounts
from tidemq.broker.monitoring.pulse import Pulse
from tidemq.broker.monitoring.questions import Questions
from tidemq.broker.monitoring.spans import Spans
from tidemq.broker.monitoring.traces import Traces
from tidemq.broker.monitoring.watches import Watches
from tidemq.config import Config
from tidemq.engine.door.figures import Histogram
from tidemq.engine.door.view import EngineView

if TYPE_CHECKING:
    from tidemq.broker.durability.keeper import Keeper

LOOK_S = 1.0
SURVEY_S = 15.0  # between two walks through all queues
SLOW_LOOK_S = 60.0  # at files of certificates, and at the size of the store
_UNFIT = re.compile(r"[/+#\x00]")  # in a level of a topic

_log = logging.getLogger("tidemq")


class Bridges(Protocol):
    """What bridges show of themselves."""

    def figures(self) -> Sequence[BridgeFigures]:
        """Of each."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What of the broker is looked at."""

    config: Config
    view: EngineView
    reactors: int
    keeper: Keeper | None
    store_bytes: Callable[[], int]  # to be asked on the keeper's thread
    counters: Callable[[], Mapping[str, int]]
    certificates: Mapping[str, str]  # PEM, by the listener's name
    publish: Callable[[str, bytes], None]  # a retained message
    bridges: Callable[[], Bridges | None] = lambda: None  # None: there are none
    cluster: Callable[[], ClusterFigures | None] = lambda: None  # None: the broker is no node of one


class Monitor:
    """Of one broker, from its start to its end. All methods belong to the broker's event loop."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.view = watched.view
        self.questions = Questions(self.view)
        self.clients = ClientLists(self.questions, watched.reactors)
        self.drops = DropCounts()
        self.traces = Traces(self.view)
        self.spans = Spans(watched.config.limits.spans_per_s)
        self.watches = Watches(self.view)
        self.alarms = Alarms(self._publish)
        keeper = watched.keeper
        self.pulse = Pulse(
            lambda: [each.turns for each in self.view.reactors()],
            keeper,
        )
        config = watched.config
        self._data = config.data if keeper is not None and config.data.is_dir() else None
        self._certificates = dict(watched.certificates)
        if config.admin_cert:
            self._certificates["admin"] = config.admin_cert
        self._faults = conditions.Faults()
        self._began_s = time.monotonic()
        self._ends: Mapping[str, datetime] = {}
        self._oldest_s = 0.0
        self._store_bytes = 0

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        looks = [self._look_once_a_second(), self._survey(), self._look_slowly()]
        async with asyncio.TaskGroup() as group:
            for look in looks:
                group.create_task(look)

    def certificates(self) -> Mapping[str, datetime]:
        """Until when each listener's certificate is valid."""
        return self._ends

    def bridges(self) -> Sequence[BridgeFigures]:
        """By their names."""
        found = self._watched.bridges()
        return () if found is None else found.figures()

    def cluster(self) -> ClusterFigures | None:
        """None: the broker is no node of one, or has not begun."""
        return self._watched.cluster()

    def counters_and_sizes(self) -> dict[str, int]:
        """All counters, and `memory_used` (bytes), `sessions` and `shared_groups`."""
        used, _, _ = self.view.memory()
        return dict(self._watched.counters()) | {
            "memory_used": used,
            "sessions": self.view.sessions(),
            "shared_groups": self.view.shared_groups(),
        }

    def histograms(self) -> dict[str, Histogram]:
        """Of the engine and of the keeper."""
        found = dict(self.view.histograms())
        if (keeper := self._watched.keeper) is not None:
            found["commit"] = Histogram(tuple(keeper.times.counts), keeper.times.sum_ns)
        return found

    def gauges(self) -> dict[str, float]:
        """Figures of the whole broker, by the metric's name."""
        used, most, _ = self.view.memory()
        found = {
            "tidemq_memory_used_bytes": used,
            "tidemq_memory_max_bytes": most,
            "tidemq_oldest_queued_seconds": self._oldest_s,
            "tidemq_uptime_seconds": time.monotonic() - self._began_s,
        }
        if (data := self._data) is not None:
            found["tidemq_store_bytes"] = self._store_bytes
            with suppress(OSError):  # the alarm that looks at it says so
                free, total = conditions.disk_bytes(data)
                found |= {"tidemq_disk_free_bytes": free, "tidemq_disk_bytes": total}
        return found

    def _conditions(self) -> Sequence[conditions.Condition]:
        watched = self._watched
        found = [
            conditions.memory_is_full(self.view.memory),
            conditions.certificates_end(self.certificates),
            conditions.events_are_lost(watched.counters),
            conditions.clock_jumps(watched.counters),
            conditions.bridges_are_down(self.bridges),
            conditions.cluster_is_degraded(self.cluster),
        ]
        if (keeper := watched.keeper) is not None:
            found.append(conditions.store_refuses(lambda: keeper.problem))
        if self._data is not None:
            found.append(conditions.disk_is_full(self._data))
        if per_s_max := watched.config.alarm_drops_per_s:
            found.append(conditions.messages_are_dropped(watched.counters, per_s_max))
        return found

    async def _look_once_a_second(self) -> None:
        looks, last_s = self._conditions(), time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            found = conditions.looked_at(looks, now_s - last_s, self._faults)
            try:
                for text in self.pulse.look():
                    found["standstill"] = text
                self.alarms.look(found, now_s)
            except Exception:  # noqa: BLE001 - the next look may find it mended
                self._faults.log("alarms cannot be looked at")
            last_s = now_s

    async def _survey(self) -> None:
        while True:
            try:
                oldest_ms, _ = await self.clients.oldest()
                self._oldest_s = max(oldest_ms, 0) / 1000
            except Exception:  # noqa: BLE001 - the same
                self._faults.log("the queues cannot be looked at")
            await asyncio.sleep(SURVEY_S)

    async def _look_slowly(self) -> None:
        while True:
            try:
                await self._look_at_files()
            except Exception:  # noqa: BLE001 - the same
                self._faults.log("the size of the store cannot be looked at")
            await asyncio.sleep(SLOW_LOOK_S)

    async def _look_at_files(self) -> None:
        watched = self._watched
        self._ends = await asyncio.to_thread(certificate_ends, self._certificates)
        if watched.keeper is not None:
            self._store_bytes = await asyncio.wrap_future(watched.keeper.ask(watched.store_bytes))

    def _publish(self, alarm: Alarm) -> None:
        """Retained, so that who subscribes later sees it."""
        topic = f"$SYS/broker/alarms/{_UNFIT.sub('_', alarm.name)}"
        self._watched.publish(topic, json.dumps(alarm.describe()).encode())
