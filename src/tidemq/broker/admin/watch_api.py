"""`/api/v1/watched-topics`: how many messages there are on some topic filters."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import Answer, Body, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import LATE
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.topics import check_filter
from tidemq.broker.monitoring.watches import WATCHES_MAX, Watches
from tidemq.errors import UsageError

Filter = Annotated[str, Field(min_length=1, max_length=65_535, description="a topic filter")]


class WantedWatch(Body):
    """Which filter."""

    topic_filter: Filter


class WatchQuery(Query):
    """Which filter."""

    topic_filter: Filter


class WatchedTopic(Answer):
    """Messages that clients and programs have published on the filter since it is watched."""

    topic_filter: str
    since: datetime
    messages: int
    payload_bytes: int


class WatchedTopics(Answer):
    """The oldest first."""

    watched: list[WatchedTopic]


class WatchApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        wrong = {400: "A wrong key or value.", **LATE}
        return [
            Endpoint(
                method="GET",
                path="/watched-topics",
                summary="Messages on the topic filters that are watched.",
                handle=self._list,
                answer=WatchedTopics,
                refusals=wrong,
            ),
            Endpoint(
                method="POST",
                path="/watched-topics",
                summary="Watch a topic filter, until the broker ends.",
                handle=self._watch,
                answer=WatchedTopics,
                status=201,
                body=WantedWatch,
                role=Role.OPERATE,
                refusals={
                    **wrong,
                    409: f"{WATCHES_MAX} are watched.",
                    413: "The body is too large.",
                    415: "The body is no JSON.",
                },
            ),
            Endpoint(
                method="DELETE",
                path="/watched-topics",
                summary="Watch a topic filter no more.",
                handle=self._end,
                answer=WatchedTopics,
                query=WatchQuery,
                role=Role.OPERATE,
                refusals={**wrong, 404: "It is not watched."},
            ),
        ]

    def _watches(self) -> Watches:
        return self._controls.running_monitor().watches

    def _all(self) -> WatchedTopics:
        rows = [
            WatchedTopic(topic_filter=each.topic_filter, since=each.since, messages=count, payload_bytes=size)
            for each, count, size in self._watches().counted()
        ]
        return WatchedTopics(watched=rows)

    async def _list(self, _: web.Request, __: Query) -> WatchedTopics:
        return self._all()

    async def _watch(self, _: web.Request, wanted: WantedWatch) -> WatchedTopics:
        watches, topic_filter = self._watches(), check_filter(wanted.topic_filter)
        if len(watches) >= WATCHES_MAX and topic_filter not in watches:
            refuse(409, f"{WATCHES_MAX} are watched already; accepted: one less")
        try:
            watches.add(topic_filter)
        except UsageError as error:
            refuse(400, f"topic_filter: {error}")
        return self._all()

    async def _end(self, _: web.Request, query: WatchQuery) -> WatchedTopics:
        if not self._watches().remove(query.topic_filter):
            refuse(404, f"{query.topic_filter!r} is not watched")
        return self._all()
