"""Sees what happens at a broker, as one of its plugins: clients, subscriptions, and every message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemq.broker import Broker, Message, Subscription, hookimpl
from tidemq.engine.door.events import Connected, Disconnected, SubscribeRequest
from tidemq.testing.proxy import Link, Proxy
from tidemq.wire.filters import matches

_QUEUE_MESSAGES_MAX = 1_000_000  # published faster than this process looks at them
_SHOWN_MAX = 10
_MARK = "$tidemq/testing/mark"  # `#` does not match it


class Witness:
    """Of one broker after the other behind the same proxy. Belongs to their event loop."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._broker: Broker | None = None
        self._reading: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._links: dict[str, tuple[int, Link]] = {}  # by client identifier, with the connection's number
        self._filters: set[str] = set()  # that clients have subscribed to so far
        self._untaken: list[Message] = []
        self._skipping = False
        self._skipped = 0
        self.messages: list[Message] = []

    @hookimpl
    def connect(self, event: Connected) -> None:
        link = self._proxy.links.get(int(event.peer.rpartition(":")[2]))
        if link is not None:  # else it was cut meanwhile
            self._links[event.client_id] = event.connection, link
            self._changed.set()

    @hookimpl
    def disconnect(self, event: Disconnected) -> None:
        if event.client_id in self._links and self._links[event.client_id][0] == event.connection:
            del self._links[event.client_id]

    @hookimpl
    def subscribe(self, request: SubscribeRequest) -> None:
        self._filters.update(topic_filter for topic_filter, _ in request.filters)
        self._changed.set()

    async def begin(self, broker: Broker) -> None:
        """Sees what is published from now on, but not the retained messages that the broker begins with."""
        self._broker = broker
        self._skipping, self._skipped, before = True, 0, -1
        messages = aiter(broker.subscribe("#", queue_messages_max=_QUEUE_MESSAGES_MAX))
        self._reading = asyncio.create_task(self._read(messages))
        while self._skipped != before:
            before = self._skipped
            await self.catch_up()
        self._skipping = False

    async def end(self) -> None:
        """Returns when the broker, which has stopped, has told everything."""
        assert self._reading is not None
        await self._reading
        self._broker = None
        self._links.clear()

    async def catch_up(self) -> None:
        """Returns when all that the broker had done before the call is known here."""
        if self._broker is not None:
            async with self._broker.subscribe(_MARK) as marks:
                await self._broker.publish(_MARK)
                async for _ in marks:
                    break

    async def link(self, client_id: str, timeout_s: float) -> Link:
        """The client's connection, as soon as there is one. Raises TimeoutError."""

        def missing() -> str:
            return f"no client {client_id!r} (connected: {', '.join(sorted(self._links)) or 'none'})"

        await self._until(lambda: client_id in self._links, timeout_s, missing)
        return self._links[client_id][1]

    def forget(self, links: list[Link]) -> None:
        """Their clients count as connected when they come again."""
        self._links = {name: known for name, known in self._links.items() if known[1] not in links}

    async def subscribed(self, topic_filter: str, timeout_s: float) -> None:
        """Returns when a client has subscribed to exactly this filter. Raises TimeoutError."""

        def missing() -> str:
            return (
                f"no subscription to {topic_filter!r} (so far: {', '.join(sorted(self._filters)) or 'none'})"
            )

        await self._until(lambda: topic_filter in self._filters, timeout_s, missing)
        await self.catch_up()  # the answer, which follows the hook, is with the engine

    async def take(self, topic_filter: str, count: int, timeout_s: float) -> list[Message]:
        """The oldest messages on the filter not taken before. Raises TimeoutError, and takes none."""

        def found() -> list[Message]:
            return [message for message in self._untaken if matches(topic_filter, message.topic)][:count]

        def missing() -> str:
            return f"{len(found())} of {count} messages on {topic_filter!r} came{self._others(topic_filter)}"

        await self._until(lambda: len(found()) == count, timeout_s, missing)
        taken = found()
        objects = {id(message) for message in taken}
        self._untaken = [message for message in self._untaken if id(message) not in objects]
        return taken

    def _others(self, topic_filter: str) -> str:
        topics = dict.fromkeys(each.topic for each in self._untaken if not matches(topic_filter, each.topic))
        shown = ", ".join(repr(topic) for topic in list(topics)[:_SHOWN_MAX])
        more = f" and {len(topics) - _SHOWN_MAX} more topics" if len(topics) > _SHOWN_MAX else ""
        return f", besides those on {shown}{more}," if topics else ""

    async def _read(self, messages: Subscription) -> None:
        async for message in messages:
            if self._skipping:
                self._skipped += 1
                continue
            self.messages.append(message)
            self._untaken.append(message)
            self._changed.set()

    async def _until(
        self, happened: Callable[[], bool], timeout_s: float, missing: Callable[[], str]
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not happened():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"{missing()} within {timeout_s:g} s") from None
