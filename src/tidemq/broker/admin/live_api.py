"""`GET /api/v1/events`: what the broker does, once a second; `POST /api/v1/publish`: a message from an
administrator; `GET /api/v1/messages`: those that come on a topic filter.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, ClassVar

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import BODY_BYTES_MAX, Answer, Body, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import LATE
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.event_stream import MESSAGES_MAX, messages_of, sent_events
from tidemq.broker.admin.messages import PAYLOAD_BYTES, PayloadBytes, ShownMessage, text_of
from tidemq.broker.admin.topics import check_filter
from tidemq.broker.monitoring.snapshots import WATCHERS_MAX, Snapshots
from tidemq.broker.program_subscription import Message as ReceivedMessage
from tidemq.broker.program_subscription import Subscription
from tidemq.errors import UsageError

READERS_MAX = 4  # of messages
TOO_MANY = "more messages come on it than a page can show; accepted: a narrower filter"


class Event(Answer):
    """One event a second, `data: ` and a JSON object; see the document of the API."""


class Message(Body):
    """A message. `payload` is text, `payload_base64` bytes; neither: it is empty."""

    secret: ClassVar[tuple[str, ...]] = ("payload", "payload_base64")

    topic: Annotated[str, Field(min_length=1)]
    payload: str | None = None
    payload_base64: str | None = None
    qos: Annotated[int, Field(ge=0, le=2)] = 0
    retain: bool = False


class MessagesQuery(Query):
    """Which messages."""

    topic_filter: Annotated[str, Field(min_length=1, description="as in a SUBSCRIBE of QoS 0")]
    payload_bytes: PayloadBytes = PAYLOAD_BYTES


class Published(Answer):
    """Where, and how much."""

    topic: str
    payload_bytes: int


class LiveApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._snapshots = Snapshots(controls.monitor)
        self._read: set[Subscription] = set()

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        return [
            Endpoint(
                method="GET",
                path="/events",
                summary="What the broker does, as server-sent events, once a second.",
                handle=self._watch,
                answer=Event,
                media="text/event-stream",
                refusals={400: "A wrong key.", 429: f"{WATCHERS_MAX} watch already.", **LATE},
            ),
            Endpoint(
                method="POST",
                path="/publish",
                summary="Publishes a message.",
                handle=self._publish,
                answer=Published,
                body=Message,
                role=Role.OPERATE,
                refusals={
                    400: "A wrong field.",
                    413: f"The body has more than {BODY_BYTES_MAX} bytes.",
                    415: "The body is no JSON.",
                    **LATE,
                },
            ),
            Endpoint(
                method="GET",
                path="/messages",
                summary=f"Messages on a filter as server-sent events, until {MESSAGES_MAX} come in a second.",
                handle=self._follow,
                answer=ShownMessage,
                media="text/event-stream",
                query=MessagesQuery,
                role=Role.OPERATE,
                refusals={400: "A wrong key or value.", 429: f"{READERS_MAX} read already.", **LATE},
            ),
        ]

    def close(self) -> None:
        """Ends the answers that go on."""
        self._snapshots.close()
        for subscription in self._read:
            subscription.close()

    async def _watch(self, request: web.Request, _: Query) -> web.StreamResponse:
        waiting = self._snapshots.watch()
        if waiting is None:
            refuse(429, f"{WATCHERS_MAX} watch already; accepted: one less")

        async def events() -> AsyncIterator[str]:
            while (snapshot := await waiting.get()) is not None:
                yield json.dumps(snapshot)

        try:
            return await sent_events(request, events())
        finally:
            self._snapshots.leave(waiting)

    async def _follow(self, request: web.Request, query: MessagesQuery) -> web.StreamResponse:
        if len(self._read) >= READERS_MAX:
            refuse(429, f"{READERS_MAX} read messages already; accepted: one less")
        topic_filter = check_filter(query.topic_filter)
        subscription = self._controls.subscribe(topic_filter, 0, queue_messages_max=MESSAGES_MAX)
        self._read.add(subscription)

        try:
            return await sent_events(request, _messages(subscription, query.payload_bytes))
        finally:
            subscription.close()
            self._read.discard(subscription)

    async def _publish(self, _: web.Request, message: Message) -> Published:
        if message.topic.startswith("$"):
            refuse(400, "topic: it begins with $; accepted: topics that clients may publish to")
        payload = payload_of(message)
        try:
            await self._controls.publish(message.topic, payload, qos=message.qos, retain=message.retain)
        except UsageError as error:
            refuse(400, f"topic: {error}")
        return Published(topic=message.topic, payload_bytes=len(payload))


async def _messages(subscription: Subscription, payload_bytes: int) -> AsyncIterator[str]:
    async for message in messages_of(subscription):
        yield "" if message is None else _received(message, payload_bytes).model_dump_json()
    if subscription.dropped:
        yield json.dumps({"ended": TOO_MANY})


def _received(message: ReceivedMessage, payload_bytes: int) -> ShownMessage:
    shown = message.payload[:payload_bytes]
    text = text_of(shown, cut=len(shown) < len(message.payload))
    return ShownMessage(
        topic=message.topic,
        payload=text,
        payload_base64=None if text is not None else base64.b64encode(shown).decode(),
        payload_bytes=len(message.payload),
        qos=message.qos,
        retain=message.retain,
        at=datetime.now(UTC),
        expires=None,
    )


def payload_of(message: Message) -> bytes:
    """400 where there are two, or one is wrong."""
    if message.payload_base64 is None:
        return (message.payload or "").encode("utf-8", "surrogatepass")
    if message.payload is not None:
        refuse(400, "payload and payload_base64 are both given; accepted: one of them")
    try:
        return base64.b64decode(message.payload_base64, validate=True)
    except ValueError as error:  # binascii.Error, or a text that is not ASCII
        refuse(400, f"payload_base64: {error}; accepted: Base64 of RFC 4648")
