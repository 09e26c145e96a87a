"""The asynchronous client: what a program sees. Bytes, packets and their order are `outgoing` and
`incoming`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, Unpack

from tidemq.client.address import parse_url
from tidemq.client.answers import Answers, Pace
from tidemq.client.callbacks import Callback, Callbacks, ConnectionChange
from tidemq.client.connection import Connection
from tidemq.client.errors import (
    AnswerTimeoutError,
    DisconnectedError,
    late_error,
)
from tidemq.client.greeting import make_connect, make_disconnect
from tidemq.client.incoming import Incoming
from tidemq.client.message import Message
from tidemq.client.outbox import Outbox
from tidemq.client.outgoing import FLUSH_BYTES, Outgoing
from tidemq.client.queue import Intake, MessageQueue
from tidemq.client.receipt import Group, Receipt
from tidemq.client.reconnecting import comes_back, delay_s
from tidemq.client.requesting import Requesting
from tidemq.client.route import Route
from tidemq.client.settings import Options, make_settings, random_client_id
from tidemq.client.subscribing import Subscribing, check_reasons
from tidemq.client.subscription import Subscription
from tidemq.errors import StoreError, TideMQError, UsageError
from tidemq.wire import (
    NO_PROPERTIES,
    Connack,
    Payload,
    Properties,
    ReasonCode,
    Subscribe,
    Unsubscribe,
    payload_bytes,
)
from tidemq.wire import Subscription as FilterOptions

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
        self.settings = settings = make_settings(options)
        if settings.auth is not None and (settings.password, self._address.password) != (None, None):
            raise UsageError("auth takes the password's place: CONNECT would send the password as it is")
        self._route = Route(
            address=self._address,
            tls=settings.tls,
            tls_server_name=settings.tls_server_name,
            headers=settings.headers,
            proxy=settings.proxy,
        )
        self._client_id = settings.client_id or random_client_id()
        self._begin()

    def _begin(self) -> None:
        """All that a client has from its connection to its end."""
        settings = self.settings
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
        self._answers = Answers(self._outgoing)
        self._requesting = Requesting(self._subscribe_to_answers)
        self._outbox: Outbox | None = None
        self._connection: Connection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._connected = asyncio.Event()
        self._callbacks = Callbacks(self._intake, settings.on_connection)
        self._known = False  # the server has, or may have, a session of this client
        self.connack: Connack | None = None

    # --- connecting

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.disconnect(wait=kind is None)
        except BaseException:  # cancelled, while it waited: it would stay connected for ever
            await self.disconnect(wait=False)
            raise

    @property
    def is_connected(self) -> bool:
        return self._outgoing.connected

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
        """Connects; what `async with` does first. `ConnectError` or `ServerRefusedError` where that fails.

        A client that has ended, or has failed to connect, may connect again: without subscriptions, and with
        queues of its own.
        """
        if self._outgoing.closed_error is not None:
            await self.disconnect(wait=False)  # where it gave up by itself
            self._begin()
        if self._first is not None:
            raise UsageError("the client is connected, or connects")
        self._first = asyncio.get_running_loop().create_future()
        try:
            if self.settings.outbox is not None:
                await self._open_outbox(Path(self.settings.outbox))
            name = f"tidemq-client-{self._client_id}"
            self._supervisor = asyncio.create_task(self._supervise(), name=name)
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
        """Returns when there is a connection; the client's error where there will be none."""
        await self._connected.wait()
        if self._outgoing.closed_error is not None:
            raise self._outgoing.closed_error

    async def _supervise(self) -> None:
        """Keeps a connection, until it may not or must not come back."""
        assert self._first is not None
        settings, attempt = self.settings, 0
        while True:
            again = self._first.done() or settings.retry_first
            error: Exception
            try:
                connection = await self._open()
            except Exception as failure:  # noqa: BLE001 - whatever it is, the next attempt may do
                error = failure
                attempt += 1
                returns = again and comes_back(settings, error)
            else:
                begun_s = asyncio.get_running_loop().time()
                if not self._first.done():
                    self._first.set_result(None)
                error = await asyncio.shield(connection.end)
                self._lose()
                lasted_s = asyncio.get_running_loop().time() - begun_s
                attempt = 1 if lasted_s >= settings.backoff_s_max else attempt + 1
                returns = comes_back(settings, error)
                if returns:
                    self._callbacks.tell(ConnectionChange(connected=False, error=error))
            if not returns:
                self._give_up(error)
                return
            pause_s = delay_s(settings, attempt)
            _log.warning("%s; trying again in %.1f s", error, pause_s)
            await asyncio.sleep(pause_s)

    async def _open(self) -> Connection:
        settings = self.settings
        receive_max = settings.receive_max if settings.version == 5 else 0xFFFF
        self._incoming.begin(
            settings.version, settings.packet_bytes_max, receive_max, settings.topic_aliases_max
        )
        connection = self._connection = Connection(
            settings,
            self._route,
            self._outgoing,
            self._incoming,
            self._intake,
            self._subscribing.apply,
            self._accept,
        )
        self._answers.connect(connection)
        try:
            clean_start = self._starts_clean and (not self._known or settings.version != 5)
            await connection.open(
                make_connect(settings, self._address, self._client_id, clean_start=clean_start)
            )
        except BaseException:
            self._connection = None
            self._answers.connect(None)
            raise
        return connection

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
        self._callbacks.tell(ConnectionChange(connected=True, connack=connack))

    def _lose(self) -> None:
        self._connected.clear()
        self._connection = None
        self._answers.connect(None)
        self._outgoing.disconnect()

    def _give_up(self, error: Exception) -> None:
        """There will be no other connection: `error` for all who wait, and for all who iterate."""
        clean = isinstance(error, DisconnectedError) and str(error) == _CLOSED
        if not clean and self._first is not None and self._first.done():
            self._callbacks.tell(ConnectionChange(connected=False, error=error, comes_back=False))
        self._lose()
        self._outgoing.close(error)
        self._connected.set()  # nobody waits for it in vain
        self._requesting.close(error)
        self._subscribing.close(error, None if clean else error)
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
            self._first.exception()  # whoever connected may be gone

    async def disconnect(
        self, *, wait: bool = True, reason: int = ReasonCode.SUCCESS, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Ends the client. First waits, for `close_timeout_s`, until all is sent and acknowledged; what the
        calling task has taken is acknowledged as well.

        With reason 0x04 the server publishes the will. A session that this client began ends with it, unless
        `clean_start` is off or `properties` has a session expiry.
        """
        if wait and self.is_connected:
            self._intake.finish(asyncio.current_task())
            await self._drain()
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait([supervisor])
        if self._connection is not None:
            connection = self._connection
            goodbye = make_disconnect(self.settings, reason, properties, ends_session=self._starts_clean)
            connection.close(goodbye if self.is_connected else None)
            await connection.wait_closed(self.settings.close_timeout_s)
        if self._outbox is not None:
            await self._outbox.close()
        self._give_up(DisconnectedError(_CLOSED))
        await self._callbacks.end()

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError, TideMQError):
            async with asyncio.timeout(self.settings.close_timeout_s):
                await self.flush()

    async def flush(self) -> None:
        """Returns when every message published so far is acknowledged and has left (the operating system has
        it), or a broken connection took it along, at QoS 0; the client's error where it ends before."""
        while self._outgoing.held_messages or self._outgoing.unsent_bytes:
            await self._answers.wait_room()
            if self._outgoing.closed_error is not None:
                raise self._outgoing.closed_error

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
        timeout_s: float | None = None,
    ) -> ReasonCode:
        """Publishes a message; returns when it is acknowledged, with the reason code (QoS 0: when it is on
        its way).

        `PublishError` where the server refuses it. When the buffer is full the policy applies: "wait" waits
        here, the others raise `BufferFullError`. After `timeout_s` it is taken back if it was not sent:
        `AnswerTimeoutError`, whose `withdrawn` says so. Cancelling does not take it back.
        """
        outgoing = self._outgoing
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        if timeout_s is not None:
            return await self._publish_within(timeout_s, topic, payload, qos, retain, properties)
        if qos == 0 and outgoing.output_bytes < FLUSH_BYTES and outgoing.has_room(len(payload)):
            outgoing.publish(topic, payload, qos, retain, properties)
            return ReasonCode.SUCCESS
        if not outgoing.has_room(len(payload)):
            await self._room_for(outgoing.prepare(topic, payload, qos, retain, properties))
        receipt = outgoing.publish(topic, payload, qos, retain, properties)
        if qos == 0:
            await asyncio.sleep(0)  # lets what was written leave, and others have their turn
            return ReasonCode.SUCCESS
        answers = self._answers  # until then the client may be in another life
        answers.begin()
        try:
            return await receipt.acknowledged
        finally:
            answers.end()

    async def _room_for(self, receipt: Receipt) -> None:
        while self.settings.buffer_full == "wait" and not self._outgoing.has_room_for(receipt):
            await self._answers.wait_room()

    async def _publish_within(
        self,
        timeout_s: float,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties | None,
    ) -> ReasonCode:
        receipt: Receipt | None = None
        try:
            async with asyncio.timeout(timeout_s):
                await self._room_for(self._outgoing.prepare(topic, payload, qos, retain, properties))
                receipt = self._outgoing.publish(topic, payload, qos, retain, properties)
                return await self._answers.wait(receipt.acknowledged)
        except TimeoutError as cause:
            error = late_error(topic, timeout_s)
            error.withdrawn = receipt is None or self._outgoing.withdraw(receipt, error)
            raise error from cause

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
        group, pace = Group(), Pace(self.settings.buffer_messages_max)
        rest = iter(messages)
        while self._outgoing.publish_some(rest, qos, retain, properties, group, pace.ahead):
            if self._connection is not None:
                self._connection.flush()
            if group.remaining >= pace.ahead:
                await self._answers.wait_done(group, pace.ahead // 2)
                pace.look(group.count - group.remaining, asyncio.get_running_loop().time())
            elif group.roomless is None or self._outgoing.has_room_for(group.roomless):
                await asyncio.sleep(0)
            else:
                await self._answers.wait_room()
        count = group.count
        await self._answers.wait_done(group, 0)
        if group.first_error is not None:
            raise group.first_error
        return count

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
        may be `async`: one at a time, in order. `SubscribeError` where a filter is refused: then, and where
        the call is cancelled, there is no subscription to any of them.
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
        subscription = Subscription(self._subscribing.claim, packet)
        request = self._subscribing.ask(packet)
        self._subscribing.add(subscription)
        if callback is not None:
            self._callbacks.start(subscription.messages, callback)
        try:
            suback = await self._answers.wait(request.answer)
            check_reasons(f"subscribing to {', '.join(subscription.filters)}", suback)
        except BaseException:
            self._subscribing.undo(subscription, request)
            raise
        subscription.reasons = tuple(ReasonCode(each) for each in suback.reasons)
        subscription.properties = suback.properties
        return subscription

    async def unsubscribe(
        self, *filters: str | Subscription, properties: Properties = NO_PROPERTIES
    ) -> tuple[ReasonCode, ...]:
        """Ends subscriptions, by filter or whole; returns the reason codes (none below 5.0).

        What is queued may still be taken. `SubscribeError` where one is refused. Cancelled, it has effect if
        it was sent.
        """
        if not filters:
            raise UsageError("unsubscribe from at least one topic filter")
        names = tuple(
            name for each in filters for name in ((each,) if isinstance(each, str) else each.filters)
        )
        packet = Unsubscribe(packet_id=1, filters=names, properties=properties)
        request = self._subscribing.ask(packet)
        try:
            answer = await self._answers.wait(request.answer)
        except asyncio.CancelledError:
            self._subscribing.abandon(request)
            raise
        check_reasons(f"unsubscribing from {', '.join(names)}", answer)
        return tuple(ReasonCode(each) for each in answer.reasons)

    def acknowledge(self, message: Message, *, reason_code: int = ReasonCode.SUCCESS) -> None:
        """Acknowledges a message of QoS 1 or 2 now, with a reason code of 5.0. With `acknowledge="manual"`
        nobody else does; otherwise it need not wait for the next to be asked for."""
        self._intake.acknowledge(message, reason_code)

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
                try:
                    await self.publish(topic, payload, qos=qos, properties=given)
                    return await self._answers.wait(answer)
                finally:
                    answer.cancel()
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
                await self._answers.wait(await self._connection.reauthenticate())
        except TimeoutError as error:
            raise AnswerTimeoutError(f"no answer to AUTH within {limit_s:g} s") from error
