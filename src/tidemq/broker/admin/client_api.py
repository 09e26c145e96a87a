"""`/api/v1/clients`: who is connected, whose session waits, what is known of one of them; and its connection
ended.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import replace
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field
from pydantic_core import to_json

from tidemq.broker.admin.api import Answer, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import ANSWER_S, BYTES_MAX, LATE, PAGE_MAX, PAUSE_S, SLICE, asked
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.messages import date_of
from tidemq.broker.monitoring.client_lists import ClientLists, Cursor
from tidemq.engine.door.figures import ClientFigures, Question
from tidemq.wire import ReasonCode, fault_text

FOR_EVER = 0xFFFFFFFF  # a session expiry that never comes (5.0 section 3.1.2.11.2)
NO_LOCAL, AS_PUBLISHED = 4, 8  # subscription options (5.0 section 3.8.3.1)


class ClientsQuery(Query):
    """Which clients."""

    prefix: Annotated[str, Field(description="how the client identifier begins")] = ""
    address: Annotated[
        IPv4Address | IPv6Address | None, Field(description="where the client is; only of connected ones")
    ] = None
    username: Annotated[str | None, Field(description="only of connected ones")] = None
    listener: Annotated[str, Field(description="name of the listener; only of connected ones")] = ""
    connected: Annotated[bool | None, Field(description="false: sessions whose clients are away")] = None
    limit: Annotated[int, Field(ge=1, le=PAGE_MAX, description="clients of an answer")] = 100
    cursor: Annotated[str, Field(description="that of the answer before; empty: from the beginning")] = ""


class LastDisconnect(Answer):
    """When and why a client's last connection ended."""

    at: datetime
    reason_code: int  # of 5.0
    reason: str
    fault: str | None  # what the client or the network did wrong


class Client(Answer):
    """A client, or the session of one that is away. What only a connection has is null then."""

    client_id: str
    connected: bool
    username: str | None
    address: str | None  # "host:port"
    listener: str | None
    protocol_version: str | None
    keep_alive_s: int | None
    connected_since: datetime | None
    session_expiry_s: int | None  # null: never
    session_ends: datetime | None
    subscriptions: int
    in_flight: int
    in_flight_max: int | None  # that the client takes
    queued_messages: int  # with those in flight
    queued_bytes: int
    oldest_queued_s: float | None
    bytes_received: int | None  # on this connection
    bytes_sent: int | None
    messages_received: int | None
    output_bytes: int  # that wait for the client to read
    paused: bool  # its messages are not read now: a receiver, or memory, is full
    slow: bool  # publishers do not wait for it any more
    has_will: bool
    last_disconnect: LastDisconnect | None  # since the broker started
    reactor: int


class Clients(Answer):
    """Some clients, in no order; `cursor`: for the next ones, null: there are no more."""

    clients: list[Client]
    cursor: str | None


class SubscriptionOptions(Answer):
    """A client's subscription (5.0 section 3.8.3.1)."""

    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    subscription_id: int | None


class ClientWithSession(Client):
    """A client with its subscriptions, at most 1,000 of them."""

    subscription_list: list[SubscriptionOptions]
    more_subscriptions: bool  # than those


class Disconnecting(Answer):
    """Whose connection is being ended."""

    disconnecting: str


VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}


def reason_text(code: int) -> str:
    """A reason code in words; of one that is not MQTT's, as an embedding program may give, its number."""
    try:
        return ReasonCode(code).name.replace("_", " ").capitalize()
    except ValueError:
        return f"{code:#04x}"


def _last_disconnect(figures: ClientFigures) -> LastDisconnect | None:
    at = date_of(figures.left_ms)
    if at is None:
        return None
    code = figures.left_reason
    if code == ReasonCode.SUCCESS:
        reason = "Normal disconnection" if figures.left_by_itself else "Connection lost"
    else:
        reason = reason_text(code)
    return LastDisconnect(
        at=at,
        reason_code=code,
        reason=reason,
        fault=fault_text(figures.left_fault) if figures.left_fault else None,
    )


def _fields(figures: ClientFigures) -> dict[str, Any]:
    here = figures.connected
    expiry_s = figures.session_expiry_s
    return {
        "client_id": figures.client_id,
        "connected": here,
        "username": figures.username,
        "address": figures.peer if here else None,
        "listener": figures.listener if here else None,
        "protocol_version": VERSIONS.get(figures.protocol_version) if here else None,
        "keep_alive_s": figures.keep_alive_s if here else None,
        "connected_since": date_of(figures.since_ms) if here else None,
        "session_expiry_s": None if expiry_s == FOR_EVER else expiry_s,
        "session_ends": date_of(figures.ends_ms),
        "subscriptions": figures.subscriptions,
        "in_flight": figures.inflight,
        "in_flight_max": figures.inflight_max if here else None,
        "queued_messages": figures.queued_messages,
        "queued_bytes": figures.queued_bytes,
        "oldest_queued_s": figures.oldest_ms / 1000 if figures.oldest_ms >= 0 else None,
        "bytes_received": figures.bytes_received if here else None,
        "bytes_sent": figures.bytes_sent if here else None,
        "messages_received": figures.messages_received if here else None,
        "output_bytes": figures.output_bytes,
        "paused": figures.paused,
        "slow": figures.slow,
        "has_will": figures.has_will,
        "last_disconnect": _last_disconnect(figures),
        "reactor": figures.reactor,
    }


