"""A trace: what one client, or those of one address, send and get, for as long as somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tidemq.engine.door.events import Traced
from tidemq.engine.door.view import EngineView

WAITING_MAX = 2000  # packets that who looks has not taken; what is more is left out and counted


@dataclass(slots=True)
class Traces:
    """Of one broker; belongs to its event loop. One at a time."""

    view: EngineView
    left_out: int = 0  # of this trace, here
    _waiting: asyncio.Queue[Traced] = field(default_factory=lambda: asyncio.Queue(WAITING_MAX))
    _goes_on: bool = False

    async def begin(
        self, client_id: str, address: str, mark: Callable[[], Awaitable[None]]
    ) -> asyncio.Queue[Traced] | None:
        """`mark` tells the reactors about clients that are connected. None: another trace goes on. To be
        given back by `end`.
        """
        if self._goes_on:
            return None
        self._goes_on, self.left_out = True, 0
        self._waiting = asyncio.Queue(WAITING_MAX)
        self.view.trace(client_id, address)
        try:
            await mark()
        except BaseException:
            self.end()
            raise
        return self._waiting

    def end(self) -> None:
        """The trace that goes on is over."""
        self._goes_on = False
        self.view.end_trace()

    def on_traced(self, event: Traced) -> None:
        """From the engine."""
        if self._goes_on:
            try:
                self._waiting.put_nowait(event)
            except asyncio.QueueFull:
                self.left_out += 1
