"""`/api/v1/bridges`: connections to other brokers, and how they are."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from aiohttp import web

from tidemq.bridge.figures import BridgeFigures
from tidemq.broker.admin.api import Answer, Endpoint, Query
from tidemq.broker.admin.asking import LATE
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.messages import date_of


class Dropped(Answer):
    """Messages that a bridge did not pass on, by the reason (docs/counters.md)."""

    hops: int
    unmatched: int
    unfit: int
    refused: int


class BridgeAnswer(Answer):
    """A bridge. `since`: when it was connected, or no longer was. Counts begin when the bridge is made."""

    name: str
    client_id: str  # of its session in this broker, which is its queue
    state: Literal["starting", "connecting", "connected", "waiting", "ended"]
    address: str  # that it is connected to, or tried last
    since: datetime
    last_error: str  # of the last connection that failed or ended; empty: there was none
    last_error_at: datetime | None
    refused_filters: list[str]  # topic filters that the other side does not let it subscribe to
    queued_messages: int  # for the other side, those under way included
    queued_bytes: int
    connects: int
    failures: int
    messages_out: int
    messages_in: int
    bytes_out: int
    bytes_in: int
    dropped: Dropped


class BridgeList(Answer):
    """All bridges, by their names."""

    bridges: list[BridgeAnswer]


class BridgeApi:
    """The endpoint. It runs on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        return [
            Endpoint(
                method="GET",
                path="/bridges",
                summary="Connections to other brokers, and how they are.",
                handle=self._list,
                answer=BridgeList,
                refusals=LATE,
            )
        ]

    async def _list(self, _: web.Request, __: Query) -> BridgeList:
        return BridgeList(bridges=[_shown(each) for each in self._controls.running_monitor().bridges()])


def _shown(figures: BridgeFigures) -> BridgeAnswer:
    status, totals = figures.status, figures.counts
    since = date_of(int(status.since * 1000))
    assert since is not None
    return BridgeAnswer(
        name=figures.name,
        client_id=figures.client_id,
        state=status.state,
        address=status.address,
        since=since,
        last_error=status.last_error,
        last_error_at=date_of(int(status.last_error_at * 1000)),
        refused_filters=list(status.refused_filters),
        queued_messages=figures.queued_messages,
        queued_bytes=figures.queued_bytes,
        connects=totals["connects"],
        failures=totals["failures"],
        messages_out=totals["messages_out"],
        messages_in=totals["messages_in"],
        bytes_out=totals["bytes_out"],
        bytes_in=totals["bytes_in"],
        dropped=Dropped(**{name: totals[f"dropped_{name}"] for name in Dropped.model_fields}),
    )
