"""`/api/v1/drops`: whose messages were dropped, and why."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import Answer, Endpoint, Query
from tidemq.broker.admin.asking import LATE
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.messages import date_of
from tidemq.broker.monitoring.drop_counts import CLIENTS_MAX


class DropsQuery(Query):
    """How many."""

    limit: Annotated[int, Field(ge=1, le=CLIENTS_MAX, description="clients and causes of an answer")] = 100


class Drops(Answer):
    """Messages of one client that were dropped for one cause; the same name counts them for all clients."""

    client_id: str  # empty: of some client; of a shared subscription its filter
    cause: str
    messages: int
    last: datetime | None


class DropList(Answer):
    """Those with most messages first."""

    drops: list[Drops]


class DropApi:
    """The endpoint. It runs on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        return [
            Endpoint(
                method="GET",
                path="/drops",
                summary="Whose messages were dropped and why, since the broker started.",
                handle=self._list,
                answer=DropList,
                query=DropsQuery,
                refusals={400: "A wrong key or value.", **LATE},
            )
        ]

    async def _list(self, _: web.Request, query: DropsQuery) -> DropList:
        found = self._controls.running_monitor().drops.largest(query.limit)
        rows = [
            Drops(
                client_id=each.client_id, cause=each.cause, messages=each.messages, last=date_of(each.last_ms)
            )
            for each in found
        ]
        return DropList(drops=rows)
