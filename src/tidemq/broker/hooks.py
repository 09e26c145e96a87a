"""What a plugin of a broker may be told and asked, through pluggy.

A plugin is any object with methods marked `@hookimpl` and named as those of `HookSpecs`. A broker has those
that the program gives it (`Broker(config, plugins=[...])`), and those that its configuration names. A hook
may be a plain method, which must not block, or `async`. The engine calls Python only for hooks that some
plugin has, and for `publish` and `delivered` only with messages on the filters that the plugin names.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Iterable, Sequence

import pluggy

from tidemq.broker.completion import is_wanted
from tidemq.broker.fault_log import Lines
from tidemq.broker.plugins.calling import Hook
from tidemq.broker.plugins.forks import SessionForked
from tidemq.broker.plugins.messages import Decision, Route
from tidemq.broker.plugins.plugin import Plugin
from tidemq.broker.providers import Access
from tidemq.engine.door.events import Acknowledged, Connected, Disconnected, HeldMessage, SubscribeRequest
from tidemq.errors import UsageError
from tidemq.wire import fault_text, topic_filter_fault

hookspec = pluggy.HookspecMarker("tidemq")
hookimpl = pluggy.HookimplMarker("tidemq")

_log = logging.getLogger("tidemq")

_LEVELS_MAX = 65_535  # of a filter, whatever the limits are: the engine looks at those


class HookSpecs:
    """The hooks. An implementation may leave out the argument if it does not need it."""

    @hookspec
    def connect(self, event: Connected) -> Awaitable[None] | None:
        """A client was accepted."""

    @hookspec
    def authorise(self, access: Access) -> Awaitable[bool] | bool | None:
        """A client wants to publish or subscribe, and the authoriser allows it: False vetoes, and so does
        whatever is neither True nor None, and an error.
        """

    @hookspec
    def subscribe(self, request: SubscribeRequest) -> Awaitable[None] | None:
        """A client subscribes to these filters, which are allowed; its SUBACK waits for the hook."""

    @hookspec
    def publish(
        self, messages: list[HeldMessage]
    ) -> Awaitable[Sequence[Decision | None] | None] | Sequence[Decision | None] | None:
        """Clients publish messages, which are allowed, on the plugin's `filters`; they wait for the answer.
        It has a Decision for each, or None where that one passes; None alone passes them all.
        """

    @hookspec
    def delivered(self, messages: list[Acknowledged]) -> Awaitable[None] | None:
        """Clients have acknowledged messages on the plugin's `delivered_filters`."""

    @hookspec
    def disconnect(self, event: Disconnected) -> Awaitable[None] | None:
        """A connection ended; `client_id` is empty when it had not sent a CONNECT.

        A slow `connect` of the same client may still be running.
        """

    @hookspec
    def session_forked(self, sessions: list[SessionForked]) -> Awaitable[None] | None:
        """Both sides of a split cluster have had these sessions; of each one side's goes on."""

    @hookspec
    def tick(self) -> Awaitable[Sequence[Route] | None] | Sequence[Route] | None:
        """Every `tick_s` seconds. What it returns is published."""


