"""A subscription of a client: what the server granted, and its messages."""

from __future__ import annotations

from collections.abc import Callable

from tidemq.client.queue import MessageIterator, MessageQueue
from tidemq.wire import NO_PROPERTIES, Properties, ReasonCode, Subscribe
from tidemq.wire.filters import matches


class Subscription:
    """Made by `Client.subscribe`. Iterate it for the messages of its filters alone; from then on they no
    longer come through `Client.messages`. Two iterated subscriptions with overlapping filters both see what
    both match.
    """

    def __init__(self, claim: Callable[[Subscription], MessageQueue], request: Subscribe) -> None:
        self._claim = claim  # gives it a queue of its own
        self.request = request
        self.filters = tuple(each.filter for each in request.subscriptions)
        self.reasons: tuple[ReasonCode, ...] = ()  # by filter, in the order of the call
        self.properties: Properties = NO_PROPERTIES  # of SUBACK
        self._queue: MessageQueue | None = None

    @property
    def granted_qos(self) -> tuple[int, ...]:
        """By filter, in the order of the call."""
        return tuple(int(each) for each in self.reasons)

    @property
    def messages(self) -> MessageQueue:
        """The queue of its own messages, which it has from the first use on."""
        if self._queue is None:
            self._queue = self._claim(self)
        return self._queue

    def __aiter__(self) -> MessageIterator:
        return aiter(self.messages)

    def matches(self, topic: str) -> bool:
        """Whether messages on `topic` are among its own."""
        return any(matches(each.filter, topic) for each in self.request.subscriptions)

    def __repr__(self) -> str:
        granted = zip(self.filters, self.reasons, strict=False)
        return f"<Subscription {', '.join(f'{name!r}: {reason!s}' for name, reason in granted)}>"
