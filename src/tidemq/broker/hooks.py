"""What a plugin of a broker may be told and asked, through pluggy.

A plugin is any object with methods marked `@hookimpl` and named as those of `HookSpecs`; it is given to one
broker (`Broker(config, plugins=[...])`). A hook may be a plain method, which must not block, or `async`. The
engine calls Python only for hooks that some plugin has.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Iterable

import pluggy

from tidemq.broker.providers import Access
from tidemq.engine.events import Connected, Disconnected, PublishRequest, SubscribeRequest
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
        """A client wants to publish or subscribe, and the authoriser allows it: False or an error vetoes."""

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

    def __init__(self, plugins: Iterable[object] = ()) -> None:
        self._manager = pluggy.PluginManager("tidemq")
        self._manager.add_hookspecs(HookSpecs)
        try:
            for plugin in plugins:
                self._manager.register(plugin)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise UsageError(f"plugin refused: {error}") from error

    def has(self, *names: str) -> bool:
        """Whether a plugin has one of these hooks."""
        return any(getattr(self._manager.hook, name).get_hookimpls() for name in names)

    async def notify(self, name: str, argument: object) -> None:
        """Calls the plugins' hooks of that name; an error is logged and stops nobody."""
        try:
            parameter = "event" if name in ("connect", "disconnect") else "request"
            for result in getattr(self._manager.hook, name)(**{parameter: argument}):
                if inspect.isawaitable(result):
                    await result
        except Exception:
            _log.exception("hook %s failed", name)

    async def authorised(self, access: Access) -> bool:
        """False when one of the plugins vetoes; raises what a plugin raises."""
        allowed = True
        for result in self._manager.hook.authorise(access=access):
            answer = await result if inspect.isawaitable(result) else result
            allowed = allowed and answer is not False
        return allowed
