"""What a plugin of a broker may be told and asked, through pluggy.

A plugin is any object with methods marked `@hookimpl` and named as those of `HookSpecs`; it is given to one
broker (`Broker(config, plugins=[...])`). A hook may be a plain method, which must not block, or `async`. The
engine calls Python only for hooks that some plugin has.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Iterable

import pluggy

from tidemq.broker.fault_log import Lines
from tidemq.broker.providers import Access
from tidemq.engine.door.events import Connected, Disconnected, PublishRequest, SubscribeRequest
from tidemq.errors import UsageError

hookspec = pluggy.HookspecMarker("tidemq")
hookimpl = pluggy.HookimplMarker("tidemq")

_log = logging.getLogger("tidemq")


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
    def publish(self, request: PublishRequest) -> Awaitable[None] | None:
        """A client publishes a message that is allowed; the message waits for the hook."""

    @hookspec
    def disconnect(self, event: Disconnected) -> Awaitable[None] | None:
        """A connection ended; `client_id` is empty when it had not sent a CONNECT.

        A slow `connect` of the same client may still be running.
        """


class Hooks:
    """The plugins of one broker."""

    def __init__(self, plugins: Iterable[object] = (), log_lines_max: int = 20) -> None:
        self._failures = Lines(log_lines_max, "failures of hooks", logging.ERROR)
        self._manager = pluggy.PluginManager("tidemq")
        self._manager.add_hookspecs(HookSpecs)
        try:
            for plugin in plugins:
                self._manager.register(plugin)
            self._manager.check_pending()
            self._refuse_wrappers()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise UsageError(f"plugin refused: {error}") from error

    def has(self, *names: str) -> bool:
        """Whether a plugin has one of these hooks."""
        return any(getattr(self._manager.hook, name).get_hookimpls() for name in names)

    async def notify(self, name: str, argument: object) -> None:
        """Calls the plugins' hooks of that name, all at once; what fails in one is logged, and hides nothing
        from the others.
        """
        parameter = "event" if name in ("connect", "disconnect") else "request"
        await asyncio.gather(*(self._tell(each, parameter, argument) for each in self._implementations(name)))

    async def authorised(self, access: Access) -> bool:
        """False when one of the plugins vetoes; raises what a plugin raises, and UsageError for an answer
        that is none.
        """
        for hook in self._implementations("authorise"):
            answer = await _call(hook, "access", access)
            if answer is False:
                return False
            if answer is not True and answer is not None:
                raise UsageError(f"{hook.plugin_name}.authorise answered {answer!r}: neither bool nor None")
        return True

    async def _tell(self, hook: pluggy.HookImpl, parameter: str, argument: object) -> None:
        try:
            await _call(hook, parameter, argument)
        except Exception:  # noqa: BLE001 - a plugin may raise anything
            if self._failures.take():  # strangers can cause it
                _log.exception("hook %s of plugin %s failed", hook.function.__name__, hook.plugin_name)

    def _implementations(self, name: str) -> list[pluggy.HookImpl]:
        """In pluggy's order: the plugin that was given last is the first."""
        found: list[pluggy.HookImpl] = getattr(self._manager.hook, name).get_hookimpls()
        return found[::-1]

    def _refuse_wrappers(self) -> None:
        for name in (name for name in vars(HookSpecs) if not name.startswith("_")):
            if any(each.wrapper or each.hookwrapper for each in self._implementations(name)):
                raise UsageError(f"plugin refused: {name} is a wrapper, has to be a plain hook")


async def _call(hook: pluggy.HookImpl, parameter: str, argument: object) -> object:
    """One plugin's: pluggy would ask no other after one that fails."""
    result = hook.function(argument) if parameter in hook.argnames else hook.function()
    return await result if inspect.isawaitable(result) else result
