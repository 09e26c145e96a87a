"""The asynchronous client: what a program sees. Bytes, packets and their order are `outgoing` and
`incoming`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from tidemq.client.address import parse_url
from tidemq.client.connection import Connection
from tidemq.client.errors import (
    AnswerTimeoutError,
    ConnectError,
    DisconnectedError,
    FalseServerError,
    ServerRefusedError,
)
from tidemq.client.incoming import Incoming
from tidemq.client.message import Message
from tidemq.client.outbox import Outbox
from tidemq.client.outgoing import FLUSH_BYTES, Outgoing
from tidemq.client.queue import Intake, MessageQueue
from tidemq.client.receipt import Group, Receipt
from tidemq.client.requesting import Requesting
from tidemq.client.settings import Options, Payload, Settings, random_client_id
from tidemq.client.subscribing import Subscribing, check_reasons
from tidemq.client.subscription import Callback, Subscription
from tidemq.errors import StoreError, TideMQError, UsageError
from tidemq.wire import (
    NO_PROPERTIES,
    Connack,
    Connect,
    Disconnect,
    Properties,
    ReasonCode,
    Subscribe,
    Unsubscribe,
)
from tidemq.wire import Subscription as FilterOptions

# after these the client does not come back by itself
FINAL_REASONS = frozenset(
    {
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BANNED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
        ReasonCode.SESSION_TAKEN_OVER,
    }
)
_INFLIGHT_MAX_3 = 20  # below 5.0 a server cannot say how many it takes; Mosquitto's default
_CLOSED = "the client is closed"
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Client:
    """A client of any MQTT server: `async with Client("mqtt://host") as client:`.

    Keyword arguments are those of `Settings`. It belongs to the event loop that connects it; for threads
    there is `tidemq.client.sync.Client`. A lost connection comes back by itself: what is published meanwhile
    waits in a bounded buffer, what was not acknowledged is sent again, subscriptions are made anew where the
    server has forgotten them.
    """

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        self._address = parse_url(url)
        self.settings = settings = Settings(**options)
        if settings.auth is not None and (settings.password, self._address.password) != (None, None):
            raise UsageError("auth takes the password's place: CONNECT would send the password as it is")
        self._outgoing = Outgoing(
            self._on_output,
            self._on_much_output,
            settings.buffer_messages_max,
            settings.buffer_bytes_max,
            settings.buffer_full == "drop_oldest",
            settings.topic_aliases_max,
        )
        self._intake = Intake(
            self._outgoing,
            settings.acknowledge == "manual",
            settings.queue_messages_max,
            settings.queue_bytes_max,
        )
        self._queue = MessageQueue(self._intake)
        self._incoming = Incoming(self._outgoing, self._intake, self._queue)
        self._subscribing = Subscribing(self._outgoing, self._incoming, self._intake, self._queue)
        self._requesting = Requesting(self._subscribe_to_answers)
        self._outbox: Outbox | None = None
        self._connection: Connection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._connected = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._awaited = 0  # answers
        self._client_id = settings.client_id or random_client_id()
        self._known = False  # the server has, or may have, a session of this client
        self.connack: Connack | None = None

    # --- connecting

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect(wait=kind is None)

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @property
    def held_messages(self) -> int:
        """Published and not done: unsent or unacknowledged."""
        return self._outgoing.held_messages

    @property
    def client_id(self) -> str:
        """As the server knows it."""
        return self._client_id

    @property
    def messages(self) -> MessageQueue:
        """Asynchronous iterator over all messages that no subscription's own iterator or callback has."""
        return self._queue

    async def connect(self) -> None:
        """Connects; what `async with` does first. `ConnectError` or `ServerRefusedError` where that fails."""
        if self._first is not None:
            raise UsageError("a client connects once; make a new one")
        self._first = asyncio.get_running_loop().create_future()
        if self.settings.outbox is not None:
            await self._open_outbox(Path(self.settings.outbox))
        self._supervisor = asyncio.create_task(self._supervise(), name=f"tidemq-client-{self._client_id}")
        try:
            await asyncio.shield(self._first)
        except BaseException:
            await self.disconnect(wait=False)
            raise

    async def _open_outbox(self, path: Path) -> None:
        self._outbox = Outbox(path, self._outgoing, self._fail)
        try:
            kept = await self._outbox.open(self._client_id)
            if self.settings.client_id not in ("", kept):
                raise StoreError(f"the outbox {path} belongs to the client {kept!r}")
        except BaseException:
            await self._outbox.close()
            raise
        self._client_id = kept

    def _fail(self, error: Exception) -> None:
        """The client cannot go on."""
        if self._supervisor is not None:
            self._supervisor.cancel()
        if self._connection is not None:
            self._connection.close(None)
        self._give_up(error)

    async def wait_connected(self) -> None:
        """Returns when there is a connection."""
        await self._connected.wait()

    async def _supervise(self) -> None:
        """Keeps a connection, until it may not or must not come back."""
        assert self._first is not None
        attempt = 0
        while True:
            try:
                connection = await self._open()
            except Exception as failure:
                error: Exception = failure
                again = self._first.done() or self.settings.retry_first
                if not again or not isinstance(error, ConnectError | ServerRefusedError):
                    self._give_up(error)
                    return
                attempt += 1
            else:
                begun_s = asyncio.get_running_loop().time()
                if not self._first.done():
                    self._first.set_result(None)
                error = await asyncio.shield(connection.end)
                self._lose()
                lasted_s = asyncio.get_running_loop().time() - begun_s
                attempt = 1 if lasted_s >= self.settings.backoff_s_max else attempt + 1
            if not self._comes_back(error):
                self._give_up(error)
                return
            delay_s = self._delay_s(attempt)
            _log.warning("%s; trying again in %.1f s", error, delay_s)
            await asyncio.sleep(delay_s)

    def _comes_back(self, error: Exception) -> bool:
        if isinstance(error, ServerRefusedError):
            return self.settings.reconnect and error.reason not in FINAL_REASONS
        return self.settings.reconnect and not isinstance(error, FalseServerError)

    def _delay_s(self, attempt: int) -> float:
        """Full jitter: anything from nothing to a bound that doubles."""
        settings = self.settings
        return random.uniform(
            0, min(settings.backoff_s_max, settings.backoff_s_min * 2.0 ** min(attempt - 1, 60))
        )

    async def _open(self) -> Connection:
        settings = self.settings
        receive_max = settings.receive_max if settings.version == 5 else 0xFFFF
        self._incoming.begin(
            settings.version, settings.packet_bytes_max, receive_max, settings.topic_aliases_max
        )
        connection = self._connection = Connection(
            settings,
            self._address,
            self._outgoing,
            self._incoming,
            self._intake,
            self._subscribing.apply,
            self._accept,
        )
        connection.await_answers(self._awaited != 0)
        try:
            await connection.open(self._make_connect())
        except BaseException:
            self._connection = None
            raise
        return connection

    def _make_connect(self) -> Connect:
        settings, address = self.settings, self._address
        auth_username = None if settings.auth is None else settings.auth.username
        username = settings.username if settings.username is not None else address.username
        password = settings.password if settings.password is not None else address.password
        return Connect(
            version=settings.version,
            client_id=self._client_id,
            clean_start=self._starts_clean and (not self._known or settings.version != 5),
            keep_alive_s=settings.keep_alive_s,
            will=settings.will,
            username=username if username is not None else auth_username,
            password=password.encode() if isinstance(password, str) else password,
            properties=settings.connect_properties(),
        )

    @property
    def _starts_clean(self) -> bool:
        """A client with an outbox never does: the session knows what has arrived."""
        return self.settings.clean_start and self._outbox is None

    def _accept(self, connack: Connack) -> None:
        """CONNACK said yes: subscriptions first, then messages."""
        settings, properties = self.settings, connack.properties
        self.connack = connack
        self._client_id = properties.assigned_client_id or self._client_id
        inflight_max = properties.receive_maximum or 0xFFFF
        if settings.version != 5:
            inflight_max = settings.inflight_max or _INFLIGHT_MAX_3
        self._outgoing.connect(
            settings.version,
            min(inflight_max, settings.inflight_max or 0xFFFF),
            properties.maximum_packet_size or 0xFFFFFFFF,
            2 if properties.maximum_qos is None else properties.maximum_qos,
            properties.retain_available is not False,
            properties.topic_alias_maximum or 0,
        )
        self._incoming.accept(connack.session_present)
        self._subscribing.connect(anew=not connack.session_present)
        if connack.session_present:
            self._outgoing.resume()
        else:
            self._outgoing.restart()
        self._known = True
        self._connected.set()

    def _lose(self) -> None:
        self._connected.clear()
        self._connection = None
        self._outgoing.disconnect()

    def _give_up(self, error: Exception) -> None:
        """There will be no other connection: `error` for all who wait, and for all who iterate."""
        self._lose()
        self._outgoing.close(error)
        self._requesting.close(error)
        clean = isinstance(error, DisconnectedError) and str(error) == _CLOSED
        self._subscribing.close(error, None if clean else error)
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)

    async def disconnect(
        self, *, wait: bool = True, reason: int = ReasonCode.SUCCESS, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Ends the client. First waits, for `close_timeout_s`, until all is sent and acknowledged.

        With reason 0x04 the server publishes the will. A session that this client began ends with it, unless
        `clean_start` is off or `properties` has a session expiry.
        """
        if wait and self.is_connected:
            await self._drain()
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait([supervisor])
        if self._connection is not None:
            connection = self._connection
            connection.close(self._goodbye(reason, properties) if self.is_connected else None)
            await connection.wait_closed(self.settings.close_timeout_s)
        if self._outbox is not None:
            await self._outbox.close()
        self._give_up(DisconnectedError(_CLOSED))
        tasks = self._tasks - {asyncio.current_task()}  # a callback may end its own client
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _goodbye(self, reason: int, properties: Properties) -> Disconnect:
        if self.settings.version != 5:
            return Disconnect()
        if properties.session_expiry_s is None and self._starts_clean and self.settings.session_expiry_s:
            properties = replace(properties, session_expiry_s=0)
        return Disconnect(reason=reason, properties=properties)

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError, TideMQError):
            async with asyncio.timeout(self.settings.close_timeout_s):
                await self.flush()

    async def flush(self) -> None:
        """Returns when every message published so far is acknowledged and has left."""
        while self._outgoing.held_messages or self._outgoing.output_bytes:
            await self._room()

    # --- bytes

    def _on_output(self) -> None:
        if self._connection is not None:
            self._connection.schedule_flush()

    def _on_much_output(self) -> None:
        if self._connection is not None:
            self._connection.flush()

    # --- publishing

    async def publish(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> ReasonCode:
        """Publishes a message; returns when it is acknowledged, with the reason code (QoS 0: when it is on
        its way).

        `PublishError` where the server refuses it. When the buffer is full the policy applies: "wait" waits
        here, the others raise `BufferFullError`. Cancelling does not take the message back.
        """
        outgoing = self._outgoing
        if qos == 0 and outgoing.output_bytes < FLUSH_BYTES and outgoing.has_room(len(payload)):
            outgoing.publish(topic, payload, qos, retain, properties)
            return ReasonCode.SUCCESS
        while not outgoing.has_room(len(payload)) and self.settings.buffer_full == "wait":
            await self._room()
        receipt = outgoing.publish(topic, payload, qos, retain, properties)
        if qos == 0:
            await asyncio.sleep(0)  # lets what was written leave, and others have their turn
            return ReasonCode.SUCCESS
        self._awaited += 1
        if self._awaited == 1:
            self._tell_awaited()
        try:
            return await receipt.acknowledged
        finally:
            self._awaited -= 1
            if self._awaited == 0:
                self._tell_awaited()

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
        return self._outgoing.publish(topic, payload, qos, retain, properties)

    async def publish_many(
        self,
        messages: Iterable[tuple[str, Payload] | Message],
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publishes pairs of topic and payload with the options of the call, or `Message`s with their own;
        returns their number when all are acknowledged. Waits for room whatever the policy is.

        After all others are done, the first error of any message is raised.
        """
        group = Group()
        rest = iter(messages)
        while self._outgoing.publish_some(rest, qos, retain, properties, group):
            if self._connection is not None:
                self._connection.flush()
            if self._outgoing.has_room(0):
                await asyncio.sleep(0)
            else:
                await self._room()
        count = group.count
        if group.remaining:
            group.waiter = asyncio.get_running_loop().create_future()
            await self._await_answer(group.waiter)
        if group.first_error is not None:
            raise group.first_error
        return count

    async def _room(self) -> None:
        """Returns when some of the output has left, or much of the buffer has become free."""
        if self._outgoing.closed_error is not None:
            raise self._outgoing.closed_error
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outgoing.room_waiters.append(waiter)
        await self._await_answer(waiter)

    async def _await_answer(self, answer: asyncio.Future[T]) -> T:
        """Waits for what only the server can bring: it is read on even if the program takes no messages."""
        if answer.done():
            return answer.result()
        self._awaited += 1
        if self._awaited == 1:
            self._tell_awaited()
        try:
            return await answer
        finally:
            self._awaited -= 1
            if self._awaited == 0:
                self._tell_awaited()

    def _tell_awaited(self) -> None:
        if self._connection is not None:
            self._connection.await_answers(self._awaited != 0)

    # --- subscribing

    async def subscribe(
        self,
        *filters: str | tuple[str, int],
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        callback: Callback | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> Subscription:
        """Subscribes to topic filters; returns when the server has answered, with what it granted.

        A filter is text, or text and its own QoS; the other options are those of 5.0. Messages come through
        `client.messages`, or, where the result is iterated, through it; or each is given to `callback`, which
        may be `async`: one at a time, in order. `SubscribeError` where a filter is refused.
        """
        if not filters:
            raise UsageError("subscribe to at least one topic filter")
        options = [
            FilterOptions(
                filter=each if isinstance(each, str) else each[0],
                qos=qos if isinstance(each, str) else each[1],
                no_local=no_local,
                retain_as_published=retain_as_published,
                retain_handling=retain_handling,
            )
            for each in filters
        ]
        packet = Subscribe(packet_id=1, subscriptions=tuple(options), properties=properties)
        subscription = Subscription(self._subscribing, packet)
        answer = self._subscribing.ask(packet)
        self._subscribing.add(subscription)
        if callback is not None:
            self._spawn(self._call_back(subscription.messages, callback))
        try:
            suback = await self._await_answer(answer)
            check_reasons(f"subscribing to {', '.join(subscription.filters)}", suback)
        except BaseException:
            self._subscribing.forget(subscription)
            raise
        subscription.reasons = tuple(ReasonCode(each) for each in suback.reasons)
        subscription.properties = suback.properties
        return subscription

    async def unsubscribe(
        self, *filters: str | Subscription, properties: Properties = NO_PROPERTIES
    ) -> tuple[ReasonCode, ...]:
        """Ends subscriptions, by filter or whole; returns the reason codes (none below 5.0).

        What is queued may still be taken. `SubscribeError` where one is refused.
        """
        if not filters:
            raise UsageError("unsubscribe from at least one topic filter")
        names = tuple(
            name for each in filters for name in ((each,) if isinstance(each, str) else each.filters)
        )
        packet = Unsubscribe(packet_id=1, filters=names, properties=properties)
        answer = await self._await_answer(self._subscribing.ask(packet))
        check_reasons(f"unsubscribing from {', '.join(names)}", answer)
        self._subscribing.forget_filters(names)
        return tuple(ReasonCode(each) for each in answer.reasons)

    async def _call_back(self, queue: MessageQueue, callback: Callback) -> None:
        async for message in queue:
            try:
                result = callback(message)
                if result is not None and inspect.isawaitable(result):
                    await result
            except Exception as error:
                context = {"message": f"a callback failed for {message!r}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="tidemq-callback")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def acknowledge(self, message: Message) -> None:
        """Acknowledges a message of QoS 1 or 2 where the client was made with `acknowledge="manual"`."""
        self._intake.acknowledge(message)

    async def request(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        qos: int = 0,
        timeout_s: float = 10.0,
        properties: Properties = NO_PROPERTIES,
    ) -> Message:
        """Publishes a request and returns the message that answers it (5.0 section 4.10).

        Answers come to `responses/` and the client identifier, below the server's response information where
        there is some. `AnswerTimeoutError` after `timeout_s`.
        """
        if self.settings.version != 5:
            raise UsageError("only MQTT 5.0 has request and response")
        try:
            async with asyncio.timeout(timeout_s):
                information = None if self.connack is None else self.connack.properties.response_info
                response_topic = await self._requesting.open(f"{information or 'responses'}/{self.client_id}")
                correlation, answer = self._requesting.expect()
                given = replace(properties, response_topic=response_topic, correlation_data=correlation)
                await self.publish(topic, payload, qos=qos, properties=given)
                return await self._await_answer(answer)
        except TimeoutError as error:
            raise AnswerTimeoutError(f"no answer from {topic!r} within {timeout_s:g} s") from error

    async def _subscribe_to_answers(self, topic: str, callback: Callback) -> Subscription:
        return await self.subscribe(topic, qos=1, callback=callback)

    async def respond(self, request: Message, payload: Payload = b"", *, qos: int = 0) -> ReasonCode:
        """Answers a message that has a response topic; `UsageError` for one that has none."""
        if request.response_topic is None:
            raise UsageError(f"the message on {request.topic!r} wants no answer: it has no response topic")
        properties = Properties(correlation_data=request.correlation_data)
        return await self.publish(request.response_topic, payload, qos=qos, properties=properties)

    async def reauthenticate(self) -> None:
        """Authenticates again on the connection that there is; returns when the server has accepted it.

        `ServerRefusedError` or `FalseServerError` where it does not, and `AnswerTimeoutError` after
        `connect_timeout_s`; the first two end the connection.
        """
        if self.settings.auth is None or self._connection is None:
            raise UsageError("there is no connection, or one without auth")
        limit_s = self.settings.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._await_answer(await self._connection.reauthenticate())
        except TimeoutError as error:
            raise AnswerTimeoutError(f"no answer to AUTH within {limit_s:g} s") from error
