"""Time, links, disks and processes of a simulated cluster, all by one seed.

A disk keeps what was synced when the power goes, and all that was written when only the process does. A
link brings messages in their order, or, while it is cut, not at all. A `nats-server` keeps copies of records,
which may be damaged, or gone altogether.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cluster.nodes import START_NS
from cluster.simulation.history import History

from tidemq.cluster.memory_rows import Change, MemoryRows

if TYPE_CHECKING:
    from cluster.simulation.broker import Broker

COMMIT_S = (0.001, 0.008)
DELAY_S = (0.0005, 0.02)


class World:
    """What happens, and when."""

    def __init__(self, seed: int, count: int) -> None:
        self.choose = random.Random(seed)
        self.now = 0.0
        self.history = History()
        self.cut: set[tuple[int, int]] = set()  # directions, by index of the machines
        self.slow: dict[tuple[int, int], float] = {}  # seconds more, by direction
        self.broken: dict[tuple[int, int], int] = {}  # how often what was under way was lost, by direction
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._last: dict[tuple[int, int], float] = {}  # when the last message of a link arrives
        self.machines: list[Any] = [Machine(self, index, count) for index in range(count)]

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        """Does something after a while."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), act))

    def run(self, until: float) -> None:
        """All that happens until then."""
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = until

    def send(self, source: int, target: int, kind: str, *body: object) -> None:
        """A message to another machine's broker; to that which runs when it arrives, if one does."""
        link = (source, target)
        if link in self.cut:
            return
        delay_s = self.choose.uniform(*DELAY_S) + self.slow.get(link, 0.0)
        arrival = max(self.now + delay_s, self._last.get(link, 0.0))
        self._last[link] = arrival
        connection = self.broken.get(link)

        def arrive() -> None:
            broker = self.machines[target].broker
            if broker is not None and link not in self.cut and self.broken.get(link) == connection:
                broker.take(source, kind, *body)

        self.at(arrival - self.now, arrive)


class Machine:
    """A disk, a wall clock, a `nats-server`, and a broker that may run."""

    def __init__(self, world: World, index: int, count: int) -> None:
        self.world = world
        self.index = index
        self.count = count
        self.rows = MemoryRows()
        self.skew_ns = 0
        self.copies: dict[int, dict[int, bytes]] = {}  # of the `nats-server`, by incarnation and number
        self.copying = True  # the `nats-server` runs
        self.broker: Broker | None = None
        self._unsynced: list[list[Change]] = []

    @property
    def wall_ns(self) -> int:
        return START_NS + int(self.world.now * 1e9) + self.skew_ns

    def written(self) -> int:
        """What was changed is one batch; returns how many there are to be synced with it."""
        self._unsynced.append(self.rows.take_changes())
        return len(self._unsynced)

    def sync(self, count: int) -> None:
        """So many batches are durable."""
        del self._unsynced[:count]

    def kill(self, *, power: bool) -> None:
        """The process is gone; without power, what was not synced is gone too."""
        if self.broker is not None:
            self.broker.end()
        self.broker = None
        for change in reversed(self.rows.take_changes() if power else []):
            change.table.restore(change.first, change.second, change.old)
        for batch in reversed(self._unsynced if power else []):
            for change in reversed(batch):
                change.table.restore(change.first, change.second, change.old)
        self._unsynced.clear()
