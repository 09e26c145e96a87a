"""`/api/v1/bans`: who may not connect, by client identifier, user name or address; kept in the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Annotated

from aiohttp import web
from pydantic import Field

from tidemq.broker.access.bans import BANS_MAX, FAMILY, Ban, Kind, address_or_network
from tidemq.broker.access.peer_address import address_of
from tidemq.broker.admin.api import Answer, Body, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import LATE, PAUSE_S, SLICE, asked
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.guard import HOLDER
from tidemq.broker.monitoring.client_lists import Cursor
from tidemq.engine.door.figures import ClientFigures, Question
from tidemq.store import Write

Name = Annotated[str | None, Field(min_length=1, max_length=65_535)]
YEARS_100_S = 100 * 366 * 86_400


class WantedBan(Body):
    """Give one of `client_id`, `username` and `address`, which may be a network (10.0.0.0/8)."""

    client_id: Name = None
    username: Name = None
    address: Name = None
    reason: Annotated[str, Field(max_length=1000)] = ""
    seconds: Annotated[float | None, Field(gt=0, le=YEARS_100_S)] = None  # null: until it is ended


class BanQuery(Query):
    """Which ban: give one."""

    client_id: Name = None
    username: Name = None
    address: Name = None


class ShownBan(Answer):
    """A ban. `by`: name of the token that made it; `from_file`: it is of `bans_file`, and ends only there."""

    client_id: str | None
    username: str | None
    address: str | None
    reason: str
    by: str
    since: datetime
    until: datetime | None
    from_file: bool


class MadeBan(ShownBan):
    """A ban that was made. `kept`: in a store on disk."""

    disconnecting: int
    kept: bool


class BanList(Answer):
    """The oldest first."""

    bans: list[ShownBan]


class BanApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        wrong = {400: "A wrong key or value.", **LATE}
        return [
            Endpoint(
                method="GET",
                path="/bans",
                summary="Who may not connect.",
                handle=self._list,
                answer=BanList,
                refusals=wrong,
            ),
            Endpoint(
                method="POST",
                path="/bans",
                summary="Keep a client, user or address out; those that are connected are disconnected.",
                handle=self._ban,
                answer=MadeBan,
                status=201,
                body=WantedBan,
                role=Role.OPERATE,
                refusals={
                    **wrong,
                    409: f"There are {BANS_MAX}.",
                    413: "The body is too large.",
                    415: "The body is no JSON.",
                },
            ),
            Endpoint(
                method="DELETE",
                path="/bans",
                summary="Let a client, user or address in again.",
                handle=self._unban,
                answer=ShownBan,
                query=BanQuery,
                role=Role.OPERATE,
                refusals={**wrong, 404: "There is no such ban.", 409: "It is in `bans_file`."},
            ),
        ]

    async def _list(self, _: web.Request, __: Query) -> BanList:
        await self._forget_those_over()
        decisions, now_s = self._controls.decisions(), time.time()
        of_file = [each for each in decisions.file_bans.all() if not each.is_over(now_s)]
        rows = [_shown(each) for each in decisions.bans.all()]
        rows += [_shown(each, from_file=True) for each in of_file]
        return BanList(bans=sorted(rows, key=lambda each: each.since))

    async def _ban(self, request: web.Request, wanted: WantedBan) -> MadeBan:
        kind, value = _named(wanted)
        await self._forget_those_over()
        decisions = self._controls.decisions()
        if len(decisions.bans) >= BANS_MAX:
            refuse(409, f"there are {BANS_MAX} bans; accepted: one less")
        now_s = time.time()
        until_s = None if wanted.seconds is None else now_s + wanted.seconds
        ban = Ban(kind, value, wanted.reason, request[HOLDER].name, now_s, until_s)
        kept = await self._write([(FAMILY, ban.key, ban.text)])
        decisions.bans.add(ban)
        decisions.follow_bans()
        ended = await self._disconnect(ban)
        return MadeBan(**_shown(ban).model_dump(), disconnecting=ended, kept=kept)

    async def _unban(self, _: web.Request, query: BanQuery) -> ShownBan:
        kind, value = _named(query)
        decisions = self._controls.decisions()
        ban = decisions.bans.get(kind, value)
        if ban is None and decisions.file_bans.get(kind, value) is not None:
            refuse(409, f"the ban of {kind} {value!r} is in bans_file; accepted: end it there")
        if ban is None:
            refuse(404, f"there is no ban of {kind} {value!r}")
        await self._write([(FAMILY, ban.key, None)])
        decisions.bans.remove(kind, value)
        decisions.follow_bans()
        return _shown(ban)

    async def _forget_those_over(self) -> None:
        decisions = self._controls.decisions()
        over = decisions.bans.over()
        if over:
            await self._write([(FAMILY, each.key, None) for each in over])
        for each in over:
            decisions.bans.remove(each.kind, each.value)
        decisions.follow_bans()

    async def _write(self, rows: Sequence[Write]) -> bool:
        """False where there is nothing to write to; 503 where it fails."""
        storage = self._controls.storage()
        if storage is None or storage.keeper is None or not storage.is_on_disk:
            return False
        store = storage.store
        await asked(asyncio.wrap_future(storage.keeper.ask(lambda: store.write(rows, sync=True))))
        return True

    async def _disconnect(self, ban: Ban) -> int:
        """Ends the connections of whom it is about; how many."""
        lists, ended = self._controls.running_monitor().clients, 0
        exact = ban.kind == "address" and "/" not in ban.value
        question = Question(
            rows_max=SLICE,
            client_id=ban.value if ban.kind == "client_id" else "",
            username=ban.value if ban.kind == "username" else None,
            address=ban.value if exact else "",
            away=False,
        )
        cursor: Cursor | None = None
        while True:
            page = await asked(lists.page(question, cursor))
            for each in page.clients:
                if _is_about(ban, each):
                    ended += await self._controls.disconnect(each.client_id)
            cursor = page.cursor
            if cursor is None:
                return ended
            await asyncio.sleep(PAUSE_S)


def _is_about(ban: Ban, client: ClientFigures) -> bool:
    if ban.kind == "client_id":
        return bool(client.client_id == ban.value)
    if ban.kind == "username":
        return bool(client.username == ban.value)
    address = address_of(client.peer)
    return address is not None and address in ip_network(ban.value)


def _named(wanted: WantedBan | BanQuery) -> tuple[Kind, str]:
    """400 where there is not exactly one, or the address is none."""
    given: list[tuple[Kind, str]] = []
    if wanted.client_id is not None:
        given.append(("client_id", wanted.client_id))
    if wanted.username is not None:
        given.append(("username", wanted.username))
    if wanted.address is not None:
        try:
            given.append(("address", address_or_network(wanted.address)))
        except ValueError as error:
            refuse(400, f"address: {error}; accepted: 192.0.2.7, 192.0.2.0/24, 2001:db8::/32")
    if len(given) != 1:
        refuse(400, "client_id, username, address: give one of them")
    return given[0]


def _shown(ban: Ban, *, from_file: bool = False) -> ShownBan:
    return ShownBan(
        client_id=ban.value if ban.kind == "client_id" else None,
        username=ban.value if ban.kind == "username" else None,
        address=ban.value if ban.kind == "address" else None,
        reason=ban.reason,
        by=ban.by,
        since=datetime.fromtimestamp(ban.since_s, UTC),
        until=None if ban.until_s is None else datetime.fromtimestamp(ban.until_s, UTC),
        from_file=from_file,
    )
