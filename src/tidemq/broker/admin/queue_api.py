"""`/api/v1/queues`, `/api/v1/sessions`: what waits for a client is shown or dropped, and a session ended."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import Answer, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import ANSWER_S, BYTES_MAX, LATE, PAUSE_S, SLICE, asked
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.messages import PAYLOAD_BYTES, PayloadBytes, ShownMessage, shown
from tidemq.broker.durability.peeking import peek
from tidemq.engine.door.figures import Finding, Inquiry, InquiryKind, MessageFigures
from tidemq.errors import StoreError

QUEUE_PAGE_MAX = 100  # messages of an answer
ID_BYTES = 16
PURGE_S = 10.0  # after which a queue that fills as fast as it is emptied is left alone


class QueueQuery(Query):
    """Which messages of a client's queue."""

    payload_bytes: PayloadBytes = PAYLOAD_BYTES
    limit: Annotated[int, Field(ge=1, le=QUEUE_PAGE_MAX, description="messages of an answer")] = 20
    cursor: Annotated[
        str, Field(max_length=100, description="that of the answer before; empty: from the oldest on")
    ] = ""


class QueuedMessage(ShownMessage):
    """A message of QoS 1 or 2 for a client. `place`: in memory, in flight to the client, or in the store."""

    place: Literal["in flight", "memory", "store"]


class QueuedMessages(Answer):
    """Some messages, oldest first; `cursor`: for the next ones, null: there are no more."""

    messages: list[QueuedMessage]
    cursor: str | None


class Purged(Answer):
    """How many messages were dropped; what was in flight is not among them."""

    messages: int


class Ending(Answer):
    """Whose session is being ended."""

    ending: str


class QueueApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        wrong = {
            400: "A wrong key, value or cursor.",
            404: "There is no such client, and no session of it.",
            **LATE,
        }
        return [
            Endpoint(
                method="GET",
                path="/queues/{client_id:.+}",
                summary="Messages that wait for a client, oldest first; nothing is taken out.",
                handle=self._peek,
                answer=QueuedMessages,
                query=QueueQuery,
                role=Role.OPERATE,
                refusals=wrong,
            ),
            Endpoint(
                method="DELETE",
                path="/queues/{client_id:.+}",
                summary="Drop the messages that wait for a client and were never sent to it.",
                handle=self._purge,
                answer=Purged,
                role=Role.OPERATE,
                refusals=wrong,
            ),
            Endpoint(
                method="DELETE",
                path="/sessions/{client_id:.+}",
                summary="End a session, with its subscriptions and messages; its client is disconnected.",
                handle=self._end,
                answer=Ending,
                status=202,
                role=Role.OPERATE,
                refusals=wrong,
            ),
        ]

    async def _ask(self, client_id: str, inquiry: Inquiry) -> Finding:
        finding = await asked(self._controls.running_monitor().questions.ask(0, inquiry))
        if not finding.found:
            refuse(404, f"there is no client {client_id!r}, and no session of it")
        return finding

    async def _peek(self, request: web.Request, query: QueueQuery) -> QueuedMessages:
        client_id = request.match_info["client_id"]
        place, above = _parsed(query.cursor)
        found: list[QueuedMessage] = []
        size, until = 0, time.monotonic() + ANSWER_S
        while True:
            inquiry = Inquiry(
                kind=InquiryKind.QUEUE,
                text=client_id,
                skip=place,
                rows_max=0 if above else min(query.limit - len(found), SLICE),
                payload_bytes_max=query.payload_bytes,
            )
            finding = await self._ask(client_id, inquiry)
            for each in finding.messages:
                found.append(_shown(each, "in flight" if each.in_flight else "memory"))
                size += len(each.topic) + len(each.payload)
            if not finding.more or above:
                break
            place = finding.skip
            if len(found) >= query.limit or size >= BYTES_MAX or time.monotonic() >= until:
                return QueuedMessages(messages=found, cursor=_text_of(place, b""))
            await asyncio.sleep(PAUSE_S)
        left = query.limit - len(found)
        return await self._from_store(found, finding, above, left, query.payload_bytes)

    async def _from_store(
        self, found: list[QueuedMessage], finding: Finding, above: bytes, left: int, payload_bytes: int
    ) -> QueuedMessages:
        """What only the store has comes after all that is in memory."""
        storage = self._controls.storage()
        if storage is None or storage.keeper is None or not finding.stored:
            return QueuedMessages(messages=found, cursor=None)
        store, queue, after = storage.store, finding.queue, max(above, finding.edge)
        if left <= 0:
            return QueuedMessages(messages=found, cursor=_text_of(0, after))
        try:
            rows = await asyncio.wrap_future(
                storage.keeper.ask(lambda: peek(store, queue, after, left, payload_bytes))
            )
        except StoreError as error:
            refuse(503, f"the store cannot be read: {error}")
        found += [_shown(each, "store") for each in rows.messages]
        return QueuedMessages(messages=found, cursor=_text_of(0, rows.last) if rows.more else None)

    async def _purge(self, request: web.Request, _: Query) -> Purged:
        client_id = request.match_info["client_id"]
        count, until = 0, time.monotonic() + PURGE_S
        while True:
            finding = await self._ask(client_id, Inquiry(kind=InquiryKind.PURGE, text=client_id))
            count += finding.count
            if not finding.more or time.monotonic() >= until:
                return Purged(messages=count)
            await asyncio.sleep(PAUSE_S)

    async def _end(self, request: web.Request, _: Query) -> Ending:
        client_id = request.match_info["client_id"]
        await self._ask(client_id, Inquiry(kind=InquiryKind.END, text=client_id))
        return Ending(ending=client_id)


def _shown(figures: MessageFigures, place: Literal["in flight", "memory", "store"]) -> QueuedMessage:
    return QueuedMessage(**shown(figures).model_dump(), place=place)


def _text_of(place: int, above: bytes) -> str:
    """A cursor: a place in memory, or the id of the last message of the store that was shown."""
    return base64.urlsafe_b64encode(above or place.to_bytes(8)).decode().rstrip("=")


def _parsed(cursor: str) -> tuple[int, bytes]:
    """400 for a text that no answer had."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        text = b"?"
    if len(text) not in (0, 8, ID_BYTES):
        refuse(400, f"cursor: {cursor[:40]!r} is none; accepted: that of the answer before")
    return (0, text) if len(text) == ID_BYTES else (int.from_bytes(text), b"")
