"""Answers the engine's questions: may this client connect, subscribe, publish?

Every question is a task with a time-out, at most `decisions_max` of them call providers at a time, and at
most `decisions_waiting_max` exist: one client's slow decision delays no other client, and whatever is late,
fails or is too much is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemq.broker.hooks import Hooks
from tidemq.broker.providers import (
    BAD_AUTHENTICATION_METHOD,
    CONTINUE_AUTHENTICATION,
    IMPLEMENTATION_SPECIFIC_ERROR,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SERVER_UNAVAILABLE,
    SUCCESS,
    Access,
    Authenticator,
    Authoriser,
    EnhancedAuthenticator,
    Verdict,
)
from tidemq.broker.replays import PREFIX, Replay, ReplayRefusedError, Replays
from tidemq.config import Config
from tidemq.engine.events import (
    AuthRequest,
    Connected,
    ConnectRequest,
    Disconnected,
    PublishRequest,
    SubscribeRequest,
)

if TYPE_CHECKING:
    from tidemq.engine import Engine

_log = logging.getLogger("tidemq")

Decide = Callable[[], Coroutine[Any, Any, None]]
Refuse = Callable[[int], None]


class _Exchange:
    """One client's authentication: sends it challenges and, at last, the verdict."""

    def __init__(
        self,
        engine: Engine,
        replies: dict[int, asyncio.Future[bytes | None]],
        request: ConnectRequest | AuthRequest,
    ) -> None:
        self._engine = engine
        self._replies = replies
        self._connection = request.connection
        self._client_id = request.client_id
        self._answers_auth = isinstance(request, AuthRequest)

    async def challenge(self, data: bytes | None) -> bytes | None:
        """Sends the data in an AUTH packet and returns the data of the client's."""
        reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._replies[self._connection] = reply
        self.answer(Verdict(CONTINUE_AUTHENTICATION, auth_data=data))
        return await reply

    def answer(self, verdict: Verdict) -> None:
        """Answers what the client sent last: its CONNECT or, after a challenge, its AUTH."""
        if self._answers_auth:
            self._engine.answer_auth(self._connection, verdict.reason, verdict.auth_data)
        else:
            self._engine.answer_connect(
                self._connection,
                verdict.reason,
                client_id=verdict.client_id or self._client_id,
                auth_data=verdict.auth_data,
                reason_string=verdict.reason_string,
            )
        self._answers_auth = True


