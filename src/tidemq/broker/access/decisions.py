"""Answers the engine's questions: may this client connect, subscribe, publish?

Every question is a task with a time-out, at most `decisions_max` of them are with providers at a time (not
counted those that bound themselves), and at most `decisions_waiting_max` wait: one client's slow decision
delays no other client, and whatever is late, fails or is too much is refused. What an authoriser has answered
is remembered for `decision_cache_s`, here and for what is left of that time in the engine.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemq.broker.access.bans import Bans
from tidemq.broker.access.connected_clients import Clients
from tidemq.broker.access.exchange import Exchange, of_disconnect
from tidemq.broker.access.failed_logins import FailedLogins
from tidemq.broker.access.remembered import Remembered
from tidemq.broker.fault_log import Lines
from tidemq.broker.hooks import Hooks
from tidemq.broker.providers import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    BANNED,
    CONNECTION_RATE_EXCEEDED,
    CONTINUE_AUTHENTICATION,
    IMPLEMENTATION_SPECIFIC_ERROR,
    MAXIMUM_CONNECT_TIME,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
    SUCCESS,
    Access,
    Authenticator,
    Authoriser,
    EnhancedAuthenticator,
    Verdict,
    bounds_itself,
)
from tidemq.broker.replay_pieces import Replay
from tidemq.broker.replays import Asked, Replays
from tidemq.broker.stream_filters import PREFIX, ReplayRefusedError
from tidemq.config import Config
from tidemq.engine.door.events import (
    AuthRequest,
    Connected,
    ConnectRequest,
    Disconnected,
    PublishRequest,
    Replaying,
    SessionRequest,
    SubscribeRequest,
)
from tidemq.errors import UsageError

if TYPE_CHECKING:
    from tidemq.engine import Engine

_log = logging.getLogger("tidemq.access")

Decide = Callable[[], Coroutine[Any, Any, None]]
Refuse = Callable[[int], None]
FindSession = Callable[[SessionRequest], Awaitable[int]]

_FAILURE = 0x80  # reason codes from here on
_SHOWN = 200  # characters of a filter, in a reason string
_LOGIN_FAILED = frozenset({BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED})


class _Identity(NamedTuple):
    """Of the client that a decision is about."""

    username: str | None
    groups: tuple[str, ...] = ()


class Decisions:
    """Takes the engine's requests of one broker. All methods run on the broker's event loop."""

    def __init__(
        self,
        engine: Engine,
        config: Config,
        authenticators: Mapping[str, Authenticator | None],
        authoriser: Authoriser | None,
        hooks: Hooks,
        replays: Replays,
    ) -> None:
        self._engine = engine
        self._replays = replays
        self._config = config
        self._authenticators = authenticators  # by listener; None: everybody may connect
        self._authoriser = authoriser
        self._hooks = hooks
        self._slots = asyncio.Semaphore(config.decisions_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies: dict[int, asyncio.Future[bytes | None]] = {}  # connections whose AUTH is awaited
        self._clients = Clients(self._end_time, config.limits.connections_max)
        self._remembered: Remembered[Access, bool] = Remembered(config.decision_cache_max)
        self._failed_logins = FailedLogins(config)
        self._delayed: dict[Exchange, asyncio.TimerHandle] = {}  # refusals that are not said yet
        self.counts: Counter[str] = Counter()
        self.bans = Bans()  # that operators have made
        self.file_bans = Bans()  # of bans_file
        self._failures = Lines(config.fault_lines_max, "failures of decisions", logging.ERROR)
        # who may veto a message is asked about each
        self._engine_may_answer = not hooks.has("authorise")
        self._find_session: FindSession | None = None
        self._session_ready: Callable[[int, int], None] = lambda *_: None

        authorises = authoriser is not None or hooks.has("authorise")
        authenticates = any(authenticator is not None for authenticator in authenticators.values())
        # then a client that is not known here has no say: its own word for its name must not count
        self._knows_all = authenticates and authorises
        self._asks_always = authorises  # a will is authorised at CONNECT
        self.follow_bans()
        engine.ask_subscribe = authorises or hooks.has("subscribe")
        engine.ask_publish = authorises
        self.wants_reports = (
            authenticates
            or (authoriser is not None and config.decision_cache_s > 0)
            or hooks.has("connect", "disconnect")
        )

    def follow_bans(self) -> None:
        """To be called when a ban has come or gone: only where there are some is it asked about each CONNECT
        that nobody else decides on.
        """
        self._engine.ask_connect = self._asks_always or bool(self.bans) or bool(self.file_bans)

    def on_connect(self, request: ConnectRequest) -> None:
        """Answers a CONNECT."""
        exchange = self._exchange(request)

        def refuse(reason: int) -> None:
            exchange.answer(Verdict(reason))

        decide = partial(self._admit, request, exchange)
        self._start(decide, refuse, late=SERVER_UNAVAILABLE)

    def find_sessions(self, find: FindSession, ready: Callable[[int, int], None]) -> None:
        """Who has a client's session brought to this engine: `find` returns when it is here, or there is
        none, with 0, or with the reason that the client is refused with. `ready`:
        ``StoreAccess.session_ready``.
        """
        self._find_session, self._session_ready = find, ready

    def on_session(self, request: SessionRequest) -> None:
        """Answers a client that is let in and waits for its session."""
        ready = partial(self._session_ready, request.connection)
        self._start(partial(self._bring_session, request, ready), ready, late=SERVER_UNAVAILABLE)

    async def _bring_session(self, request: SessionRequest, ready: Refuse) -> None:
        assert self._find_session is not None
        ready(await self._find_session(request))

    def on_auth(self, request: AuthRequest) -> None:
        """Passes a client's AUTH to the exchange that waits for it, or starts to authenticate it again."""

        def refuse(reason: int) -> None:
            self._engine.answer_auth(request.connection, of_disconnect(reason))

        reply = self._replies.pop(request.connection, None)
        if reply is not None and not reply.done():
            reply.set_result(request.auth_data)
        elif request.reason == CONTINUE_AUTHENTICATION:
            refuse(PROTOCOL_ERROR)
        else:
            decide = partial(self._authenticate_again, request)
            self._start(decide, refuse, late=SERVER_UNAVAILABLE)

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
        """Knows from now on who the client is, and tells the plugins."""
        self._clients.on_connected(event)
        self._remembered.drop_owner(event.client_id)
        self._tell("connect", event)

    def on_disconnected(self, event: Disconnected) -> None:
        """Forgets the client, ends an exchange that waits for it and tells the plugins."""
        self._clients.on_disconnected(event)
        self._remembered.drop_owner(event.client_id)
        reply = self._replies.pop(event.connection, None)
        if reply is not None:
            reply.cancel()
        self._tell("disconnect", event)

    async def close(self) -> None:
        """Cancels what is still being decided."""
        self._clients.close()
        for timer in self._delayed.values():
            timer.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failures.flush()

    def _tell(self, hook: str, event: Connected | Disconnected) -> None:
        if self._hooks.has(hook):
            self._start(partial(self._notify, hook, event), lambda _: None, late=SUCCESS)

    def _end_time(self, client_id: str) -> None:
        """The client's right to be connected has ended (5.0: 0xA0, the authorised time is over)."""
        self.counts["clients_expired"] += 1
        self._engine.disconnect(client_id, MAXIMUM_CONNECT_TIME)

    def _exchange(self, request: ConnectRequest | AuthRequest) -> Exchange:
        return Exchange(self._engine, self._replies, max(1, self._config.decisions_waiting_max), request)

    def _start(self, decide: Decide, refuse: Refuse, *, late: int) -> None:
        # those that wait for their clients are not counted: clients that say nothing would keep others out
        if (
            len(self._tasks) - len(self._replies)
            >= self._config.decisions_max + self._config.decisions_waiting_max
        ):
            self.counts["decisions_over_quota"] += 1
            refuse(QUOTA_EXCEEDED)
            return
        task = asyncio.create_task(self._run(decide, refuse, late))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, decide: Decide, refuse: Refuse, late: int) -> None:
        try:
            async with asyncio.timeout(self._config.decision_s):
                await decide()
        except TimeoutError:
            self.counts["decisions_late"] += 1
            refuse(late)
        except Exception:  # noqa: BLE001 - an authenticator may raise anything
            self.counts["decisions_failed"] += 1
            if self._failures.take():  # strangers can cause it
                _log.exception("a decision failed, the client is refused")
            refuse(IMPLEMENTATION_SPECIFIC_ERROR)

    def _slot(self, provider: object) -> AbstractAsyncContextManager[object]:
        return nullcontext() if bounds_itself(provider) else self._slots

    async def _notify(self, hook: str, event: object) -> None:
        if self._hooks.has(hook):
            async with self._slots:
                await self._hooks.notify(hook, event)

    async def _admit(self, request: ConnectRequest, exchange: Exchange) -> None:
        if self._is_banned(exchange, request, request.username):
            return
        logins, plain = self._failed_logins, request.auth_method is None
        # an exchange waits for its client, who must not be able to hold a turn, and costs little
        async with logins.turn(request.peer, request.username) if plain else nullcontext():
            if not logins.refuses(request.peer, request.username):
                await self._connect(request, exchange)
                return
        self._refuse_address(exchange)

    def _is_banned(self, exchange: Exchange, request: ConnectRequest, username: str | None) -> bool:
        """Refuses the client where it is."""
        who = {"client_id": request.client_id, "peer": request.peer}
        ban = self.bans.find(username=username, **who) or self.file_bans.find(username=username, **who)
        if ban is not None:
            self.counts["connects_banned"] += 1
            exchange.answer(Verdict(BANNED, f"banned by {ban.kind}"))
        return ban is not None

    def _refuse_address(self, exchange: Exchange) -> None:
        self.counts["logins_refused"] += 1
        why = "too many logins from this address have failed, try again later"
        exchange.answer(Verdict(CONNECTION_RATE_EXCEEDED, why))

    async def _connect(self, request: ConnectRequest, exchange: Exchange) -> None:
        verdict = await self._authenticate(request, exchange)
        if request.auth_method is not None and self._failed_logins.refuses(request.peer, request.username):
            self._refuse_address(exchange)  # others have failed meanwhile: what it has found is not said
            return
        delay_s = self._judge(request, verdict)
        if verdict.reason == SUCCESS and self._is_banned(exchange, request, verdict.username):
            return  # by the name that was proved, which CONNECT need not say
        if verdict.reason == SUCCESS and request.will_topic is not None:
            access = Access(
                "publish",
                verdict.client_id or request.client_id,
                request.username if verdict.username is None else verdict.username,
                request.will_topic,
                qos=0,
                groups=verdict.groups,
            )
            if not await self._allows(access, remember=False):
                verdict = Verdict(NOT_AUTHORIZED)
        asked = self._knows_all or self._authenticators[request.listener] is not None
        if verdict.reason == SUCCESS and asked:
            self._clients.accept(request, verdict)
        self._answer(exchange, verdict, delay_s)

    def _judge(self, request: ConnectRequest | AuthRequest, verdict: Verdict) -> float:
        """Counts a login that has failed, or forgives those before; the seconds after which to answer."""
        if self._authenticators[request.listener] is None:
            return 0.0
        if verdict.reason == SUCCESS:
            if verdict.username is None or request.username in (None, verdict.username):
                self._failed_logins.succeeded(request.peer, request.username)
            # else the name in CONNECT was not what was proved, and whoever it is of gains nothing by it
        elif verdict.reason in _LOGIN_FAILED:
            self.counts["logins_failed"] += 1
            return self._failed_logins.failed(request.peer, request.username)
        return 0.0

    def _answer(self, exchange: Exchange, verdict: Verdict, delay_s: float) -> None:
        """Answers at once, or later: nobody waits for it meanwhile but the client."""
        if not delay_s or len(self._delayed) >= self._config.decisions_waiting_max:
            exchange.answer(verdict)
            return

        def answer() -> None:
            del self._delayed[exchange]
            exchange.answer(verdict)

        self.counts["logins_delayed"] += 1
        self._delayed[exchange] = asyncio.get_running_loop().call_later(delay_s, answer)

    async def _authenticate(self, request: ConnectRequest | AuthRequest, exchange: Exchange) -> Verdict:
        authenticator = self._authenticators[request.listener]
        if request.auth_method is not None:
            if not isinstance(authenticator, EnhancedAuthenticator):
                return Verdict(BAD_AUTHENTICATION_METHOD)  # [MQTT-4.12.0-1]
            # it mostly waits for its client, who must not be able to hold a slot
            return await authenticator.converse(request, exchange.challenge)
        if authenticator is None:
            return Verdict()
        assert isinstance(request, ConnectRequest)
        async with self._slot(authenticator):
            verdict = authenticator.authenticate(request)
            return await verdict if inspect.isawaitable(verdict) else verdict

    async def _authenticate_again(self, request: AuthRequest) -> None:
        exchange = self._exchange(request)
        verdict = await self._authenticate(request, exchange)
        if verdict.reason == SUCCESS and not self._clients.renew(request, verdict):
            verdict = Verdict(NOT_AUTHORIZED)
        self._remembered.drop_owner(request.client_id)
        self._answer(exchange, verdict, self._judge(request, verdict))

    async def _subscribe(self, request: SubscribeRequest) -> None:
        replays: list[Replay] = []
        try:
            reasons, why = await self._judge_filters(request, replays)
            pairs = zip(request.filters, reasons, strict=True)
            allowed = tuple(asked for asked, reason in pairs if reason == SUCCESS)
            if allowed:
                await self._notify("subscribe", replace(request, filters=allowed))
        except BaseException:
            self._replays.give_up(replays)
            raise
        starts = b"".join([each.start for each in replays])
        self._engine.answer_subscribe(request.connection, reasons, why, starts)
        if replays:
            self._replays.begin(request, replays)

    async def _judge_filters(self, request: SubscribeRequest, replays: list[Replay]) -> tuple[list[int], str]:
        """A reason for each filter, and in words why the first replay is refused that is; adds to the replays
        what is asked for of them.
        """
        reasons: list[int] = []
        why = ""
        who = self._who(request)
        asked = await self._ask_replays(request)
        for index, (topic_filter, qos) in enumerate(request.filters):
            if any(request.reasons[index : index + 1]):  # the rules refuse it
                reasons.append(request.reasons[index])
                continue
            try:
                found = asked.get(topic_filter)
                if isinstance(found, ReplayRefusedError):
                    raise found
                reason = await self._judge_filter(request, who, topic_filter, qos, found)
                if found is not None and reason == SUCCESS:
                    replays.append(self._replays.open(request, topic_filter, qos, found))
            except ReplayRefusedError as error:
                reason = error.reason
                why = why or f"{topic_filter[:_SHOWN]}: {error}"[: 2 * _SHOWN]
            reasons.append(reason)
        return reasons, why

    async def _ask_replays(self, request: SubscribeRequest) -> dict[str, Asked | ReplayRefusedError]:
        """What the packet's filters ask for of streams; refused is what the rules do not allow, too."""
        found: dict[str, Asked | ReplayRefusedError] = {}
        for topic_filter, _ in request.filters:
            if topic_filter.startswith(PREFIX) and topic_filter not in found:
                try:
                    found[topic_filter] = self._replays.ask(request, topic_filter)
                except ReplayRefusedError as error:
                    found[topic_filter] = error
        asked = {key: each for key, each in found.items() if isinstance(each, Asked)}
        verdicts = await self._replays.judge(request.connection, asked.values())
        for topic_filter, each in asked.items():
            refused = [topics for topics in each.topics if verdicts[topics] >= _FAILURE]
            if refused:
                refusal = ReplayRefusedError(f"the rules do not allow {refused[0]!r}", NOT_AUTHORIZED)
                found[topic_filter] = self._replays.refuse(request, topic_filter, refusal)
            else:
                found[topic_filter] = replace(each, qos_max=min(verdicts[topics] for topics in each.topics))
        return found

    async def _judge_filter(
        self,
        request: SubscribeRequest,
        who: _Identity | None,
        topic_filter: str,
        qos: int,
        asked: Asked | None,
    ) -> int:
        """What the authoriser says of one filter: of what a stream keeps, of all filters of its topics."""
        if who is None:
            return NOT_AUTHORIZED
        share_name, plain_filter = _split_filter(topic_filter)
        for topics in (plain_filter,) if asked is None else asked.topics:
            access = Access(
                "subscribe",
                request.client_id,
                who.username,
                topics,
                qos,
                share_name=share_name,
                stream_name=None if asked is None else asked.wanted.name,
                groups=who.groups,
            )
            if not await self._allows(access):
                return NOT_AUTHORIZED
        return SUCCESS

    def on_replaying(self, event: Replaying) -> None:
        """A replay at QoS 1 begins; or a client is back whose session has one, and is asked about anew."""

        def refuse(reason: int) -> None:
            """Its client may come again: it is not known whether it may have the replay."""
            self._engine.disconnect(event.request.client_id, of_disconnect(reason))

        if event.asked:
            self._replays.on_granted(event)
        else:
            self._start(partial(self._resume_replay, event), refuse, late=SERVER_BUSY)

    async def _resume_replay(self, event: Replaying) -> None:
        request = event.request
        [(topic_filter, qos)] = request.filters
        found = (await self._ask_replays(request))[topic_filter]
        reason = NOT_AUTHORIZED
        if isinstance(found, Asked):
            reason = await self._judge_filter(request, self._who(request), topic_filter, qos, found)
        if isinstance(found, Asked) and reason == SUCCESS:
            self._replays.resume(event, found)
        else:
            self._replays.revoke(event, found if isinstance(found, ReplayRefusedError) else None)

    async def _publish(self, request: PublishRequest) -> None:
        who = self._who(request)
        reason, ttl_s = NOT_AUTHORIZED, 0.0
        if who is not None:
            access = Access(
                "publish",
                request.client_id,
                who.username,
                request.topic,
                request.qos,
                request.retain,
                groups=who.groups,
            )
            if await self._allows(access):
                reason = SUCCESS
            if self._engine_may_answer:
                ttl_s = self._remembered.left_s(access)
        self._engine.answer_publish(request.connection, reason, ttl_s=ttl_s)

    def _who(self, request: SubscribeRequest | PublishRequest) -> _Identity | None:
        """Whom the authoriser is asked about; None where that has to be known and is not."""
        client = self._clients.find(request.client_id)
        if client is not None:
            return _Identity(client.username, client.groups)
        if not self._knows_all:
            return _Identity(request.username)
        self.counts["decisions_client_unknown"] += 1
        return None

    async def _allows(self, access: Access, *, remember: bool = True) -> bool:
        if self._authoriser is not None:
            allowed = self._remembered.find(access)
            if allowed is None:
                async with self._slot(self._authoriser):
                    answer = self._authoriser.authorise(access)
                    allowed = await answer if inspect.isawaitable(answer) else answer
                if not isinstance(allowed, bool):  # anything else, a Verdict too, would count as true
                    raise UsageError(f"the authoriser answered {allowed!r}: no bool")
                if remember:
                    ttl_s, owner = self._config.decision_cache_s, access.client_id
                    held_bytes = len(access.topic) + len(owner) + len(access.username or "")
                    self._remembered.put(access, allowed, ttl_s, owner, held_bytes)
            else:
                self.counts["decisions_remembered"] += 1
            if not allowed:
                return False
        if not self._hooks.has("authorise"):
            return True
        async with self._slots:
            return await self._hooks.authorised(access)


def _split_filter(topic_filter: str) -> tuple[str | None, str]:
    """Share name, where there is one, and the filter of topics; the engine has checked the form."""
    if topic_filter.startswith("$exclusive/"):
        return None, topic_filter.removeprefix("$exclusive/")
    if topic_filter.startswith("$share/"):
        _, share_name, plain_filter = topic_filter.split("/", 2)
        return share_name, plain_filter
    return None, topic_filter
