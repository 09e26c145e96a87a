"""`/api/v1/cluster`: the nodes of a cluster, as this one of them sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import Answer, Body, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import LATE, PAUSE_S, SLICE, asked
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.messages import date_of
from tidemq.broker.clustering import (
    ClusterFigures,
    Clustering,
    DrainFigures,
    MemberFigures,
    Progress,
    Trouble,
    VerifyFigures,
)
from tidemq.broker.monitoring.client_lists import Cursor
from tidemq.engine.door.figures import Question
from tidemq.errors import ClusterError

USE_ANOTHER_SERVER = 0x9C
CHANGES = {
    400: "A wrong key or value.",
    404: "The broker is no node of a cluster.",
    409: "The node may not be forgotten, or cannot leave, and why.",
    413: "The body is too large.",
    415: "The body is no JSON.",
}


class CopiesAnswer(Answer):
    """What another node's server has of this node's log: the last record, null: nothing yet; and bytes that
    wait to be sent there. `connection`: to that server.
    """

    connection: str
    last: int | None
    waiting_bytes: int
    last_error: str  # of the last connection that failed; empty: none has


class MemberAnswer(Answer):
    """A node. `applied`: the last record of each node that it has; `behind_…`: records that it lacks, and
    for how long it has lacked any; `copies`: null where there is no connection to it; `formats`: the lowest
    and the highest that it reads, null where it has not been heard since the node that was asked started.
    `progress`: `complete`: it lacks nothing; `catching_up`: it has what it lacks in `left_s` seconds, at the
    pace of the last ten; `staying_behind`: not as long as so much is added; `stalled`: it has applied nothing
    for seconds; `unknown`. `rows_taken`: of all that is there, by a node that joins, null where it does not
    take it from the node that was asked.
    """

    name: str
    incarnation: str
    address: str
    is_self: bool
    state: Literal["alive", "joining", "suspected", "dead"]
    since: datetime
    heard_s: float  # seconds since its last heartbeat
    last: int  # of its own records
    applied: Mapping[str, int]
    behind_records: int
    behind_s: float
    copies: CopiesAnswer | None
    formats: tuple[int, int] | None
    progress: Progress
    left_s: float | None
    rows_taken: int | None


class TroubleAnswer(Answer):
    """Why a node was refused or could not be reached, by incarnation or address; the newest is the last."""

    whose: str
    text: str
    count: int
    at: datetime


class DrainAnswer(Answer):
    """Of a node that leaves; when `phase` is `left` it can be stopped."""

    phase: Literal["moving", "leaving", "left"]
    sessions_left: int


class ClusterAnswer(Answer):
    """A cluster. `name` is empty where the broker is no node of one. `log_…`: what this node keeps of its own
    log. `degraded`: what is not as it should be. `format`: in which it writes, 0: none yet.
    """

    name: str
    members: list[MemberAnswer]
    format: int
    log_records: int
    log_bytes: int
    degraded: list[str]
    troubles: list[TroubleAnswer]
    drain: DrainAnswer | None = None  # of this node; null: it stays


class WantedNode(Body):
    """A node: its name, or its incarnation where several have one name."""

    node: Annotated[str, Field(min_length=1, max_length=1000)]


class ForgottenNode(Answer):
    """Name and incarnation of a node that is a member no more."""

    forgotten: str


class WantedComparison(Body):
    """How long what is on its way is waited for."""

    wait_s: Annotated[float, Field(ge=0, le=3600)] = 30.0


class ComparedNodeAnswer(Answer):
    """A node, and what it has of the row that differs; empty: none does."""

    name: str
    incarnation: str
    has: str


class ComparisonAnswer(Answer):
    """A comparison of what all nodes have stored. `unknown`: it could not be made, `text` says why. `rows`:
    read on all nodes until now; `looks`: how often some were looked at; `kind` and `what`: of the first row
    that differs; `left_out`: members that were not there.
    """

    outcome: Literal["running", "equal", "different", "unknown"]
    text: str
    nodes: list[ComparedNodeAnswer]
    left_out: list[str]
    rows: int
    looks: int
    kind: str
    what: str


NONE = ClusterAnswer(name="", members=[], format=0, log_records=0, log_bytes=0, degraded=[], troubles=[])


class ClusterApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        return [
            Endpoint(
                method="GET",
                path="/cluster",
                summary="The nodes of the cluster, and how they are.",
                handle=self._show,
                answer=ClusterAnswer,
                refusals=LATE,
            ),
            Endpoint(
                method="POST",
                path="/cluster/drain",
                summary="Have this node leave: sessions go to the others, clients are disconnected.",
                handle=self._drain,
                answer=DrainAnswer,
                status=202,
                role=Role.ADMIN,
                refusals={**LATE, **CHANGES},
            ),
            Endpoint(
                method="POST",
                path="/cluster/forget",
                summary="Forget a node that will not come back: no log is kept for it any more.",
                handle=self._forget,
                answer=ForgottenNode,
                body=WantedNode,
                role=Role.ADMIN,
                refusals={**LATE, **CHANGES},
            ),
            Endpoint(
                method="POST",
                path="/cluster/verify",
                summary="Begin to compare what all nodes have stored; it reads all of it.",
                handle=self._verify,
                answer=ComparisonAnswer,
                body=WantedComparison,
                status=202,
                role=Role.ADMIN,
                refusals={**LATE, **CHANGES, 409: "They are being compared, or no other node is there."},
            ),
            Endpoint(
                method="GET",
                path="/cluster/verify",
                summary="The last comparison that this node was asked for.",
                handle=self._show_comparison,
                answer=ComparisonAnswer,
                refusals={**LATE, 404: "The broker is no node of a cluster, or was asked for none."},
            ),
        ]

    async def _show(self, _: web.Request, __: Query) -> ClusterAnswer:
        figures = self._controls.running_monitor().cluster()
        return NONE if figures is None else _shown(figures)

    async def _drain(self, _: web.Request, __: Query) -> DrainAnswer:
        node = self._node()
        try:
            await asked(node.drain(self._disconnect_all))
        except ClusterError as error:
            refuse(409, str(error))
        figures = node.figures()
        drain = figures.drain if figures is not None else None
        return _drain_of(drain) or DrainAnswer(phase="moving", sessions_left=0)

    async def _disconnect_all(self) -> int:
        """Ends all connections; how many there were."""
        lists, ended = self._controls.running_monitor().clients, 0
        question = Question(rows_max=SLICE, away=False)
        cursor: Cursor | None = None
        while True:
            page = await lists.page(question, cursor)
            for each in page.clients:
                ended += await self._controls.disconnect(each.client_id, USE_ANOTHER_SERVER)
            cursor = page.cursor
            if cursor is None:
                return ended
            await asyncio.sleep(PAUSE_S)

    async def _forget(self, _: web.Request, wanted: WantedNode) -> ForgottenNode:
        self._controls.running_monitor()
        try:
            return ForgottenNode(forgotten=await asked(self._node().forget(wanted.node)))
        except ClusterError as error:
            refuse(409, str(error))

    async def _verify(self, _: web.Request, wanted: WantedComparison) -> ComparisonAnswer:
        self._controls.running_monitor()
        try:
            return _comparison(await asked(self._node().verify(wanted.wait_s)))
        except ClusterError as error:
            refuse(409, str(error))

    async def _show_comparison(self, _: web.Request, __: Query) -> ComparisonAnswer:
        found = self._node().verification()
        if found is None:
            refuse(404, "nothing was compared since this node was started")
        return _comparison(found)

    def _node(self) -> Clustering:
        if self._controls.cluster is None:
            refuse(404, "the broker is no node of a cluster")
        return self._controls.cluster


def _shown(figures: ClusterFigures) -> ClusterAnswer:
    return ClusterAnswer(
        name=figures.name,
        members=[_member(each) for each in figures.members],
        format=figures.format,
        log_records=figures.log_records,
        log_bytes=figures.log_bytes,
        degraded=list(figures.degraded),
        troubles=[_trouble(each) for each in figures.troubles],
        drain=_drain_of(figures.drain),
    )


def _comparison(found: VerifyFigures) -> ComparisonAnswer:
    return ComparisonAnswer(
        outcome=found.outcome,
        text=found.text,
        nodes=[
            ComparedNodeAnswer(name=each.name, incarnation=each.incarnation, has=each.has)
            for each in found.nodes
        ],
        left_out=list(found.left_out),
        rows=found.rows,
        looks=found.looks,
        kind=found.kind,
        what=found.what,
    )


def _drain_of(drain: DrainFigures | None) -> DrainAnswer | None:
    if drain is None:
        return None
    return DrainAnswer(phase=drain.phase, sessions_left=drain.sessions_left)


def _member(member: MemberFigures) -> MemberAnswer:
    copies = None
    if member.copies is not None:
        copies = CopiesAnswer(
            connection=member.copies.state,
            last=member.copies.last,
            waiting_bytes=member.copies.waiting_bytes,
            last_error=member.copies.last_error,
        )
    return MemberAnswer(
        name=member.name,
        incarnation=member.incarnation,
        address=member.address,
        is_self=member.is_self,
        state=member.state,
        since=_date(member.since),
        heard_s=member.heard_s,
        last=member.last,
        applied=member.applied,
        behind_records=member.behind_records,
        behind_s=member.behind_s,
        copies=copies,
        formats=member.formats,
        progress=member.progress,
        left_s=member.left_s,
        rows_taken=member.rows_taken,
    )


def _trouble(trouble: Trouble) -> TroubleAnswer:
    return TroubleAnswer(whose=trouble.whose, text=trouble.text, count=trouble.count, at=_date(trouble.at))


def _date(at_s: float) -> datetime:
    date = date_of(int(at_s * 1000))
    assert date is not None
    return date
