"""The plugins of a broker: those that the program gives it, and those that its configuration names, which may
change while it runs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tidemq.broker.hooks import Hooks
from tidemq.broker.plugins.batches import Batches
from tidemq.broker.plugins.forks import OnForks, SessionForked
from tidemq.broker.plugins.messages import Route
from tidemq.broker.plugins.plugin import Plugin
from tidemq.broker.providers import Reloadable, close_provider, counts_of, find_provider
from tidemq.config import Config, refused
from tidemq.engine.door.events import Acknowledged, HeldMessage
from tidemq.errors import UsageError
from tidemq.limits import Limits
from tidemq.wire import Publish, encode, encode_properties, forwarded_properties

if TYPE_CHECKING:
    from tidemq.engine import Engine
    from tidemq.engine.door.plugin_access import PluginAccess

LIFECYCLE = (
    "connect",
    "authorise",
    "subscribe",
    "disconnect",
)  # whether these are asked is known at the start


def publish_route(engine: Engine, route: Route) -> None:
    """Publishes it as the broker; UsageError for what a PUBLISH may not hold."""
    packet_id = 1 if route.qos else 0
    encode(Publish(topic=route.topic, qos=route.qos, packet_id=packet_id, properties=route.properties), 5)
    engine.publish(
        route.topic,
        route.payload,
        qos=route.qos,
        retain=route.retain,
        properties=forwarded_properties(encode_properties(route.properties)),
        message_expiry_s=route.properties.message_expiry_s,
    )


class OwnPlugins:
    """Of one broker; belongs to its event loop."""

    def __init__(self, config: Config, given: Iterable[object]) -> None:
        """UsageError for a plugin of the program's that is wrong."""
        self._config = config  # whose plugins there are
        self.hooks = Hooks(given, config.fault_lines_max)
        self._given = self.hooks.plugins
        self._own: list[Plugin] = []
        self._counts: Counter[str] = Counter()
        self._begin: Callable[[], Batches] | None = None
        self._batches: Batches | None = None  # None: it has not started
        self._ending: set[asyncio.Task[None]] = set()  # what plugins that have gone still do

    @property
    def counts(self) -> Mapping[str, int]:
        """What plugins have done, and what has become of messages because of them."""
        return sum((Counter(counts_of(each.implementation)) for each in self._own), Counter(self._counts))

    def load(self) -> None:
        """Makes those that the configuration names. ConfigError, with the key, where one is wrong."""
        self._own = self._make(self._config, [], [])
        self.hooks.replace(self._checked(self._own))

    def start(self, engine: Engine, access: PluginAccess) -> None:
        """From now on the engine asks them."""
        config = self._config

        def begin() -> Batches:
            batches = Batches(
                access,
                lambda route: publish_route(engine, route),
                self.hooks.of,
                config.limits,
                config.fault_lines_max,
                self._counts,
            )
            batches.start()
            return batches

        self._begin = begin
        self._batches = begin()

    async def reload(self, found: Config) -> None:
        """Has those that `found` names, and has each that can read its files again do so. ConfigError where
        one is wrong, or needs a restart: then the plugins stay as they are.
        """
        if found.plugins != self._config.plugins:
            await self._change(found)
        failure: Exception | None = None
        for plugin in self._own:
            if isinstance(plugin.implementation, Reloadable):
                try:
                    done = plugin.implementation.reload()
                    if inspect.isawaitable(done):
                        await done
                except Exception as error:  # noqa: BLE001 - it may raise anything, and the others are read, too
                    failure = failure or error
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """What is with them now is not waited for."""
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._batches is not None:
            await self._batches.close()
        for plugin in self._own:
            await close_provider(plugin.implementation)

    def on_held(self, message: HeldMessage) -> None:
        """A message that they decide on."""
        assert self._batches is not None
        self._batches.on_held(message)

    def on_acknowledged(self, event: Acknowledged) -> None:
        """A message that a client has acknowledged."""
        assert self._batches is not None
        self._batches.on_acknowledged(event)

    def forks(self) -> OnForks:
        """What tells them of forked sessions, on any thread."""
        loop = asyncio.get_running_loop()

        def tell(sessions: list[SessionForked]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(self._on_forks, sessions)

        return tell

    def _on_forks(self, sessions: list[SessionForked]) -> None:
        assert self._batches is not None
        self._batches.on_forks(sessions)

    def _make(self, config: Config, known: Sequence[Plugin], new: list[Plugin]) -> list[Plugin]:
        """The plugins that it names: those that are known with the same settings, or new ones, which are
        added to `new` at once.
        """
        left = list(known)
        made: list[Plugin] = []
        for number, each in enumerate(config.plugins):
            same = next((plugin for plugin in left if plugin.config == each), None)
            if same is not None:
                left.remove(same)
            else:
                provider = find_provider("plugin", each.name, each.options, config, f"plugins.{number}.name")
                same = Plugin(provider, **each.model_dump())
                new.append(same)
            made.append(same)
        return made

    def _checked(self, own: Sequence[Plugin]) -> Hooks:
        """Those and the program's. ConfigError where a setting does not fit a plugin."""
        try:
            hooks = Hooks([*self._given, *own], self._config.fault_lines_max)
            for plugin in own:
                for text in (*plugin.filters, *plugin.delivered_filters):
                    _check_length(plugin, text, self._config.limits)
        except UsageError as error:
            raise refused("configuration", "plugins", str(error), ["what docs/plugins.md says"]) from error
        return hooks

    def _change_to(self, own: Sequence[Plugin]) -> Hooks:
        """ConfigError where they cannot take the place of those of now."""
        hooks = self._checked(own)
        for name in LIFECYCLE:
            if hooks.has(name) != self.hooks.has(name):
                problem = f"the first plugin with the hook {name} comes, or the last goes"
                raise refused("configuration", "plugins", problem, ["a restart"])
        return hooks

    async def _change(self, found: Config) -> None:
        new: list[Plugin] = []
        try:
            own = self._make(found, self._own, new)
            hooks = self._change_to(own)
        except BaseException:
            for plugin in new:  # nobody else has them
                await close_provider(plugin.implementation)
            raise
        gone = [plugin for plugin in self._own if plugin not in own]
        before = self._batches
        self.hooks.replace(hooks)
        self._own, self._config = own, found
        if before is not None and self._begin is not None:
            self._batches = self._begin()
            task = asyncio.create_task(_end(before, gone, tuple(self._ending)))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def _check_length(plugin: Plugin, topic_filter: str, limits: Limits) -> None:
    levels, size = topic_filter.count("/") + 1, len(topic_filter.encode())
    if levels > limits.topic_levels_max or size > limits.topic_bytes_max:
        beyond = "is beyond topic_levels_max or topic_bytes_max"
        raise UsageError(f"plugin {plugin.name}: the filter {topic_filter[:40]!r} {beyond}")


async def _end(batches: Batches, gone: Sequence[Plugin], earlier: Sequence[asyncio.Task[None]]) -> None:
    """Once what was with plugins has gone on, those that are not wanted any more are closed; what went before
    may still be with them.
    """
    try:
        await batches.drain()
        await asyncio.gather(*earlier, return_exceptions=True)
    finally:
        await batches.close()
        for plugin in gone:
            await close_provider(plugin.implementation)
