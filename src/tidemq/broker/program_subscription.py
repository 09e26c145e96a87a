"""A program's own subscription to a broker it embeds: an asynchronous iterator over a bounded queue."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

from tidemq.engine.door.events import Received
from tidemq.errors import UsageError
from tidemq.wire import NO_PROPERTIES, Properties, decode_properties

if TYPE_CHECKING:
    from tidemq.engine import Engine


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the broker passes it on."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


class Subscription:
    """Yields messages from when it is entered, or first iterated, until it is closed or the broker stops.

    Use it with `async with`, or iterate it at once: then it ends when nothing refers to it any more. When
    `queue_messages_max` wait for the program, further ones are dropped and counted in `dropped`. One task may
    iterate.
    """

    def __init__(
        self, begin: Callable[[Subscription], int], end: Callable[[int], None], queue_messages_max: int
    ) -> None:
        """`begin` gives the number of the engine's receiver, `end` takes it back."""
        self._begin = begin
        self._end = end
        self._queue_messages_max = queue_messages_max
        self._queue: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._receiver: int | None = None
        self._closed = False
        self.dropped = 0

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        self._open()
        return self

    async def __anext__(self) -> Message:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Ends the subscription; what is queued may still be read. May be called twice."""
        if not self._closed:
            self._closed = True
            self._wake.set()
            if self._receiver is not None:
                self._end(self._receiver)

    def _open(self) -> None:
        if self._closed:
            raise UsageError("the subscription is closed; make a new one")
        if self._receiver is None:
            self._receiver = self._begin(self)

    def put(self, message: Message) -> bool:
        """For the broker: queues a message; False when it was dropped."""
        if len(self._queue) >= self._queue_messages_max:
            self.dropped += 1
            return False
        self._queue.append(message)
        self._wake.set()
        return True


class Subscriptions:
    """Those of one broker's program; `counts` has what they dropped."""

    def __init__(self, engine: Callable[[], Engine | None]) -> None:
        """`engine`: None as long as the broker does not run."""
        self._engine = engine
        self._by_receiver: WeakValueDictionary[int, Subscription] = WeakValueDictionary()
        self.counts: Counter[str] = Counter()

    def make(self, topic_filter: str, qos: int, queue_messages_max: int) -> Subscription:
        """One that begins when it is entered or iterated; then UsageError unless the broker runs."""

        def begin(subscription: Subscription) -> int:
            engine = self._engine()
            if engine is None:
                raise UsageError("the broker is not running")
            receiver: int = engine.subscribe(topic_filter, qos)
            self._by_receiver[receiver] = subscription
            return receiver

        def end(receiver: int) -> None:
            self._by_receiver.pop(receiver, None)
            if (engine := self._engine()) is not None:
                engine.unsubscribe(receiver)

        return Subscription(begin, end, queue_messages_max)

    def on_received(self, event: Received) -> None:
        """A message for one of them, which may have been closed while the message was on its way."""
        subscription = self._by_receiver.get(event.receiver)
        if subscription is None:
            return
        properties = decode_properties(event.properties) if event.properties else NO_PROPERTIES
        message = Message(event.topic, event.payload, event.qos, event.retain, properties)
        if not subscription.put(message):
            self.counts["dropped_program_queue"] += 1

    def close(self) -> None:
        """Ends all of them."""
        for subscription in list(self._by_receiver.values()):
            subscription.close()
