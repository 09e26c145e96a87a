"""One hook of one plugin, called in time, or not at all while it keeps failing."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import Callable

from tidemq.broker.circuit_breaker import CircuitBreaker
from tidemq.broker.completion import is_wanted
from tidemq.broker.fault_log import Lines
from tidemq.broker.plugins.plugin import Plugin

_log = logging.getLogger("tidemq")

Hook = Callable[[object], object]
"""A plugin's own method; what it returns may have to be awaited."""


class Failure:
    """In place of an answer."""


FAILURE = Failure()


class Caller:
    """Calls it. Belongs to the broker's event loop; one call at a time."""

    def __init__(self, plugin: Plugin, name: str, hook: Hook, counts: Counter[str], lines: Lines) -> None:
        """`name`: of the hook; `counts` and `lines` are those of all plugins."""
        self.plugin = plugin
        self._name = name
        self._hook = hook
        self._counts = counts
        self._lines = lines
        self._breaker = CircuitBreaker(plugin.config.failures_max, plugin.config.open_s)

    async def call(self, argument: object) -> object:
        """Its answer, or FAILURE: it has raised, it is late, or it is not called now."""
        async with self.plugin.turn(self._name):
            return await self._call(argument)

    async def _call(self, argument: object) -> object:
        permit = self._breaker.enter()
        if permit is None:
            return FAILURE
        self._counts["plugin_calls"] += 1
        began_s, late = time.monotonic(), False
        answer: object = FAILURE
        try:
            async with asyncio.timeout(self.plugin.config.timeout_s):
                found = self._hook(argument)
                answer = await found if inspect.isawaitable(found) else found
        except TimeoutError:
            late = True
        except (Exception, asyncio.CancelledError) as error:  # a plugin may raise anything
            if isinstance(error, asyncio.CancelledError) and is_wanted():
                raise
            self._counts["plugin_calls_failed"] += 1
            if self._lines.take():  # strangers can cause it
                _log.exception("hook %s of plugin %s failed", self._name, self.plugin.name)
        # a plain method cannot be interrupted: its answer counts, and that it was late
        late = late or time.monotonic() - began_s > self.plugin.config.timeout_s
        if late:
            self._counts["plugin_calls_late"] += 1
            if self._lines.take():
                _log.error("hook %s of plugin %s took too long (timeout_s)", self._name, self.plugin.name)
        was_open = self._breaker.is_open
        self._breaker.leave(permit, succeeded=answer is not FAILURE and not late)
        self._note_breaker(was_open)
        return answer

    def _note_breaker(self, was_open: bool) -> None:
        if self._breaker.is_open and not was_open:
            self._counts["plugin_circuit_opened"] += 1
            _log.error(
                "hook %s of plugin %s keeps failing, and is not called for %g s: messages %s",
                self._name,
                self.plugin.name,
                self.plugin.config.open_s,
                "pass" if self.plugin.config.on_failure == "pass" else "are refused",
            )
        elif was_open and not self._breaker.is_open:
            _log.info("hook %s of plugin %s works again", self._name, self.plugin.name)
