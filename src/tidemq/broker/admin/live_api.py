"""`GET /api/v1/events`: what the broker does, once a second; `POST /api/v1/publish`: a message from an
administrator.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from typing import Annotated, ClassVar

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import BODY_BYTES_MAX, Answer, Body, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import LATE
from tidemq.broker.admin.controls import Controls
from tidemq.broker.monitoring.snapshots import WATCHERS_MAX, Snapshots
from tidemq.errors import UsageError

WRITE_S = 10.0  # for one who watches to take an event


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


class Published(Answer):
    """Where, and how much."""

    topic: str
    payload_bytes: int


class LiveApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._snapshots = Snapshots(controls.monitor)

    def endpoints(self) -> list[Endpoint]:
        """Both."""
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
        ]

    def close(self) -> None:
        """Ends the answers that go on."""
        self._snapshots.close()

    async def _watch(self, request: web.Request, _: Query) -> web.StreamResponse:
        waiting = self._snapshots.watch()
        if waiting is None:
            refuse(429, f"{WATCHERS_MAX} watch already; accepted: one less")
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        try:
            await response.prepare(request)
            while (snapshot := await waiting.get()) is not None:
                async with asyncio.timeout(WRITE_S):
                    await response.write(f"data: {json.dumps(snapshot)}\n\n".encode())
            return response
        except (ConnectionError, TimeoutError):
            return response  # it has gone, or takes nothing
        finally:
            self._snapshots.leave(waiting)

    async def _publish(self, _: web.Request, message: Message) -> Published:
        if message.topic.startswith("$"):
            refuse(400, "topic: it begins with $; accepted: topics that clients may publish to")
        payload = payload_of(message)
        try:
            await self._controls.publish(message.topic, payload, qos=message.qos, retain=message.retain)
        except UsageError as error:
            refuse(400, f"topic: {error}")
        return Published(topic=message.topic, payload_bytes=len(payload))


def payload_of(message: Message) -> bytes:
    """400 where there are two, or one is wrong."""
    if message.payload_base64 is None:
        return (message.payload or "").encode("utf-8", "surrogatepass")
    if message.payload is not None:
        refuse(400, "payload and payload_base64 are both given; accepted: one of them")
    try:
        return base64.b64decode(message.payload_base64, validate=True)
    except binascii.Error as error:
        refuse(400, f"payload_base64: {error}; accepted: Base64 of RFC 4648")
