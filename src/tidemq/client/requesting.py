"""Request and response (5.0 section 4.10): one subscription for all answers, told apart by correlation
data."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from tidemq.client.message import Message


class Requesting:
    """Belongs to one client. `subscribe(topic, callback)` is how it gets at answers."""

    def __init__(self, subscribe: Callable[[str, Callable[[Message], None]], Awaitable[object]]) -> None:
        self._subscribe = subscribe
        self._subscribed = asyncio.Lock()
        self.topic: str | None = None  # where answers come to
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, asyncio.Future[Message]] = {}

    async def open(self, topic: str) -> str:
        """Subscribes to `topic` the first time; returns the topic for answers."""
        async with self._subscribed:
            if self.topic is None:
                await self._subscribe(topic, self._take)
                self.topic = topic
        return self.topic

    def expect(self) -> tuple[bytes, asyncio.Future[Message]]:
        """Correlation data of a new request, and its answer to come."""
        correlation = next(self._numbers).to_bytes(8, "big")
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(correlation, None))
        return correlation, answer

    def _take(self, message: Message) -> None:
        answer = self._waiting.get(message.correlation_data or b"")
        if answer is not None and not answer.done():
            answer.set_result(message)

    def close(self, error: Exception) -> None:
        """No answers will come any more."""
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # whoever waited may be gone
