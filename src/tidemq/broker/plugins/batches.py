"""Messages on their way through plugins, batch by batch; what plugins are told besides; and ticks.

A batch is what has come for a plugin while it was busy with the one before. Each plugin has a queue and a
task of its own, so a slow one delays nobody else's messages. What several want goes to them one after the
other, in the order in which they are configured. The engine bounds how many messages a client may have here,
and how many there are in all; and it lets each client's go on in their order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidemq.broker.fault_log import Lines
from tidemq.broker.plugins.calling import FAILURE, Caller, Hook
from tidemq.broker.plugins.forks import SessionForked
from tidemq.broker.plugins.messages import PASS, Decision, Route, change
from tidemq.broker.plugins.plugin import Plugin
from tidemq.engine.door.events import Acknowledged, HeldMessage
from tidemq.errors import UsageError
from tidemq.limits import Limits
from tidemq.wire.filters import matches

if TYPE_CHECKING:
    from tidemq.engine.door.plugin_access import PluginAccess

_log = logging.getLogger("tidemq")

REPORTS_MAX = 10_000  # acknowledgements that wait for a plugin; what does not fit is dropped and counted
FORKS_MAX = 100_000  # likewise of forked sessions: a node may learn of all its sessions at once
TOPICS_MAX = 10_000  # whose plugins are remembered
NOBODY = 0x10  # "no matching subscribers": the message is taken, and goes to nobody
FAILED = 0x83  # implementation specific error: the plugin has not decided

Publish = Callable[[Route], None]
"""Has the broker publish it. UsageError for what cannot be published."""


class Passing:
    """A message on its way through plugins."""

    __slots__ = ("message", "packet", "reason", "station")

    def __init__(self, message: HeldMessage, station: int) -> None:
        self.message = message
        self.station = station  # the number of the plugin that it is with
        self.packet: bytes | None = None  # in place of what came
        self.reason = 0


Item = TypeVar("Item")


class Waiting(Generic[Item]):
    """What waits for one plugin's hook."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self._queue: deque[Item] = deque()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: Item) -> None:
        """It is next, after what is there."""
        self._queue.append(item)
        self._wake.set()

    def forget(self) -> int:
        """Nothing waits any more; how much did."""
        count = len(self._queue)
        self._queue.clear()
        return count

    async def take(self) -> list[Item]:
        """The next batch; waits until there is something."""
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        count = min(len(self._queue), self.caller.plugin.config.batch_max)
        return [self._queue.popleft() for _ in range(count)]


class Station(Waiting[Passing]):
    """One plugin, the `number`-th, and the messages that wait for it."""

    def __init__(self, caller: Caller, number: int) -> None:
        super().__init__(caller)
        self.number = number
        self.filters = caller.plugin.filters
        passes = caller.plugin.config.on_failure == "pass"
        self.failed = PASS if passes else Decision(reason=FAILED)  # for what it has not decided on


class Reports(Waiting[Item]):
    """What one plugin is told, and nothing waits for: at most `items_max`. `drop` is called with how many of
    them it is not told.
    """

    def __init__(self, caller: Caller, items_max: int, drop: Callable[[int], None]) -> None:
        super().__init__(caller)
        self._items_max = items_max
        self._drop = drop

    def add(self, item: Item) -> None:
        """As in `Waiting`, unless too many wait."""
        if len(self) < self._items_max:
            super().add(item)
        else:
            self._drop(1)

    def drop_all(self) -> None:
        """It is not told of what waits."""
        self._drop(self.forget())

    async def serve(self) -> None:
        """Tells it, until this is cancelled."""
        while True:
            batch = await self.take()
            told = False
            try:
                told = await self.caller.call(batch) is not FAILURE
            finally:  # also where it is cancelled
                if not told:
                    self._drop(len(batch))
            await asyncio.sleep(0)


