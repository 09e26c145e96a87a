"""Wakes who waits on an event loop for messages to come to a stream, which happens on the keeper's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Growth:
    """Of all streams of a broker. Nothing is done on the keeper's thread unless somebody waits."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()  # of the loop's thread alone
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted = False  # somebody waits, and has not been told

    def tell(self) -> None:
        """Something has changed: messages came, or a stream was deleted. On any thread."""
        # who waits says so before it looks, and this comes after the change: one of the two is seen
        if self._wanted and self._loop is not None:
            self._wanted = False
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake)

    async def wait(self, awake: asyncio.Event, timeout_s: float, is_due: Callable[[], bool]) -> None:
        """Returns when a stream has changed, `awake` is set or `timeout_s` is over; at once where there is
        something to do already (`is_due`). On one event loop only.
        """
        self._loop = asyncio.get_running_loop()
        self._waiting.add(awake)
        self._wanted = True
        try:
            if not is_due():
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await awake.wait()
        finally:
            self._waiting.discard(awake)

    def _wake(self) -> None:
        for awake in self._waiting:
            awake.set()
