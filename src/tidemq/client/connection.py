"""One network connection of a client: the handshake, bytes in and out, keep-alive both ways, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tidemq.client.authentication import Exchange
from tidemq.client.errors import (
    ConnectError,
    DisconnectedError,
    FalseServerError,
    ServerRefusedError,
    connect_reason,
)
from tidemq.client.incoming import Incoming
from tidemq.client.link import Link
from tidemq.client.outgoing import Outgoing
from tidemq.client.queue import Intake
from tidemq.client.route import Route, error_text, open_link
from tidemq.client.settings import Settings
from tidemq.errors import ProtocolError, TideMQError, UsageError
from tidemq.wire import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    ReasonCode,
    encode,
)

OVERFULL = 8  # times as much as a full queue: then reading stops even if an answer is awaited


class Connection:
    """From `open` to `ended`; not to be used again. Implements `link.Owner`."""

    def __init__(
        self,
        settings: Settings,
        route: Route,
        outgoing: Outgoing,
        incoming: Incoming,
        intake: Intake,
        on_packet: Callable[[Packet], None],
        on_accepted: Callable[[Connack], None],
    ) -> None:
        self._settings, self._route, self._address = settings, route, route.address
        self._outgoing, self._incoming, self._intake = outgoing, incoming, intake
        self._on_packet, self._on_accepted = on_packet, on_accepted
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._connack: asyncio.Future[Connack] = self._loop.create_future()
        self.end: asyncio.Future[Exception] = self._loop.create_future()  # its result is the reason
        self._closed: asyncio.Future[None] = self._loop.create_future()  # the link is
        self._flush_at: asyncio.Handle | None = None
        self._exchange: Exchange | None = None  # of authentication, under way
        self._auth: asyncio.Task[None] | None = None  # answers the server's last AUTH
        self._reauthenticated: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False  # the link takes nothing
        self._reading = True
        self._answers_awaited = False
        self._keep_alive_s = float(settings.keep_alive_s)
        self._sent_s = self._received_s = self._loop.time()
        self._pinged_s: float | None = None

    # --- the beginning

    async def open(self, connect: Connect) -> Connack:
        """Connects and waits for CONNACK. `ConnectError` or `ServerRefusedError`, and the connection is
        over."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                self._link = await open_link(self._route, self)
                self._send(encode(await self._with_auth(connect), connect.version))
                return await self._connack
        except TimeoutError as error:
            self._fail(error)
            what = "no connection" if self._link is None else "no answer to CONNECT"
            limit_s = self._settings.connect_timeout_s
            raise ConnectError(f"cannot connect to {self._address}: {what} within {limit_s:g} s") from error
        except BaseException as error:
            self._fail(error if isinstance(error, Exception) else DisconnectedError("cancelled"))
            raise

    async def _with_auth(self, connect: Connect) -> Connect:
        auth = self._settings.auth
        if auth is None:
            return connect
        self._exchange = Exchange(auth)
        data = await asyncio.to_thread(self._exchange.begin)
        return replace(
            connect, properties=replace(connect.properties, auth_method=auth.method, auth_data=data)
        )

    def _apply_connack(self, connack: Connack) -> None:
        if self._connack.done():
            self._fail(ConnectError(f"{self._address} sent a second CONNACK"))
        elif connack.reason:
            reason = connect_reason(connack.reason, self._settings.version)
            text = connack.properties.reason_string
            error = ServerRefusedError(f"{self._address} refused the connection", reason, text)
            error.server_reference = connack.properties.server_reference
            self._connack.set_exception(error)
        elif self._exchange is None or self._is_proven(self._exchange, connack.properties):
            if connack.properties.server_keep_alive_s is not None:
                self._keep_alive_s = float(connack.properties.server_keep_alive_s)  # [MQTT-3.1.2-21]
            self._on_accepted(connack)
            self._connack.set_result(connack)
            self._watch()

    async def reauthenticate(self) -> asyncio.Future[None]:
        """Begins an exchange anew (5.0 section 4.12.1); done when the server has accepted. Its failure ends
        the connection."""
        assert self._settings.auth is not None
        if self._exchange is not None:
            raise UsageError("the client authenticates already")
        self._exchange = exchange = Exchange(self._settings.auth)
        try:
            data = await asyncio.to_thread(exchange.begin)
        except BaseException:
            self._exchange = None
            raise
        if self.end.done():
            raise self.end.result()
        self._reauthenticated = self._loop.create_future()
        self._send_auth(ReasonCode.REAUTHENTICATE, data)
        return self._reauthenticated

    def _send_auth(self, reason: ReasonCode, data: bytes | None) -> None:
        assert self._settings.auth is not None
        if not self.end.done():
            properties = Properties(auth_method=self._settings.auth.method, auth_data=data)
            self._send(encode(Auth(reason=reason, properties=properties), 5))

    def _apply_auth(self, packet: Auth) -> None:
        exchange = self._exchange
        if exchange is None or self._settings.auth is None:
            self._fail(ConnectError(f"{self._address} sent AUTH, which nobody asked for"))
        elif packet.properties.auth_method not in (None, self._settings.auth.method):
            self._fail(ConnectError(f"{self._address} sent AUTH of another method"))  # [MQTT-4.12.0-5]
        elif packet.reason == ReasonCode.CONTINUE_AUTHENTICATION and not self._is_answering():
            self._auth = self._loop.create_task(
                self._answer_auth(exchange, packet.properties.auth_data), name="tidemq-auth"
            )
            self._auth.add_done_callback(self._auth_answered)
        elif packet.reason == ReasonCode.SUCCESS and self._connack.done():
            if self._is_proven(exchange, packet.properties) and not self._reauthenticated.done():
                self._reauthenticated.set_result(None)
        else:
            self._fail(ConnectError(f"{self._address} sent AUTH out of turn"))

    async def _answer_auth(self, exchange: Exchange, received: bytes | None) -> None:
        data = await asyncio.to_thread(exchange.answer, received)
        self._send_auth(ReasonCode.CONTINUE_AUTHENTICATION, data)

    def _is_answering(self) -> bool:
        return self._auth is not None and not self._auth.done()

    def _is_proven(self, exchange: Exchange, properties: Properties) -> bool:
        """The server has accepted the client: the end of the exchange, where it has to have proved itself.
        Where it has not, the connection is over."""
        self._exchange = None
        try:
            if self._is_answering():
                raise FalseServerError("the server accepted the client before it was answered")
            exchange.finish(properties.auth_data)
        except Exception as error:  # noqa: BLE001 - it is raised to who waits for the answer
            self._fail(error)
            return False
        return True

    def _auth_answered(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error if isinstance(error, Exception) else DisconnectedError(str(error)))

    # --- bytes out

    def schedule_flush(self) -> None:
        """There is output: it leaves at the end of this turn of the loop."""
        if self._flush_at is None:
            self._flush_at = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hands the output to the link, if it takes any."""
        if self._flush_at is not None:
            self._flush_at.cancel()
            self._flush_at = None
        if self._paused or not self._outgoing.output_bytes or self.end.done():
            return
        self._send(self._outgoing.take())
        if not self._paused:
            self._outgoing.gone()

    def _send(self, data: bytes) -> None:
        assert self._link is not None
        self._sent_s = self._loop.time()
        self._link.send(data)

    # --- bytes in

    def room(self) -> memoryview:
        return self._incoming.room()

    def wrote(self, size: int) -> None:
        self._incoming.wrote(size)

    def feed(self, data: bytes) -> None:
        self._incoming.feed(data)

    def received(self) -> None:
        """Takes in what has come."""
        self._received_s = self._loop.time()
        try:
            while not self.end.done() and (packet := self._incoming.parse()) is not None:
                self._dispatch(packet)
        except ProtocolError as error:
            self._refuse(error)
        except Exception as error:
            self._fail(error)
            raise
        if self._intake.is_full:
            self._stop_reading()

    def _dispatch(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._apply_connack(packet)
        elif isinstance(packet, Auth):
            self._apply_auth(packet)
        elif isinstance(packet, Disconnect) and self._settings.version == 5:
            text = packet.properties.reason_string
            error = ServerRefusedError(f"{self._address} ended the connection", packet.reason, text)
            error.server_reference = packet.properties.server_reference
            self._fail(error)
        elif not isinstance(packet, Pingresp):
            self._on_packet(packet)

    def _refuse(self, error: ProtocolError) -> None:
        """The server broke MQTT: 5.0 tells it so."""
        if self._settings.version == 5 and self._connack.done() and self._link is not None:
            self._link.send(encode(Disconnect(reason=error.reason), 5))
            self._link.close()
        failure = ConnectError(f"{self._address} broke MQTT: {error}")
        failure.__cause__ = error
        self._fail(failure, abort=self._settings.version != 5)

    def _stop_reading(self) -> None:
        """The program does not keep up. While an answer is awaited, which comes behind messages, go on
        longer."""
        if not self._reading or self._link is None or self.end.done():
            return
        if self._answers_awaited and not self._intake.is_overfull(OVERFULL):
            return
        self._reading = False
        self._intake.on_room = self._resume_reading
        self._link.pause()

    def _resume_reading(self) -> None:
        if not self._reading and self._link is not None and not self.end.done():
            self._reading = True
            self._received_s = self._loop.time()
            self._link.proceed()

    def await_answers(self, yes: bool) -> None:
        """The program waits for an answer, or no longer: reading goes on for it."""
        self._answers_awaited = yes
        if self._answers_awaited and not self._reading and not self._intake.is_overfull(OVERFULL):
            self._intake.on_room = None
            self._resume_reading()

    # --- keep-alive

    def _watch(self) -> None:
        """Sends PINGREQ after idle time either way, and ends the connection that does not answer."""
        if self._keep_alive_s == 0 or self.end.done():
            return
        now = self._loop.time()
        if not self._reading:
            self._received_s = now  # the answer would not be read
        if self._pinged_s is not None and self._received_s >= self._pinged_s:
            self._pinged_s = None
        if self._pinged_s is not None:
            due_s = self._pinged_s + self._settings.ping_timeout_s
            if now >= due_s:
                limit_s = self._settings.ping_timeout_s
                self._fail(DisconnectedError(f"{self._address} did not answer PINGREQ within {limit_s:g} s"))
                return
        else:
            due_s = min(self._sent_s, self._received_s) + self._keep_alive_s
            if now >= due_s:
                self._pinged_s = now
                self._outgoing.write(encode(Pingreq(), self._settings.version))
                due_s = now + min(self._settings.ping_timeout_s, self._keep_alive_s)
        self._timer = self._loop.call_at(max(due_s, now + 0.001), self._watch)

    # --- the end

    def writable(self, yes: bool) -> None:
        self._paused = not yes
        if yes:
            self._outgoing.gone()
            self._outgoing.proceed()
            self.flush()
        else:
            self._outgoing.pause()

    def ended(self, error: Exception | None) -> None:
        """From the link: the connection is over."""
        if not self._closed.done():
            self._closed.set_result(None)
        text = "the server closed the connection" if error is None else error_text(error)
        if self._connack.done():
            self._fail(DisconnectedError(f"{self._address}: {text}"))
        else:
            self._fail(ConnectError(f"cannot connect to {self._address}: {text} before CONNACK"))

    def close(self, goodbye: Disconnect | None) -> None:
        """Says goodbye and closes when that has gone."""
        if self.end.done():
            return
        if goodbye is not None and self._link is not None:
            self.flush()
            self._link.send(encode(goodbye, self._settings.version))
        if self._link is not None:
            self._link.close()
        self._fail(DisconnectedError("the client is closed"), abort=False)

    async def wait_closed(self, timeout_s: float) -> None:
        """Returns when the link is closed; drops it, with what it has not sent, after `timeout_s`."""
        if self._link is not None:
            await asyncio.wait([self._closed], timeout=timeout_s)
            self._link.abort()
            await asyncio.wait([self._closed], timeout=1.0)

    def _fail(self, error: Exception, *, abort: bool = True) -> None:
        """The first reason stays."""
        if self.end.done():
            return
        self.end.set_result(error)
        if not self._connack.done():
            failure = error if isinstance(error, TideMQError) else ConnectError(str(error))
            self._connack.set_exception(failure)
            self._connack.exception()  # whoever opened it may be gone
        if not self._reauthenticated.done():
            self._reauthenticated.set_exception(
                error if isinstance(error, TideMQError) else DisconnectedError(str(error))
            )
            self._reauthenticated.exception()
        for each in (self._flush_at, self._timer, self._auth):
            if each is not None:
                each.cancel()
        self._intake.on_room = None
        if abort and self._link is not None:
            self._link.abort()