class Batches:
    """Of one broker; belongs to its event loop."""

    def __init__(
        self,
        access: PluginAccess,
        publish: Publish,
        hooks: Callable[[str], Sequence[tuple[Plugin, Hook]]],
        limits: Limits,
        lines_max: int,
        counts: Counter[str],
    ) -> None:
        """`hooks`: the plugins that have a hook of that name, in their order. `counts` is added to."""
        self._access = access
        self._publish = publish
        self._limits = limits
        self.counts = counts
        self._under_way = 0  # messages
        self._idle = asyncio.Event()  # there are none
        self._idle.set()
        self._lines = Lines(lines_max, "failures of plugins", logging.ERROR)

        def callers(name: str) -> list[Caller]:
            return [Caller(plugin, name, hook, self.counts, self._lines) for plugin, hook in hooks(name)]

        self._stations = [Station(caller, number) for number, caller in enumerate(callers("publish"))]
        self._reports = [
            Reports[Acknowledged](each, REPORTS_MAX, self._drop_acknowledgements)
            for each in callers("delivered")
        ]
        self._forks = [
            Reports[SessionForked](each, FORKS_MAX, self._drop_forks) for each in callers("session_forked")
        ]
        self._told: Sequence[Reports[Any]] = [*self._reports, *self._forks]
        self._tickers = callers("tick")
        self._known: dict[str, tuple[Station, ...]] = {}  # by topic
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """From now on the engine asks. UsageError for a malformed filter."""
        self._access.set_filters(
            [text for station in self._stations for text in station.filters],
            [text for each in self._reports for text in each.caller.plugin.delivered_filters],
        )
        work = [self._serve(station) for station in self._stations]
        work += [each.serve() for each in self._told]
        work += [self._tick(caller) for caller in self._tickers]
        self._tasks = [asyncio.create_task(each) for each in work]

    async def drain(self) -> None:
        """Waits until no message is under way; none is to come any more. Ticks and reports end."""
        for task in self._tasks[len(self._stations) :]:
            task.cancel()
        for each in self._told:
            each.drop_all()
        await self._idle.wait()

    async def close(self) -> None:
        """What is with plugins now is not waited for."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lines.flush()

    def on_held(self, message: HeldMessage) -> None:
        """It goes to the first plugin that wants it."""
        self.counts["plugin_messages"] += 1
        self._under_way += 1
        self._idle.clear()
        stations = self._wanting(message.topic)
        if stations:
            stations[0].add(Passing(message, stations[0].number))
        else:  # the filters have changed while it was on its way
            self._answer([Passing(message, 0)])

    def on_acknowledged(self, event: Acknowledged) -> None:
        """The plugins that want to know of it are told, with others."""
        for each in self._reports:
            if any(matches(text, event.topic) for text in each.caller.plugin.delivered_filters):
                each.add(event)

    def on_forks(self, sessions: Sequence[SessionForked]) -> None:
        """The plugins are told of sessions that both sides of a split cluster have had."""
        for each in self._forks:
            for session in sessions:
                each.add(session)

    def _drop_acknowledgements(self, count: int) -> None:
        self.counts["plugin_acknowledgements_dropped"] += count

    def _drop_forks(self, count: int) -> None:
        self.counts["plugin_forks_dropped"] += count

    def _wanting(self, topic: str) -> tuple[Station, ...]:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= TOPICS_MAX:
                self._known.clear()
            wanting = (each for each in self._stations if any(matches(text, topic) for text in each.filters))
            known = self._known[topic] = tuple(wanting)
        return known

    async def _serve(self, station: Station) -> None:
        while True:
            batch = await station.take()
            self.counts["plugin_batches"] += 1
            answer = await station.caller.call([passing.message for passing in batch])
            self._settle(station, batch, self._decisions(station, batch, answer))
            await asyncio.sleep(0)  # others first

    def _decisions(self, station: Station, batch: Sequence[Passing], answer: object) -> Iterable[object]:
        """One for each message, as the plugin said, or as it is to be where it has not."""
        if answer is None:
            return [None] * len(batch)
        if isinstance(answer, list | tuple) and len(answer) == len(batch):
            return answer
        if answer is not FAILURE and self._lines.take():
            text = "plugin %s answered %s for %d messages; accepted: None, or a list of Decision or None"
            _log.error(text, station.caller.plugin.name, type(answer).__name__, len(batch))
        self.counts["plugin_messages_undecided"] += len(batch)
        return [station.failed] * len(batch)

    def _settle(self, station: Station, batch: Sequence[Passing], decisions: Iterable[object]) -> None:
        done: list[Passing] = []
        for passing, decision in zip(batch, decisions, strict=True):
            if decision is not None:
                try:
                    self._apply(passing, decision)
                except Exception as error:  # noqa: BLE001 - it is made of whatever the plugin has put there
                    self.counts["plugin_messages_undecided"] += 1
                    if self._lines.take():
                        _log.error("a decision of plugin %s: %s", station.caller.plugin.name, error)
                    passing.reason = station.failed.reason
            following = None if passing.reason else self._next(passing)
            if following is None:
                done.append(passing)
            else:
                passing.station = following.number
                following.add(passing)
        self._answer(done)

    def _next(self, passing: Passing) -> Station | None:
        """The plugin that it goes to from there, by the topic that it has now."""
        if passing.station + 1 >= len(self._stations):
            return None
        wanting = self._wanting(passing.message.topic)
        return next((each for each in wanting if each.number > passing.station), None)

    def _apply(self, passing: Passing, decision: object) -> None:
        if not isinstance(decision, Decision):
            raise UsageError(f"{type(decision).__name__} is no Decision")
        if decision.reason:
            passing.reason = decision.reason
        elif decision.drop:
            passing.reason = NOBODY
            self.counts["plugin_messages_dropped"] += 1
        elif decision.changes:
            passing.packet = change(passing.message, decision, self._limits)
            self.counts["plugin_messages_changed"] += 1
        self.route(decision.routes)

    def route(self, routes: Iterable[Route]) -> None:
        """Publishes what plugins want to be published; what cannot be is logged and counted."""
        for each in routes:
            if self._try_to_publish(each):
                self.counts["plugin_messages_routed"] += 1
            else:
                self.counts["plugin_routes_failed"] += 1

    def _try_to_publish(self, route: Route) -> bool:
        try:
            self._publish(route)
        except Exception as error:  # noqa: BLE001 - as above
            if self._lines.take():
                _log.error("a plugin's message cannot be published: %s", error)
            return False
        return True

    def _answer(self, done: Sequence[Passing]) -> None:
        answers = []
        self._under_way -= len(done)
        if self._under_way == 0:
            self._idle.set()
        for passing in done:
            message = passing.message
            if not message.is_will:
                answers.append((message.connection, message.number, passing.reason, passing.packet))
            elif passing.reason or not self._try_to_publish(_route_of(message)):
                self.counts["plugin_wills_dropped"] += 1
        if answers:
            self._access.answer(answers)

    async def _tick(self, caller: Caller) -> None:
        """What `tick` returns is published."""
        assert caller.plugin.tick_s is not None
        while True:
            await asyncio.sleep(caller.plugin.tick_s)
            answer = await caller.call(None)
            if isinstance(answer, list | tuple):
                self.route(answer)


def _route_of(will: HeldMessage) -> Route:
    return Route(will.topic, will.payload, will.qos, will.retain, will.properties)
