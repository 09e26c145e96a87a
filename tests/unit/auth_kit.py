"""What the tests of authenticators need: an HTTP server that answers as told, brokers, clients that try."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from tidemq import Broker, Config
from tidemq.client import Client, ServerRefusedError
from tidemq.engine.door.events import ConnectRequest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def request(
    client_id: str = "c1", username: str | None = None, password: bytes | None = None, **rest: Any
) -> Any:
    """A CONNECT as the engine asks about it."""
    given: dict[str, Any] = {
        "connection": 1, "peer": "192.0.2.7:4000", "protocol_version": 5, "clean_start": True,
        "keep_alive_s": 60, "will_topic": None, "auth_method": None, "auth_data": None,
    }  # fmt: skip
    return ConnectRequest(client_id=client_id, username=username, password=password, **(given | rest))


class HttpServer:
    """A real server on a port of its own. `handler` may be changed; the bodies it got are in `bodies`."""

    def __init__(self, handler: Handler | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.handler = handler or answer({"result": "allow"})
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.at_a_time = self.at_a_time_most = 0
        self._tls = tls
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.port}/hook"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.bodies.append(json.loads(text) if text else {})
        self.headers.append(request.headers)
        self.at_a_time += 1
        self.at_a_time_most = max(self.at_a_time, self.at_a_time_most)
        try:
            return await self.handler(request)
        finally:
            self.at_a_time -= 1


def answer(body: Any = None, status: int = 200, *, after_s: float = 0.0) -> Handler:
    """Answers with JSON, text or nothing."""

    async def handle(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(after_s)
        if body is None or isinstance(body, (str, bytes)):
            return web.Response(body=body, status=status)
        return web.json_response(body, status=status)

    return handle


def broker_with(authenticator: str, options: dict[str, Any], **rest: Any) -> Broker:
    """A real one with that authenticator."""
    given: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "reactors": 1,
        "store": "memory",
        "sys_interval_s": 0,
    }
    return Broker(Config(authenticator=authenticator, authenticator_options=options, **(given | rest)))


async def enters(
    broker: Broker, username: str | None = None, password: bytes | str | None = None, **rest: Any
) -> int:
    """Connects; 0, or the reason code of the refusal."""
    client = Client(f"mqtt://127.0.0.1:{broker.port}", username=username, password=password, **rest)
    try:
        async with client:
            return 0
    except ServerRefusedError as error:
        return error.reason
