"""The blocking client: the names of `tidemq.client.Client` without `await`, for any number of threads.

An event loop in a thread of its own runs the asynchronous client. Calls wait for it, but for publishing:
there a message is checked by the calling thread and handed over in batches, so that threads do not wait for
each other.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from tidemq.client import client as asynchronous
from tidemq.client.callbacks import ConnectionChange
from tidemq.client.errors import AnswerTimeoutError, BufferFullError, DisconnectedError, late_error
from tidemq.client.handover import Handover
from tidemq.client.loop_thread import LoopThread, wait_for
from tidemq.client.message import Message
from tidemq.client.receipt import Receipt as AsyncReceipt
from tidemq.client.settings import Options, Settings
from tidemq.client.subscription import Subscription as AsyncSubscription
from tidemq.client.sync_messages import Messages
from tidemq.errors import TideMQError, UsageError
from tidemq.wire import NO_PROPERTIES, Payload, Properties, ReasonCode

T = TypeVar("T")
Callback = Callable[[Message], None]


class Receipt:
    """Of a message that was published. Its methods wait, for `timeout_s` at most; None waits for ever."""

    __slots__ = ("_loop", "_receipt")

    def __init__(self, receipt: AsyncReceipt, loop: LoopThread) -> None:
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
        self._loop.post(self._receipt.notify_sent, answer)
        wait_for(answer, timeout_s, f"sending to {self._receipt.topic!r}")

    def stored(self, timeout_s: float | None = None) -> None:
        """Returns when the message is in the outbox on disk."""
        answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop.post(self._receipt.notify_stored, answer)
        wait_for(answer, timeout_s, f"storing for {self._receipt.topic!r}")

    def acknowledged(self, timeout_s: float | None = None) -> ReasonCode:
        """The reason code of the acknowledgement; `PublishError` where the message was refused."""
        answer: concurrent.futures.Future[ReasonCode] = concurrent.futures.Future()
        self._loop.post(self._receipt.notify_acknowledged, answer)
        return wait_for(answer, timeout_s, f"publishing to {self._receipt.topic!r}")


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
                self._client._queues.append(self._messages)
            return self._messages

    async def _claim(self) -> Messages:
        return Messages(self._subscription.messages, self._client._loop)

    def __iter__(self) -> Messages:
        return self.messages


class Client:
    """`with Client("mqtt://host") as client:`. Arguments as of the asynchronous client, and the same
    behaviour; `on_connection` is called in a thread of its own."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        self._on_connection = options.pop("on_connection", None)
        if self._on_connection is not None:
            options["on_connection"] = self._tell
        self._async = asynchronous.Client(url, **options)
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        """All that a client has from its connection to its end."""
        self._loop = LoopThread()
        self._handover = Handover(self._async._outgoing)
        self._messages: Messages | None = None
        self._queues: list[Messages] = []  # of subscriptions that there are
        self._ended: list[weakref.ref[Messages]] = []  # of others, which the program may have
        self._workers: list[threading.Thread] = []
        self._changes: queue.SimpleQueue[ConnectionChange | None] = queue.SimpleQueue()

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
        """Connects; what `with` does first. `ConnectError` or `ServerRefusedError` where that fails. A client
        that has ended may connect again, as the asynchronous one."""
        with self._lock:
            if self._async._outgoing.closed_error is not None:
                self.disconnect(wait=False)  # where it gave up by itself
                self._async._begin()
                self._begin()
            if self._loop.is_running:
                raise UsageError("the client is connected, or connects")
            self._loop.start()
        self._handover.open(self._wake)
        if self._on_connection is not None:
            self._start_worker(self._tell_all)
        try:
            self._call(self._async.connect())
        except BaseException:
            self.disconnect(wait=False)
            raise

    def disconnect(
        self, *, wait: bool = True, reason: int = ReasonCode.SUCCESS, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Ends the client; first waits, for `close_timeout_s`, until all is sent and acknowledged; what the
        calling thread has taken is acknowledged as well. A callback may call it, for it waits for callbacks
        only where none does."""
        if wait:
            ended = [messages for each in self._ended if (messages := each()) is not None]
            for messages in (*self._queues, *ended):
                messages.finish()
        try:
            with contextlib.suppress(DisconnectedError):  # it has ended, or another thread ends it
                self._call(self._async.disconnect(wait=wait, reason=reason, properties=properties))
            self._changes.put(None)
            if threading.current_thread() not in self._workers:
                deadline_s = time.monotonic() + self.settings.close_timeout_s
                for worker in list(self._workers):
                    worker.join(max(0.0, deadline_s - time.monotonic()))
        finally:
            self._loop.stop()

    def wait_connected(self, timeout_s: float | None = None) -> None:
        """Returns when there is a connection; the client's error where there will be none."""
        self._call(self._async.wait_connected(), timeout_s)

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs a coroutine in the loop and waits for it."""
        return self._loop.run(work, timeout_s)

    def _start_worker(self, work: Callable[[], None]) -> None:
        workers = self._workers

        def run() -> None:
            try:
                work()
            finally:
                workers.remove(worker)

        worker = threading.Thread(target=run, name="tidemq-callback", daemon=True)
        workers.append(worker)
        worker.start()

    def _call_back(self, callback: Callable[[T], object], value: T) -> bool:
        """False where it failed."""
        try:
            callback(value)
        except Exception as error:  # noqa: BLE001 - it is the program's callback
            context = {"message": f"a callback failed for {value!r}", "exception": error}
            self._loop.report(context)
            return False
        return True

    def _tell(self, change: ConnectionChange) -> None:
        self._changes.put(change)

    def _tell_all(self) -> None:
        assert self._on_connection is not None
        while (change := self._changes.get()) is not None:
            self._call_back(self._on_connection, change)

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
        over, or, with `timeout_s`, when written). After `timeout_s` it is taken back if it was not sent:
        `AnswerTimeoutError`, whose `withdrawn` says so."""
        receipt = self._async._outgoing.prepare(topic, payload, qos, retain, properties)
        answer: concurrent.futures.Future[ReasonCode] | None = None
        if qos or timeout_s is not None:
            answer = concurrent.futures.Future()
            receipt.notify_acknowledged(answer)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        taken = False  # by the client's buffer
        try:
            while not (taken := self._handover.offer(receipt)):
                if self.settings.buffer_full != "wait":
                    raise BufferFullError("the client's buffer is full")
                self._call(self._wait_room(receipt), _left_s(deadline_s))
            if answer is None:
                return ReasonCode.SUCCESS
            return wait_for(answer, _left_s(deadline_s), f"publishing to {topic!r}")
        except AnswerTimeoutError:
            error = late_error(topic, timeout_s or 0.0)
            error.withdrawn = not taken or self._call(self._withdraw(receipt, error))
            raise error from None

    async def _wait_room(self, receipt: AsyncReceipt) -> None:
        """Looks again, in the loop: what the thread saw may be done by now, and wakes nobody."""
        self._handover.accept()
        if not self._async._outgoing.has_room_for(receipt):
            await self._async._answers.wait_room()

    async def _withdraw(self, receipt: AsyncReceipt, error: AnswerTimeoutError) -> bool:
        return self._async._outgoing.withdraw(receipt, error)

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
        self._loop.post(self._handover.accept)

    # --- subscribing

    @property
    def messages(self) -> Messages:
        """All messages that no subscription's own iterator or callback has."""
        with self._lock:
            if self._messages is None:
                self._messages = Messages(self._async.messages, self._loop)
                self._queues.append(self._messages)
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
            messages = subscription.messages
            self._start_worker(lambda: self._give_all(messages, callback))
        return subscription

    def _give_all(self, messages: Messages, callback: Callback) -> None:
        with contextlib.suppress(TideMQError):  # the client has ended
            for message in messages:
                if not self._call_back(callback, message) and self.settings.acknowledge == "auto":
                    self.acknowledge(message, reason_code=ReasonCode.UNSPECIFIED_ERROR)

    def unsubscribe(
        self,
        *filters: str | Subscription,
        properties: Properties = NO_PROPERTIES,
        timeout_s: float | None = None,
    ) -> tuple[ReasonCode, ...]:
        """Ends subscriptions, by filter or whole; returns the reason codes (none below 5.0)."""
        names = [name for each in filters for name in ([each] if isinstance(each, str) else each.filters)]
        try:
            return self._call(self._async.unsubscribe(*names, properties=properties), timeout_s)
        finally:
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Queues that get no more are the program's: dropped when it drops them."""
        with self._lock:
            self._ended = [each for each in self._ended if each() is not None]
            self._ended += [weakref.ref(each) for each in self._queues if each.ended]
            self._queues = [each for each in self._queues if not each.ended]

    def acknowledge(self, message: Message, *, reason_code: int = ReasonCode.SUCCESS) -> None:
        """Acknowledges a message of QoS 1 or 2 now, as of the asynchronous client."""
        self._loop.post(lambda: self._async.acknowledge(message, reason_code=reason_code))

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


def _left_s(deadline_s: float | None) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