class Hooks:
    """The plugins of one broker. UsageError where one of them, or a setting of it, is wrong."""

    def __init__(self, plugins: Iterable[object] = (), log_lines_max: int = 20) -> None:
        self._failures = Lines(log_lines_max, "failures of hooks", logging.ERROR)
        self._manager = pluggy.PluginManager("tidemq")
        self._manager.add_hookspecs(HookSpecs)
        self.plugins = [each if isinstance(each, Plugin) else Plugin(each) for each in plugins]
        try:
            for plugin in reversed(self.plugins):  # pluggy asks the last one first
                self._manager.register(plugin.implementation)
            self._manager.check_pending()
            self._refuse_wrappers()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise UsageError(f"plugin refused: {error}") from error
        for plugin in self.plugins:
            self._check_settings(plugin)

    def replace(self, other: Hooks) -> None:
        """From now on has the other's plugins."""
        self._manager, self.plugins = other._manager, other.plugins

    def has(self, *names: str) -> bool:
        """Whether a plugin has one of these hooks."""
        return any(getattr(self._manager.hook, name).get_hookimpls() for name in names)

    def of(self, name: str) -> list[tuple[Plugin, Hook]]:
        """The plugins that have this hook, in their order, with it: it takes its argument, whether the
        implementation wants it or not.
        """
        by_object = {id(plugin.implementation): plugin for plugin in self.plugins}
        return [(by_object[id(each.plugin)], _taking_one(each)) for each in self._implementations(name)]

    async def notify(self, name: str, argument: object) -> None:
        """Calls the plugins' hooks of that name, all at once; what fails in one is logged, and hides nothing
        from the others.
        """
        await asyncio.gather(*(self._tell(each, argument) for each in self._implementations(name)))

    async def authorised(self, access: Access) -> bool:
        """False when one of the plugins vetoes; raises what a plugin raises, and UsageError for an answer
        that is none.
        """
        for hook in self._implementations("authorise"):
            answer = await _call(hook, access)
            if answer is False:
                return False
            if answer is not True and answer is not None:
                raise UsageError(f"{hook.plugin_name}.authorise answered {answer!r}: neither bool nor None")
        return True

    async def _tell(self, hook: pluggy.HookImpl, argument: object) -> None:
        try:
            await _call(hook, argument)
        except Exception:  # noqa: BLE001 - a plugin may raise anything
            if self._failures.take():  # strangers can cause it
                _log.exception("hook %s of plugin %s failed", hook.function.__name__, hook.plugin_name)

    def _implementations(self, name: str) -> list[pluggy.HookImpl]:
        """In the order in which the plugins were given."""
        found: list[pluggy.HookImpl] = getattr(self._manager.hook, name).get_hookimpls()
        return found[::-1]

    def _refuse_wrappers(self) -> None:
        for name in (name for name in vars(HookSpecs) if not name.startswith("_")):
            if any(each.wrapper or each.hookwrapper for each in self._implementations(name)):
                raise UsageError(f"plugin refused: {name} is a wrapper, has to be a plain hook")

    def _check_settings(self, plugin: Plugin) -> None:
        """What a hook needs is there, and nothing for a hook that is not."""
        settings = {
            "publish": ("filters", plugin.filters),
            "delivered": ("delivered_filters", plugin.delivered_filters),
            "tick": ("tick_s", plugin.tick_s),
        }
        own = {hook for hook in settings if any(each is plugin for each, _ in self.of(hook))}
        for hook, (key, value) in settings.items():
            if hook in own and not value:
                raise UsageError(f"plugin {plugin.name}: {key}: its hook {hook} needs it")
            if value and hook not in own:
                raise UsageError(f"plugin {plugin.name}: {key}: it has no hook {hook}")
        for key in ("filters", "delivered_filters"):
            texts = getattr(plugin, key)
            if isinstance(texts, str):
                raise UsageError(f"plugin {plugin.name}: {key}: one text; accepted: several, in a list")
            for text in texts:
                if fault := topic_filter_fault(text, _LEVELS_MAX):
                    raise UsageError(f"plugin {plugin.name}: {key}: {text!r}: {fault_text(fault)}")
                if text.startswith("$share/"):
                    raise UsageError(
                        f"plugin {plugin.name}: {key}: {text!r}: a plugin shares no subscription"
                    )


def _taking_one(hook: pluggy.HookImpl) -> Hook:
    """The method as one that takes an argument."""
    function: Hook = hook.function
    return function if hook.argnames else lambda _: hook.function()


async def _call(hook: pluggy.HookImpl, argument: object) -> object:
    """One plugin's: pluggy would ask no other after one that fails."""
    try:
        result = _taking_one(hook)(argument)
        return await result if inspect.isawaitable(result) else result
    except asyncio.CancelledError as error:
        if is_wanted():
            raise
        raise UsageError(f"{hook.plugin_name}.{hook.function.__name__} was cancelled") from error
