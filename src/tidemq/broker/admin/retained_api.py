"""`/api/v1/retained`: retained messages are shown, counted and removed, by topic filter."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from typing import Annotated

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import Answer, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import ANSWER_S, BYTES_MAX, LATE, PAGE_MAX, PAUSE_S, SLICE, asked
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.messages import PAYLOAD_BYTES, PayloadBytes, ShownMessage, shown
from tidemq.broker.admin.topics import check_filter
from tidemq.engine.door.figures import Finding, Inquiry, InquiryKind

TopicFilter = Annotated[str, Field(description="those whose topics match it; # is not about $SYS")]


class RetainedQuery(Query):
    """Which retained messages."""

    topic_filter: TopicFilter = "#"
    payload_bytes: PayloadBytes = PAYLOAD_BYTES
    limit: Annotated[int, Field(ge=1, le=PAGE_MAX, description="messages of an answer")] = 100
    cursor: Annotated[
        str,
        Field(
            max_length=131_072,
            description="that of the answer before; empty: from the beginning",
        ),
    ] = ""


class CountQuery(Query):
    """Which retained messages."""

    topic_filter: TopicFilter


class ClearQuery(Query):
    """Which retained messages, and how many there should be at most."""

    topic_filter: TopicFilter
    messages_max: Annotated[int, Field(ge=0, description="as the count has shown; where there are more: 409")]


class RetainedMessages(Answer):
    """Some retained messages, in no order; `cursor`: for the next ones, null: there are no more."""

    messages: list[ShownMessage]
    cursor: str | None


class RetainedCount(Answer):
    """How many retained messages there are, and the size of their payloads."""

    messages: int
    payload_bytes: int


class Cleared(Answer):
    """How many retained messages were removed."""

    messages: int


class RetainedApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._clearing = asyncio.Lock()  # one at a time: each writes to the store

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        wrong = {400: "A wrong key, value or cursor.", **LATE}
        return [
            Endpoint(
                method="GET",
                path="/retained",
                summary="Retained messages, some at a time.",
                handle=self._list,
                answer=RetainedMessages,
                query=RetainedQuery,
                refusals=wrong,
            ),
            Endpoint(
                method="GET",
                path="/retained/count",
                summary="How many retained messages match a topic filter.",
                handle=self._count,
                answer=RetainedCount,
                query=CountQuery,
                refusals=wrong,
            ),
            Endpoint(
                method="DELETE",
                path="/retained",
                summary="Remove the retained messages that match a topic filter; nobody is sent anything.",
                handle=self._clear,
                answer=Cleared,
                query=ClearQuery,
                role=Role.OPERATE,
                refusals={**wrong, 409: "There are more than messages_max."},
            ),
        ]

    async def _list(self, _: web.Request, query: RetainedQuery) -> RetainedMessages:
        found: list[ShownMessage] = []
        place, size, until = _place_of(query.cursor), 0, time.monotonic() + ANSWER_S
        inquiry_filter = check_filter(query.topic_filter)
        while True:
            inquiry = Inquiry(
                kind=InquiryKind.RETAINED,
                text=inquiry_filter,
                place=place,
                rows_max=min(query.limit - len(found), SLICE),
                payload_bytes_max=query.payload_bytes,
            )
            finding = await self._ask(inquiry)
            found += [shown(each) for each in finding.messages]
            size += sum(len(each.topic) + len(each.payload) for each in finding.messages)
            place = finding.place
            if not finding.more:
                return RetainedMessages(messages=found, cursor=None)
            if len(found) >= query.limit or size >= BYTES_MAX or time.monotonic() >= until:
                return RetainedMessages(messages=found, cursor=_cursor_of(place))
            await asyncio.sleep(PAUSE_S)

    async def _count(self, _: web.Request, query: CountQuery) -> RetainedCount:
        return await self._counted(check_filter(query.topic_filter))

    async def _counted(self, topic_filter: str) -> RetainedCount:
        messages = payload_bytes = 0
        place = b""
        while True:
            finding = await self._ask(Inquiry(kind=InquiryKind.RETAINED, text=topic_filter, place=place))
            messages += finding.count
            payload_bytes += finding.count_bytes
            place = finding.place
            if not finding.more:
                return RetainedCount(messages=messages, payload_bytes=payload_bytes)
            await asyncio.sleep(PAUSE_S)

    async def _clear(self, _: web.Request, query: ClearQuery) -> Cleared:
        topic_filter = check_filter(query.topic_filter)
        async with self._clearing:
            there = await self._counted(topic_filter)
            if there.messages > query.messages_max:
                detail = f"{there.messages} messages match {topic_filter!r}, and messages_max is"
                refuse(409, f"{detail} {query.messages_max}")
            cleared, place = 0, b""
            while True:
                kind = InquiryKind.RETAINED
                finding = await self._ask(Inquiry(kind=kind, text=topic_filter, place=place, clears=True))
                cleared += finding.count
                place = finding.place
                if not finding.more:
                    return Cleared(messages=cleared)
                await self._wait_for_store()

    async def _wait_for_store(self) -> None:
        """What was removed is to be written before more comes."""
        await asyncio.sleep(PAUSE_S)
        storage = self._controls.storage()
        if storage is not None and storage.keeper is not None:
            await asked(asyncio.wrap_future(storage.keeper.ask(lambda: None)))

    async def _ask(self, inquiry: Inquiry) -> Finding:
        finding = await asked(self._controls.running_monitor().questions.ask(0, inquiry))
        if not finding.found:
            refuse(400, "cursor: it is of another topic_filter; accepted: that of the answer before")
        return finding


def _cursor_of(place: bytes) -> str:
    return base64.urlsafe_b64encode(place).decode().rstrip("=")


def _place_of(cursor: str) -> bytes:
    """400 for a text that no answer had."""
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        refuse(400, f"cursor: {cursor[:40]!r} is none; accepted: that of the answer before")