class Decisions:
    """Takes the engine's requests of one broker. All methods run on the broker's event loop."""

    def __init__(
        self,
        engine: Engine,
        config: Config,
        authenticator: Authenticator | None,
        authoriser: Authoriser | None,
        hooks: Hooks,
        replays: Replays,
    ) -> None:
        self._engine = engine
        self._replays = replays
        self._config = config
        self._authenticator = authenticator
        self._authoriser = authoriser
        self._hooks = hooks
        self._slots = asyncio.Semaphore(config.decisions_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies: dict[int, asyncio.Future[bytes | None]] = {}  # connections whose AUTH is awaited
        self.counts: Counter[str] = Counter()

        authorises = authoriser is not None or hooks.has("authorise")
        engine.ask_connect = authenticator is not None or authorises  # a will is authorised at CONNECT
        engine.ask_subscribe = authorises or hooks.has("subscribe")
        engine.ask_publish = authorises or hooks.has("publish")
        engine.report_connections = hooks.has("connect", "disconnect") or _log.isEnabledFor(logging.DEBUG)

    def on_connect(self, request: ConnectRequest) -> None:
        """Answers a CONNECT."""
        exchange = _Exchange(self._engine, self._replies, request)

        def refuse(reason: int) -> None:
            exchange.answer(Verdict(reason))

        decide = partial(self._connect, request, exchange)
        # an exchange of AUTH packets mostly waits for a client, who must not be able to hold a slot
        self._start(decide, refuse, late=SERVER_UNAVAILABLE, takes_slot=request.auth_method is None)

    def on_auth(self, request: AuthRequest) -> None:
        """Passes a client's AUTH to the exchange that waits for it, or starts to authenticate it again."""

        def refuse(reason: int) -> None:
            self._engine.answer_auth(request.connection, reason)

        reply = self._replies.pop(request.connection, None)
        if reply is not None and not reply.done():
            reply.set_result(request.auth_data)
        elif request.reason == CONTINUE_AUTHENTICATION:
            refuse(PROTOCOL_ERROR)
        else:
            decide = partial(self._authenticate_again, request)
            self._start(decide, refuse, late=SERVER_UNAVAILABLE, takes_slot=False)

    def on_subscribe(self, request: SubscribeRequest) -> None:
        """Answers a SUBSCRIBE, filter by filter."""

        def refuse(reason: int) -> None:
            self._engine.answer_subscribe(request.connection, [reason] * len(request.filters))

        self._start(partial(self._subscribe, request), refuse, late=QUOTA_EXCEEDED)

    def on_publish(self, request: PublishRequest) -> None:
        """Answers a PUBLISH."""

        def refuse(reason: int) -> None:
            self._engine.answer_publish(request.connection, reason)

        self._start(partial(self._publish, request), refuse, late=QUOTA_EXCEEDED)

    def on_connected(self, event: Connected) -> None:
        """Tells the plugins."""
        self._tell("connect", event)

    def on_disconnected(self, event: Disconnected) -> None:
        """Ends an exchange that waits for this client and tells the plugins."""
        reply = self._replies.pop(event.connection, None)
        if reply is not None:
            reply.cancel()
        self._tell("disconnect", event)

    async def close(self) -> None:
        """Cancels what is still being decided."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tell(self, hook: str, event: Connected | Disconnected) -> None:
        if self._hooks.has(hook):
            self._start(partial(self._hooks.notify, hook, event), lambda _: None, late=SUCCESS)

    def _start(self, decide: Decide, refuse: Refuse, *, late: int, takes_slot: bool = True) -> None:
        if len(self._tasks) >= self._config.decisions_max + self._config.decisions_waiting_max:
            self.counts["decisions_over_quota"] += 1
            refuse(QUOTA_EXCEEDED)
            return
        task = asyncio.create_task(self._run(decide, refuse, late, takes_slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, decide: Decide, refuse: Refuse, late: int, takes_slot: bool) -> None:
        try:
            async with asyncio.timeout(self._config.decision_s), self._slots if takes_slot else nullcontext():
                await decide()
        except TimeoutError:
            self.counts["decisions_late"] += 1
            refuse(late)
        except Exception:
            self.counts["decisions_failed"] += 1
            _log.exception("a decision failed, the client is refused")
            refuse(IMPLEMENTATION_SPECIFIC_ERROR)

    async def _connect(self, request: ConnectRequest, exchange: _Exchange) -> None:
        verdict = await self._authenticate(request, exchange)
        if verdict.reason == SUCCESS and request.will_topic is not None:
            client_id = verdict.client_id or request.client_id
            if not await self._allows(
                Access("publish", client_id, request.username, request.will_topic, qos=0)
            ):
                verdict = Verdict(NOT_AUTHORIZED)
        exchange.answer(verdict)

    async def _authenticate(self, request: ConnectRequest | AuthRequest, exchange: _Exchange) -> Verdict:
        authenticator = self._authenticator
        if request.auth_method is not None:
            if not isinstance(authenticator, EnhancedAuthenticator):
                return Verdict(BAD_AUTHENTICATION_METHOD)  # [MQTT-4.12.0-1]
            return await authenticator.converse(request, exchange.challenge)
        if authenticator is None:
            return Verdict()
        verdict = authenticator.authenticate(request)
        return verdict if isinstance(verdict, Verdict) else await verdict

    async def _authenticate_again(self, request: AuthRequest) -> None:
        exchange = _Exchange(self._engine, self._replies, request)
        exchange.answer(await self._authenticate(request, exchange))

    async def _subscribe(self, request: SubscribeRequest) -> None:
        reasons: list[int] = []
        replays: list[Replay] = []
        for topic_filter, qos in request.filters:
            share_name, stream_name, plain_filter = _split_filter(topic_filter)
            access = Access(
                "subscribe",
                request.client_id,
                request.username,
                plain_filter,
                qos,
                share_name=share_name,
                stream_name=stream_name,
            )
            malformed = not plain_filter  # of a stream: `open` says so
            reason = SUCCESS if malformed or await self._allows(access) else NOT_AUTHORIZED
            if stream_name is not None and reason == SUCCESS:
                try:
                    replays.append(self._replays.open(request, topic_filter))
                except ReplayRefusedError as error:
                    reason = error.reason
            reasons.append(reason)
        allowed = tuple(f for f, reason in zip(request.filters, reasons, strict=True) if reason == SUCCESS)
        if allowed:
            await self._hooks.notify("subscribe", request._replace(filters=allowed))
        self._engine.answer_subscribe(request.connection, reasons)
        if replays:
            self._replays.begin(request, replays)

    async def _publish(self, request: PublishRequest) -> None:
        access = Access(
            "publish", request.client_id, request.username, request.topic, request.qos, request.retain
        )
        if not await self._allows(access):
            self._engine.answer_publish(request.connection, NOT_AUTHORIZED)
            return
        await self._hooks.notify("publish", request)
        self._engine.answer_publish(request.connection, SUCCESS)

    async def _allows(self, access: Access) -> bool:
        if self._authoriser is not None:
            answer = self._authoriser.authorise(access)
            if not (answer if isinstance(answer, bool) else await answer):
                return False
        return await self._hooks.authorised(access)


def _split_filter(topic_filter: str) -> tuple[str | None, str | None, str]:
    """Share name and stream's name, where there is one, and the filter of topics: of `$share/NAME/FILTER`,
    whose form the engine has checked, and `$stream/NAME/START/FILTER`.
    """
    if topic_filter.startswith("$share/"):
        _, share_name, plain_filter = topic_filter.split("/", 2)
        return share_name, None, plain_filter
    if topic_filter.startswith(PREFIX):
        name, _, rest = topic_filter.removeprefix(PREFIX).partition("/")
        return None, name, rest.partition("/")[2]
    return None, None, topic_filter