def _text_of(cursor: Cursor) -> str:
    reactor, place = cursor
    return base64.urlsafe_b64encode(json.dumps([reactor, *(place or ())]).encode()).decode().rstrip("=")


def _cursor_of(text: str) -> Cursor:
    """400 for a text that no answer had."""
    try:
        numbers = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if (
            not isinstance(numbers, list)
            or len(numbers) not in (1, 4)
            or not all(type(each) is int and 0 <= each < 1 << 63 for each in numbers)
            or (len(numbers) == 4 and numbers[1] > 1)
        ):
            raise ValueError
    except (ValueError, RecursionError):
        refuse(400, f"cursor: {text[:40]!r} is none; accepted: that of the answer before")
    return (numbers[0], (numbers[1], numbers[2], numbers[3]) if len(numbers) == 4 else None)


class ClientApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def _lists(self) -> ClientLists:
        return self._controls.running_monitor().clients

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        return [
            Endpoint(
                method="GET",
                path="/clients",
                summary="Clients and sessions, some at a time; who comes or goes meanwhile may be missed.",
                handle=self._list,
                answer=Clients,
                query=ClientsQuery,
                refusals={400: "A wrong key, value or cursor.", **LATE},
            ),
            Endpoint(
                method="GET",
                path="/clients/{client_id:.+}",
                summary="A client, with its subscriptions.",
                handle=self._describe,
                answer=ClientWithSession,
                refusals={400: "A query.", 404: "There is no such client, and no session of it.", **LATE},
            ),
            Endpoint(
                method="DELETE",
                path="/clients/{client_id:.+}",
                summary="End a client's connection (5.0: 0x98); its session stays.",
                handle=self._end_connection,
                answer=Disconnecting,
                status=202,
                role=Role.OPERATE,
                refusals={400: "A query.", 404: "No such client is connected.", **LATE},
            ),
        ]

    async def _list(self, _: web.Request, query: ClientsQuery) -> str:
        """As `Clients`. A slice at a time, with pauses: this loop decides on CONNECTs, and may share a core
        with a reactor.
        """
        question = Question(
            client_id=query.prefix,
            address=str(query.address or ""),
            listener=query.listener,
            username=query.username,
            connected=query.connected is not False,
            away=query.connected is not True,
        )
        cursor = _cursor_of(query.cursor) if query.cursor else None
        found: list[str] = []
        size, until = 0, time.monotonic() + ANSWER_S
        while True:
            wanted = replace(question, rows_max=min(query.limit - len(found), SLICE))
            page = await asked(self._lists().page(wanted, cursor))
            made = [to_json(_fields(each)).decode() for each in page.clients]
            found += made
            size, cursor = size + sum(map(len, made)), page.cursor
            if cursor is None or len(found) >= query.limit:
                break
            if size >= BYTES_MAX or time.monotonic() >= until:
                break
            await asyncio.sleep(PAUSE_S)
        following = json.dumps(None if cursor is None else _text_of(cursor))
        return f'{{"clients":[{",".join(found)}],"cursor":{following}}}'

    async def _end_connection(self, request: web.Request, _: Query) -> Disconnecting:
        """Whoever owns the connection has been told to end it."""
        client_id = request.match_info["client_id"]
        if not await self._controls.disconnect(client_id):
            refuse(404, f"no client {client_id!r} is connected")
        return Disconnecting(disconnecting=client_id)

    async def _describe(self, request: web.Request, _: Query) -> ClientWithSession:
        client_id = request.match_info["client_id"]
        found = await asked(self._lists().one(client_id))
        if found is None:
            refuse(404, f"there is no client {client_id!r}, and no session of it")
        subscriptions = [
            SubscriptionOptions(
                topic_filter=topic_filter,
                qos=options & 3,
                no_local=bool(options & NO_LOCAL),
                retain_as_published=bool(options & AS_PUBLISHED),
                retain_handling=options >> 4 & 3,
                subscription_id=number or None,
            )
            for topic_filter, options, number in sorted(found.filters)
        ]
        return ClientWithSession.model_validate(
            _fields(found.figures)
            | {"subscription_list": subscriptions, "more_subscriptions": found.more_filters}
        )
