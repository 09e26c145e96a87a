from asyncio import Future
from concurrent.futures import Future as ThreadFuture

from tidemq.wire import ReasonCode

class Progress:
    written: int

class Group:
    count: int
    remaining: int
    first_error: Exception | None
    waiter: Future[None] | None
    wake_at: int
    @property
    def roomless(self) -> Receipt | None: ...

class Receipt:
    """Returned by `publish_nowait`; its two awaitables may be awaited any number of times, or not at all."""

    @property
    def topic(self) -> str: ...
    @property
    def qos(self) -> int: ...
    @property
    def sent(self) -> Future[None]:
        """Done when the operating system has taken the message; `DisconnectedError` for a QoS 0 message that
        a broken connection took along. A message that is sent again has left already."""

    @property
    def acknowledged(self) -> Future[ReasonCode]:
        """The reason code of the acknowledgement; at QoS 0 as soon as it is written. `PublishError` where it
        was refused, `DisconnectedError` where the client ended before."""

    @property
    def stored(self) -> Future[None]:
        """Done when the message is in the outbox on disk; `UsageError` where it never will be."""

    @property
    def done(self) -> bool:
        """`acknowledged` would not wait."""

    @property
    def reason(self) -> ReasonCode | None:
        """The reason code of the acknowledgement; None before."""

    def refuse(self, error: Exception) -> None: ...
    def notify_stored(self, waiter: Future[None] | ThreadFuture[None]) -> None: ...
    def notify_sent(self, waiter: Future[None] | ThreadFuture[None]) -> None: ...
    def notify_acknowledged(self, waiter: Future[ReasonCode] | ThreadFuture[ReasonCode]) -> None: ...
