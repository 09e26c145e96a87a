"""`/api/v1/subscriptions`: who has subscribed to a topic filter, and who would get messages on a topic."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import Answer, Endpoint, Query, refuse
from tidemq.broker.admin.asking import ANSWER_S, LATE, PAGE_MAX, PAUSE_S, SLICE, asked
from tidemq.broker.admin.client_api import AS_PUBLISHED, NO_LOCAL
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.topics import check_filter, check_topic
from tidemq.engine.door.figures import Inquiry, InquiryKind, SubscriberFigures


class SubscriptionsQuery(Query):
    """Which subscriptions: give `topic_filter` or `topic`."""

    topic_filter: Annotated[str, Field(description="exactly this one, $share/GROUP/ included")] = ""
    topic: Annotated[str, Field(description="a topic name: all subscriptions that match it")] = ""
    limit: Annotated[int, Field(ge=1, le=PAGE_MAX, description="subscriptions of an answer")] = 100
    cursor: Annotated[
        int, Field(ge=0, lt=1 << 63, description="that of the answer before; 0: from the beginning")
    ] = 0


class Subscriber(Answer):
    """A subscription (5.0 section 3.8.3.1), and whose it is. `client_id`: null for what is not a client."""

    kind: Literal["client", "program", "stream"]
    client_id: str | None
    connected: bool
    topic_filter: str
    shared_group: str | None  # one member of it gets the message
    qos: int
    no_local: bool
    retain_as_published: bool
    subscription_id: int | None


class Subscribers(Answer):
    """Some subscriptions, in no order; `cursor`: for the next ones, null: there are no more."""

    subscribers: list[Subscriber]
    cursor: int | None


def _shown(figures: SubscriberFigures) -> Subscriber:
    return Subscriber(
        kind="stream" if figures.stream else "client" if figures.client_id else "program",
        client_id=figures.client_id or None,
        connected=figures.connected,
        topic_filter=figures.topic_filter,
        shared_group=figures.group or None,
        qos=figures.options & 3,
        no_local=bool(figures.options & NO_LOCAL),
        retain_as_published=bool(figures.options & AS_PUBLISHED),
        subscription_id=figures.subscription_id or None,
    )


class SubscriptionApi:
    """The endpoint. It runs on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        return [
            Endpoint(
                method="GET",
                path="/subscriptions",
                summary="Who has subscribed to a topic filter, or who would get messages on a topic.",
                handle=self._list,
                answer=Subscribers,
                query=SubscriptionsQuery,
                refusals={400: "A wrong key or value.", **LATE},
            )
        ]

    async def _list(self, _: web.Request, query: SubscriptionsQuery) -> Subscribers:
        if bool(query.topic_filter) == bool(query.topic):
            refuse(400, "topic_filter, topic: give one of them")
        if query.topic:
            kind, text = InquiryKind.MATCHING, check_topic(query.topic)
        else:
            kind, text = InquiryKind.SUBSCRIBED, check_filter(query.topic_filter)
        questions = self._controls.running_monitor().questions
        found: list[Subscriber] = []
        until = time.monotonic() + ANSWER_S
        while True:
            wanted, at = min(query.limit - len(found), SLICE), query.cursor + len(found)
            inquiry = Inquiry(kind=kind, text=text, skip=at, rows_max=wanted)
            finding = await asked(questions.ask(0, inquiry))
            found += [_shown(each) for each in finding.subscribers]
            if not finding.more or len(found) >= query.limit or time.monotonic() >= until:
                cursor = query.cursor + len(found) if finding.more else None
                return Subscribers(subscribers=found, cursor=cursor)
            await asyncio.sleep(PAUSE_S)
