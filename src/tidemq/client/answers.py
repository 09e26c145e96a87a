"""Waiting for what only the server can bring: its answers, and room in the buffer."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from tidemq.client.connection import Connection
from tidemq.client.outgoing import Outgoing
from tidemq.client.receipt import Group

T = TypeVar("T")
AHEAD_MESSAGES = 1024  # at first
_WORTH = 1.4  # times the rate, for twice as many under way


class Pace:
    """How many messages of one call are under way: few, for many leave the processor's caches and then take
    twice as long; but more, as long as more are answered a second for it, as by a server that is far away."""

    def __init__(self, limit: int) -> None:
        self.ahead = min(AHEAD_MESSAGES, limit)
        self._limit = limit
        self._grows = True
        self._rate = 0.0
        self._done, self._at_s = 0, 0.0

    def look(self, done: int, now_s: float) -> None:
        """So many have been answered until now."""
        if not self._grows:
            return
        rate = (done - self._done) / max(now_s - self._at_s, 1e-6) if self._at_s else 0.0
        self._done, self._at_s = done, now_s
        if self.ahead == self._limit:
            self._grows = False
        elif rate >= _WORTH * self._rate:
            self.ahead, self._rate = min(2 * self.ahead, self._limit) if rate else self.ahead, rate
        else:
            self.ahead, self._grows = max(self.ahead // 2, 1), False


class Answers:
    """Of one client. While somebody waits, its connection is read even if the program takes no messages."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._connection: Connection | None = None
        self._awaited = 0

    def connect(self, connection: Connection | None) -> None:
        """Answers come from there; None: from nowhere."""
        self._connection = connection
        if connection is not None:
            connection.await_answers(self._awaited != 0)

    def begin(self) -> None:
        """Somebody waits."""
        self._awaited += 1
        if self._awaited == 1 and self._connection is not None:
            self._connection.await_answers(True)

    def end(self) -> None:
        """And no longer."""
        self._awaited -= 1
        if self._awaited == 0 and self._connection is not None:
            self._connection.await_answers(False)

    async def wait(self, answer: asyncio.Future[T]) -> T:
        """The answer."""
        if answer.done():
            return answer.result()
        self.begin()
        try:
            return await answer
        finally:
            self.end()

    async def wait_room(self) -> None:
        """Returns when some of the output has left, or much of the buffer has become free."""
        if self._outgoing.closed_error is not None:
            raise self._outgoing.closed_error
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outgoing.room_waiters.append(waiter)
        try:
            await self.wait(waiter)
        finally:
            if waiter.cancelled() and waiter in self._outgoing.room_waiters:
                self._outgoing.room_waiters.remove(waiter)

    async def wait_done(self, group: Group, remaining: int) -> None:
        """Returns when no more of its messages than that remain."""
        if group.remaining > remaining:
            group.wake_at = remaining
            group.waiter = asyncio.get_running_loop().create_future()
            await self.wait(group.waiter)
