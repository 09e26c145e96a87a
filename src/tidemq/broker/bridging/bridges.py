"""All bridges of a broker: made from the configuration, changed with it, looked at, ended.

Each is kept up on a thread and event loop that bridges have for themselves, so that a piece of messages that
crosses delays no decision. What this module does belongs to the broker's event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tidemq.bridge.crossing import OTHER_OPTIONS, BridgeError, Home, inward_filters, outward_filters
from tidemq.bridge.figures import BridgeFigures
from tidemq.bridge.upkeep import KnownFilters, Upkeep, client_id_of, make_tls
from tidemq.bridge_config import Bridge
from tidemq.broker.bridging.door import PREFIX, BridgeDoor
from tidemq.broker.host.watched_files import read_secret
from tidemq.broker.monitoring.client_lists import ClientLists, Cursor
from tidemq.broker.monitoring.questions import Questions
from tidemq.client.address import parse_url
from tidemq.client.loop_thread import LoopThread
from tidemq.config import refused
from tidemq.engine.door.figures import ClientFigures, Inquiry, InquiryKind, Question
from tidemq.errors import ConfigError, TideMQError, UsageError
from tidemq.limits import Limits
from tidemq.wire import topic_filter_fault
from tidemq.wire.topics import topic_filter_ways

LOOK_S = 1.0  # between two looks at the queues
PAUSE_S = 0.02  # between two pages of a walk through all sessions
DECLARE_S = 10.0  # for the own broker to take a bridge's subscriptions
END_S = 5.0  # for a bridge to say goodbye

_log = logging.getLogger("tidemq.bridges")

Publish = Callable[[str, bytes], None]  # a retained message
COUNTS = ("messages_out", "messages_in", "bytes_out", "bytes_in")
DROPS = ("hops", "unmatched", "unfit", "refused")


@dataclass(slots=True)
class _Kept:
    """A bridge that is there."""

    upkeep: Upkeep
    work: concurrent.futures.Future[None]
    figures: ClientFigures | None = None  # of its session here, as of the last look


def check_bridge(bridge: Bridge, limits: Limits) -> None:
    """ConfigError for what only the machine knows to be wrong: files, and limits of this broker."""

    def wrong(key: str, problem: str, accepted: str) -> ConfigError:
        return refused("configuration", f"bridges.{bridge.name}.{key}", problem, [accepted])

    for url in bridge.addresses:
        try:
            if parse_url(url).websocket:
                import_module("tidemq.client.websocket_link")  # UsageError where its package is missing
        except UsageError as error:
            raise wrong("addresses", str(error), "mqtt://HOST:PORT") from error
    if bridge.password_file:
        read_secret(Path(bridge.password_file))
    if bridge.tls is not None:
        try:
            make_tls(bridge.tls)
        except BridgeError as error:
            raise wrong("tls", str(error), "readable PEM files") from error
    for each in (*outward_filters(bridge), *inward_filters(bridge)):
        ways = topic_filter_ways(each) if not topic_filter_fault(each) else 0
        if (
            len(each.encode()) > limits.topic_bytes_max
            or topic_filter_fault(each, limits.topic_levels_max)
            or ways > limits.wildcard_ways_max
        ):
            accepted = "a filter within topic_bytes_max, topic_levels_max and wildcard_ways_max"
            raise wrong("topics", f"{each[:80]!r} is refused", accepted)


class Bridges:
    """Of one broker, from the first `follow`, once clients are let in, to `close`."""

    def __init__(
        self, door: BridgeDoor, limits: Limits, lists: ClientLists, questions: Questions, publish: Publish
    ) -> None:
        self._door, self._limits = door, limits
        self._lists, self._questions = lists, questions
        self._publish = publish
        self._kept: dict[str, _Kept] = {}
        self._thread: LoopThread | None = None
        self._loop = asyncio.get_running_loop()
        self._gone: Counter[str] = Counter()  # counts of bridges that are no longer there
        self._is_closed = False

    async def follow(self, bridges: Iterable[Bridge]) -> None:
        """Has these in place of those that are there; one that is the same goes on untouched. ConfigError
        where one is wrong: then nothing has changed.
        """
        wanted = {each.name: each for each in bridges}
        now = {name: kept.upkeep.bridge for name, kept in self._kept.items()}
        changed = [each for name, each in wanted.items() if now.get(name) != each]
        for each in changed:
            check_bridge(each, self._limits)
        for name in now.keys() - wanted.keys():
            if name in self._kept:  # else it was closed meanwhile
                await self._end(name, removed=True)
            await self._end_session(PREFIX + name)
            _log.info("bridge %s was removed, with what waited for the other side", name)
        for each in changed:
            known: KnownFilters = {}
            if each.name in self._kept:
                upkeep = self._kept[each.name].upkeep
                await self._end(each.name, removed=False)
                known = _known_filters(upkeep, each)
            await self._begin(each, known)

    async def close(self) -> None:
        """Ends all of them; their queues stay. A `follow` that goes on meanwhile begins none."""
        self._is_closed = True
        while self._kept:
            await self._end(next(iter(self._kept)), removed=False)
        if (thread := self._thread) is not None:
            self._thread = None
            await asyncio.to_thread(thread.stop)

    async def watch(self) -> None:
        """Ends sessions of bridges that are gone, and looks at the queues, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._end_sessions())
            group.create_task(self._look())

    async def _look(self) -> None:
        while True:
            for name, kept in list(self._kept.items()):
                with suppress(TimeoutError, UsageError):  # it is busy, or stops
                    found = await self._lists.one(PREFIX + name)
                    kept.figures = None if found is None else found.figures
            await asyncio.sleep(LOOK_S)

    def figures(self) -> list[BridgeFigures]:
        """Of all, by their names."""
        found = []
        for name, kept in sorted(self._kept.items()):
            session = kept.figures
            found.append(
                BridgeFigures(
                    name=name,
                    client_id=PREFIX + name,
                    status=kept.upkeep.status,
                    queued_messages=session.queued_messages if session is not None else 0,
                    queued_bytes=session.queued_bytes if session is not None else 0,
                    counts=_counts_of(kept.upkeep),
                )
            )
        return found

    @property
    def counts(self) -> Mapping[str, int]:
        """What was dropped, of all together, since the start; `figures` has each bridge's own."""
        totals = Counter(self._gone)
        for kept in self._kept.values():
            totals.update(_counts_of(kept.upkeep))
        counts = {}
        counts["dropped_bridge_hops"] = totals["dropped_hops"]
        counts["dropped_bridge_unmatched"] = totals["dropped_unmatched"]
        counts["dropped_bridge_unfit"] = totals["dropped_unfit"]
        counts["dropped_bridge_refused"] = totals["dropped_refused"]
        return counts

    # --- one bridge

    async def _begin(self, bridge: Bridge, known: KnownFilters) -> None:
        if self._is_closed:
            raise UsageError("the broker stops")
        thread = self._thread
        if thread is None:
            thread = self._thread = LoopThread()
            thread.start()
        client_id = PREFIX + bridge.name
        filters = outward_filters(bridge)
        self._door.expect(client_id, filters)
        home = Home(self._door.path, client_id, self._door.secret, self._limits)
        upkeep = Upkeep(bridge, home, read_secret, self._on_change, known)
        stale = await self._stale(client_id, filters)
        if self._is_closed:
            raise UsageError("the broker stops")
        self._say(upkeep, b"0")
        declared: concurrent.futures.Future[None] = concurrent.futures.Future()
        work = thread.submit(upkeep.run(stale, declared))
        self._kept[bridge.name] = _Kept(upkeep, work)
        try:
            await asyncio.wait_for(asyncio.wrap_future(declared), DECLARE_S)
        except TimeoutError:
            _log.error("bridge %s: the own broker has not taken its subscriptions yet", bridge.name)

    async def _stale(self, client_id: str, filters: Mapping[str, int]) -> list[str]:
        """Filters of the bridge's session that are no longer wanted."""
        try:
            found = await self._lists.one(client_id)
        except TimeoutError:
            return []
        return [] if found is None else [each for each, _, _ in found.filters if each not in filters]

    async def _end(self, name: str, *, removed: bool) -> None:
        kept = self._kept.pop(name)
        kept.upkeep.leaves = removed
        kept.work.cancel()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(kept.upkeep.ended), END_S)
        self._gone.update(_counts_of(kept.upkeep))
        self._say(kept.upkeep, b"" if removed else b"0")

    async def _end_session(self, client_id: str) -> None:
        with suppress(TimeoutError):
            await self._questions.ask(0, Inquiry(kind=InquiryKind.END, text=client_id))

    async def _end_sessions(self) -> None:
        """Of bridges that went from the configuration while the broker did not run, with what waited."""
        cursor: Cursor | None = None
        while True:
            with suppress(TimeoutError):  # the reactor is busy: once more
                page = await self._lists.page(Question(client_id=PREFIX, rows_max=100), cursor)
                for each in page.clients:
                    name = each.client_id.removeprefix(PREFIX)
                    if name not in self._kept:
                        _log.info("bridge %s is gone, and so is what waited for the other side", name)
                        await self._end_session(each.client_id)
                if (cursor := page.cursor) is None:
                    return
            await asyncio.sleep(PAUSE_S)

    def _on_change(self, bridge: Bridge, connected: bool) -> None:
        """Called on the bridges' thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody is to be told any more
            self._loop.call_soon_threadsafe(self._changed, bridge, connected)

    def _changed(self, bridge: Bridge, connected: bool) -> None:
        kept = self._kept.get(bridge.name)
        if kept is not None and kept.upkeep.bridge is bridge:
            self._say(kept.upkeep, b"1" if connected else b"0")

    def _say(self, upkeep: Upkeep, state: bytes) -> None:
        if upkeep.bridge.notifications:
            with suppress(TideMQError):  # the broker stops, or the topic is beyond its limits
                self._publish(upkeep.state_topic, state)


def _known_filters(upkeep: Upkeep, bridge: Bridge) -> KnownFilters:
    """What sessions at the other side have from a bridge before this one. In another version of MQTT they
    were made with other options.
    """
    if client_id_of(upkeep.bridge) != client_id_of(bridge):
        return {}
    if upkeep.bridge.protocol_version == bridge.protocol_version:
        return upkeep.remote_filters
    return {url: dict.fromkeys(filters, OTHER_OPTIONS) for url, filters in upkeep.remote_filters.items()}


def _counts_of(upkeep: Upkeep) -> dict[str, int]:
    counts, status = upkeep.counts, upkeep.status
    found = {name: getattr(counts, name) for name in COUNTS}
    found |= {f"dropped_{name}": getattr(counts, f"dropped_{name}") for name in DROPS}
    return found | {"connects": status.connects, "failures": status.failures}
