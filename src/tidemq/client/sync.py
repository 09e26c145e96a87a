"""The blocking client: the names of `tidemq.client.Client` without `await`, for any number of threads.

An event loop in a thread of its own runs the asynchronous client. Calls wait for it, but for publishing:
there a message is checked by the calling thread and handed over in batches, so that threads do not wait for
each other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from tidemq.client import client as asynchronous
from tidemq.client.errors import AnswerTimeoutError, BufferFullError, DisconnectedError
from tidemq.client.handover import Handover
from tidemq.client.message import Message
from tidemq.client.queue import MessageQueue
from tidemq.client.receipt import Receipt as AsyncReceipt
from tidemq.client.settings import Options, Payload, Settings
from tidemq.client.subscription import Subscription as AsyncSubscription
from tidemq.errors import TideMQError, UsageError
from tidemq.wire import NO_PROPERTIES, Properties, ReasonCode

T = TypeVar("T")
Callback = Callable[[Message], None]
_BATCH = 1024  # messages fetched from the loop at a time


def wait_for(answer: concurrent.futures.Future[T], timeout_s: float | None, what: str) -> T:
    """The result; `AnswerTimeoutError` after `timeout_s`."""
    try:
        return answer.result(timeout_s)
    except concurrent.futures.TimeoutError as error:
        if answer.done():
            raise
        answer.cancel()
        raise AnswerTimeoutError(f"{what}: nothing within {timeout_s:g} s") from error


class Receipt:
    """Of a message that was published. Its methods wait, for `timeout_s` at most; None waits for ever."""

    __slots__ = ("_loop", "_receipt")

    def __init__(self, receipt: AsyncReceipt, loop: asyncio.AbstractEventLoop) -> None:
        self._receipt, self._loop = receipt, loop

    @property
    def done(self) -> bool:
        """`acknowledged` would not wait."""
        return self._receipt.done

    @property
    def reason(self) -> ReasonCode | None:
        """The reason code of the acknowledgement; None before."""
        return self._receipt.reason

    def sent(self, timeout_s: float | None = None) -> None:
        """Returns when the operating system has taken the message."""
        answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._receipt.notify_sent, answer)
        wait_for(answer, timeout_s, f"sending to {self._receipt.topic!r}")

    def stored(self, timeout_s: float | None = None) -> None:
        """Returns when the message is in the outbox on disk."""
        answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._receipt.notify_stored, answer)
        wait_for(answer, timeout_s, f"storing for {self._receipt.topic!r}")

    def acknowledged(self, timeout_s: float | None = None) -> ReasonCode:
        """The reason code of the acknowledgement; `PublishError` where the message was refused."""
        answer: concurrent.futures.Future[ReasonCode] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._receipt.notify_acknowledged, answer)
        return wait_for(answer, timeout_s, f"publishing to {self._receipt.topic!r}")


class Messages:
    """Received messages: `for message in messages` waits for each, until the client ends. Threads may share
    it: each message goes to one of them."""

    def __init__(self, queue: MessageQueue, loop: asyncio.AbstractEventLoop) -> None:
        self._queue, self._loop = queue, loop
        self._changed = threading.Condition()
        self._fetched: deque[Message] = deque()
        self._given: deque[Message] = deque()  # not reported to the loop yet
        self._reporting = False
        self._fetching = False
        self._end: BaseException | None = None

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.get()
        except DisconnectedError:
            if isinstance(self._end, StopAsyncIteration):
                raise StopIteration from None
            raise

    def get(self, timeout_s: float | None = None) -> Message:
        """The next message; `AnswerTimeoutError` where none came within `timeout_s`."""
        try:
            message = self._fetched.popleft()
        except IndexError:
            message = self._wait(timeout_s)
        self._given.append(message)
        if message.qos and not self._reporting:
            self._reporting = True
            # a closed loop has nobody to acknowledge to
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._report)
        return message

    def _wait(self, timeout_s: float | None) -> Message:
        with self._changed:
            found = self._changed.wait_for(self._next, timeout_s)
        if found is None:
            raise AnswerTimeoutError(f"no message within {timeout_s:g} s")
        if isinstance(found, BaseException):
            raise DisconnectedError("no message will come any more") from found
        return found

    def each(self, timeout_s: float) -> Iterator[Message]:
        """Messages until none has come for `timeout_s`."""
        try:
            while True:
                yield self.get(timeout_s)
        except AnswerTimeoutError:
            return

    def _next(self) -> Message | BaseException | None:
        """A message, or the end; None when one is being waited for."""
        if not self._fetched and not self._fetching and self._end is None:
            self._fetching = True
            work = self._fetch()
            try:
                asyncio.run_coroutine_threadsafe(work, self._loop)
            except RuntimeError:  # the loop is closed: nobody else is at the queue
                work.close()
                self._fetched.extend(self._queue.fetch())
                self._end = StopAsyncIteration()
        try:
            return self._fetched.popleft()
        except IndexError:  # other threads take without the lock
            return self._end

    async def _fetch(self) -> None:
        """In the loop: brings what is there, at least one message."""
        end: BaseException | None = None
        self._report()
        try:
            await self._queue.wait()
        except (StopAsyncIteration, TideMQError) as error:
            end = error
        with self._changed:
            self._fetched.extend(self._queue.fetch(_BATCH))
            self._end = end
            self._fetching = False
            self._changed.notify_all()

    def _report(self) -> None:
        """In the loop: what was given to the program is acknowledged."""
        self._reporting = False
        self._queue.give([self._given.popleft() for _ in range(len(self._given))])


class Subscription:
    """Made by `Client.subscribe`. Iterate it for the messages of its filters alone."""

    def __init__(self, subscription: AsyncSubscription, client: Client) -> None:
        self._subscription, self._client = subscription, client
        self._messages: Messages | None = None
        self.filters = subscription.filters
        self.reasons = subscription.reasons
        self.granted_qos = subscription.granted_qos
        self.properties = subscription.properties

    @property
    def messages(self) -> Messages:
        """Its own messages; from the first use on they no longer come through `Client.messages`."""
        with self._client._lock:
            if self._messages is None:
                self._messages = self._client._call(self._claim())
            return self._messages

    async def _claim(self) -> Messages:
        return Messages(self._subscription.messages, asyncio.get_running_loop())

    def __iter__(self) -> Messages:
        return self.messages


class Client:
    """`with Client("mqtt://host") as client:`. Arguments as of the asynchronous client, and the same
    behaviour."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        self._async = asynchronous.Client(url, **options)
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._handover = Handover(
            self._async._outgoing,
            self.settings.buffer_messages_max,
            self.settings.buffer_full == "drop_oldest",
        )
        self._messages: Messages | None = None
        self._workers: list[threading.Thread] = []

    @property
    def settings(self) -> Settings:
        """As given, and defaults."""
        return self._async.settings

    @property
    def client_id(self) -> str:
        """As the server knows it."""
        return self._async.client_id

    @property
    def is_connected(self) -> bool:
        """There is a connection now."""
        return self._async.is_connected

    @property
    def held_messages(self) -> int:
        """Published and not done: unsent or unacknowledged."""
        return self._handover.held_messages

    # --- connecting

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect(wait=kind is None)

    def connect(self) -> None:
        """Connects; what `with` does first. `ConnectError` or `ServerRefusedError` where that fails."""
        if self._thread is not None:
            raise UsageError("a client connects once; make a new one")
        self._thread = threading.Thread(target=self._run, name="tidemq-client", daemon=True)
        self._thread.start()
        self._handover.open(self._wake)
        try:
            self._call(self._async.connect())
        except BaseException:
            self._stop()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _stop(self) -> None:
        assert self._thread is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def disconnect(
        self, *, wait: bool = True, reason: int = ReasonCode.SUCCESS, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Ends the client; first waits, for `close_timeout_s`, until all is sent and acknowledged."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                return
            self._call(self._async.disconnect(wait=wait, reason=reason, properties=properties))
            for worker in self._workers:
                if worker is not threading.current_thread():
                    worker.join()
            self._stop()

    def wait_connected(self, timeout_s: float | None = None) -> None:
        """Returns when there is a connection."""
        self._call(self._async.wait_connected(), timeout_s)

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs a coroutine in the loop and waits for it."""
        if self._thread is None or not self._thread.is_alive():
            work.close()
            raise DisconnectedError("the client is not connected")
        if self._thread is threading.current_thread():
            work.close()
            raise UsageError("a callback must not wait for its own client")
        return wait_for(asyncio.run_coroutine_threadsafe(work, self._loop), timeout_s, "no answer")

    # --- publishing

    def publish(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        timeout_s: float | None = None,
    ) -> ReasonCode:
        """Publishes a message; returns when it is acknowledged, with the reason code (QoS 0: when handed
        over)."""
        receipt = self._async._outgoing.prepare(topic, payload, qos, retain, properties)
        answer: concurrent.futures.Future[ReasonCode] | None = None
        if qos:
            answer = concurrent.futures.Future()
            receipt.notify_acknowledged(answer)
        while not self._handover.offer(receipt):
            if self.settings.buffer_full != "wait":
                raise BufferFullError("the client's buffer is full")
            self._call(self._async._room(), timeout_s)
        if answer is None:
            return ReasonCode.SUCCESS
        return wait_for(answer, timeout_s, f"publishing to {topic!r}")

    def publish_nowait(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> Receipt:
        """Publishes a message and returns at once. `BufferFullError` where there is no room."""
        receipt = self._async._outgoing.prepare(topic, payload, qos, retain, properties)
        if not self._handover.offer(receipt):
            raise BufferFullError("the client's buffer is full")
        return Receipt(receipt, self._loop)

    def publish_many(
        self,
        messages: Iterable[tuple[str, Payload] | Message],
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """As of the asynchronous client; the loop's thread iterates `messages`."""
        work = self._async.publish_many(messages, qos=qos, retain=retain, properties=properties)
        return self._call(work, timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when every message published so far is acknowledged and has left."""
        self._call(self._async.flush(), timeout_s)

    def _wake(self) -> None:
        """There is something in the handover."""
        try:
            self._loop.call_soon_threadsafe(self._handover.accept)
        except RuntimeError as error:
            raise DisconnectedError("the client is closed") from error

    # --- subscribing

    @property
    def messages(self) -> Messages:
        """All messages that no subscription's own iterator or callback has."""
        with self._lock:
            if self._messages is None:
                self._messages = Messages(self._async.messages, self._loop)
            return self._messages

    def subscribe(
        self,
        *filters: str | tuple[str, int],
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        callback: Callback | None = None,
        properties: Properties = NO_PROPERTIES,
        timeout_s: float | None = None,
    ) -> Subscription:
        """As of the asynchronous client; a callback is called in a thread of the subscription."""
        work = self._async.subscribe(
            *filters,
            qos=qos,
            no_local=no_local,
            retain_as_published=retain_as_published,
            retain_handling=retain_handling,
            properties=properties,
        )
        subscription = Subscription(self._call(work, timeout_s), self)
        if callback is not None:
            self._start_worker(subscription.messages, callback)
        return subscription

    def _start_worker(self, messages: Messages, callback: Callback) -> None:
        def work() -> None:
            try:
                for message in messages:
                    try:
                        callback(message)
                    except Exception as error:
                        context = {"message": f"a callback failed for {message!r}", "exception": error}
                        self._loop.call_soon_threadsafe(self._loop.call_exception_handler, context)
            except TideMQError:
                return  # the client has ended

        worker = threading.Thread(target=work, name="tidemq-callback", daemon=True)
        self._workers.append(worker)
        worker.start()

    def unsubscribe(
        self,
        *filters: str | Subscription,
        properties: Properties = NO_PROPERTIES,
        timeout_s: float | None = None,
    ) -> tuple[ReasonCode, ...]:
        """Ends subscriptions, by filter or whole; returns the reason codes (none below 5.0)."""
        names = [name for each in filters for name in ([each] if isinstance(each, str) else each.filters)]
        return self._call(self._async.unsubscribe(*names, properties=properties), timeout_s)

    def acknowledge(self, message: Message) -> None:
        """Acknowledges a message where the client was made with `acknowledge="manual"`."""
        self._loop.call_soon_threadsafe(self._async.acknowledge, message)

    def request(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        qos: int = 0,
        timeout_s: float = 10.0,
        properties: Properties = NO_PROPERTIES,
    ) -> Message:
        """Publishes a request and returns the message that answers it."""
        work = self._async.request(topic, payload, qos=qos, timeout_s=timeout_s, properties=properties)
        return self._call(work)

    def respond(self, request: Message, payload: Payload = b"", *, qos: int = 0) -> ReasonCode:
        """Answers a message that has a response topic."""
        return self._call(self._async.respond(request, payload, qos=qos))

    def reauthenticate(self) -> None:
        """Authenticates again on the connection that there is; returns when the server has accepted it."""
        self._call(self._async.reauthenticate())
