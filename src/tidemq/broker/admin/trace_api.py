"""`GET /api/v1/trace`: what a client sends and gets, in words, as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import Answer, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import LATE, PAUSE_S, SLICE, asked
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.event_stream import MESSAGES_MAX, SILENCE_S, messages_of, sent_events
from tidemq.broker.admin.packet_words import value_of, words_of
from tidemq.broker.admin.topics import check_filter
from tidemq.broker.monitoring.client_lists import Cursor
from tidemq.broker.monitoring.traces import Traces
from tidemq.broker.program_subscription import Subscription
from tidemq.engine.door.events import Traced
from tidemq.engine.door.figures import Inquiry, InquiryKind, Question

SECONDS_MAX = 3600.0
LINES_MAX = 100_000
CLIENTS_MAX = 1000  # of one address, that are connected when the trace begins


class TraceQuery(Query):
    """Whom it is about: give one."""

    client_id: Annotated[str, Field(max_length=65_535, description="a client identifier")] = ""
    topic_filter: Annotated[str, Field(max_length=65_535, description="messages that match it")] = ""
    address: Annotated[IPv4Address | IPv6Address | None, Field(description="where clients are")] = None
    seconds: Annotated[float, Field(gt=0, le=SECONDS_MAX, description="after which it ends")] = 60.0
    lines_max: Annotated[int, Field(ge=1, le=LINES_MAX, description="after which it ends")] = 1000
    payload: Annotated[bool, Field(description="whether payloads are shown")] = False


class TraceLine(Answer):
    """A packet; `direction`: from or to the client, or that its connection has ended."""

    at: datetime
    client_id: str
    address: str
    direction: Literal["in", "out", "end"]
    packet: str


class TraceApi:
    """The endpoint. It runs on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """It."""
        return [
            Endpoint(
                method="GET",
                path="/trace",
                summary="What a client sends and gets, in words, as server-sent events.",
                handle=self._trace,
                answer=TraceLine,
                media="text/event-stream",
                query=TraceQuery,
                role=Role.OPERATE,
                refusals={400: "A wrong key or value.", 409: "Another trace goes on.", **LATE},
            )
        ]

    async def _trace(self, request: web.Request, query: TraceQuery) -> web.StreamResponse:
        if bool(query.client_id) + bool(query.topic_filter) + (query.address is not None) != 1:
            refuse(400, "client_id, address, topic_filter: give one of them")
        if query.topic_filter:
            return await self._trace_topic(request, query)
        traces = self._controls.running_monitor().traces
        address = str(query.address or "")
        waiting = await traces.begin(query.client_id, address, lambda: self._mark(query.client_id, address))
        if waiting is None:
            refuse(409, "another trace goes on; accepted: one at a time")
        try:
            return await sent_events(request, _lines(traces, waiting, query))
        finally:
            traces.end()

    async def _trace_topic(self, request: web.Request, query: TraceQuery) -> web.StreamResponse:
        """Messages as the broker passes them on; whose they are it does not say."""
        topic_filter = check_filter(query.topic_filter)
        subscription = self._controls.subscribe(topic_filter, 0, queue_messages_max=MESSAGES_MAX)
        try:
            return await sent_events(request, _messages(subscription, query))
        finally:
            subscription.close()

    async def _mark(self, client_id: str, address: str) -> None:
        """Tells the reactors about those who are connected already."""
        monitor = self._controls.running_monitor()
        names = [client_id] if client_id else await self._clients_at(address)
        for name in names:
            await asked(monitor.questions.ask(0, Inquiry(kind=InquiryKind.TRACE, text=name)))

    async def _clients_at(self, address: str) -> list[str]:
        found: list[str] = []
        cursor: Cursor | None = None
        question = Question(rows_max=SLICE, address=address, away=False)
        lists = self._controls.running_monitor().clients
        while len(found) < CLIENTS_MAX:
            page = await asked(lists.page(question, cursor))
            found += [each.client_id for each in page.clients]
            cursor = page.cursor
            if cursor is None:
                break
            await asyncio.sleep(PAUSE_S)
        return found[:CLIENTS_MAX]


async def _lines(traces: Traces, waiting: asyncio.Queue[Traced], query: TraceQuery) -> AsyncIterator[str]:
    """Until time or lines are used up; empty where nothing comes for a while."""
    until, lines = time.monotonic() + query.seconds, 0
    while lines < query.lines_max and (left_s := until - time.monotonic()) > 0:
        try:
            event = await asyncio.wait_for(waiting.get(), min(left_s, SILENCE_S))
        except TimeoutError:
            yield ""
            continue
        lines += 1
        yield TraceLine(
            at=datetime.now(UTC),
            client_id=event.client_id,
            address=event.peer,
            direction="end" if not event.packet else "out" if event.out else "in",
            packet=words_of(event, with_payload=query.payload),
        ).model_dump_json()


async def _messages(subscription: Subscription, query: TraceQuery) -> AsyncIterator[str]:
    async for message in messages_of(subscription, query.seconds, query.lines_max):
        if message is None:
            yield ""
            continue
        shown = f", payload {value_of(message.payload)}" if query.payload else ""
        retained = ", retained" if message.retain else ""
        size = f"{len(message.payload)} bytes of payload"
        yield TraceLine(
            at=datetime.now(UTC),
            client_id="",
            address="",
            direction="in",
            packet=f"PUBLISH, topic {value_of(message.topic)}, {size}{retained}{shown}",
        ).model_dump_json()
