"""The admin listener, over HTTP: `GET /health`, `GET /counters`, and the streams (`stream_routes`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiohttp import web

SHUTDOWN_S = 1.0  # for answers under way when it closes


class AdminServer:
    """Answers on one address until closed."""

    def __init__(
        self, counters: Callable[[], Mapping[str, int]], routes: Iterable[web.RouteDef] = ()
    ) -> None:
        self._counters = counters
        app = web.Application(middlewares=[_explain])
        app.add_routes([web.get("/health", self._health), web.get("/counters", self._count), *routes])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, handle_signals=False)

    async def start(self, host: str, port: int) -> int:
        """Listens and gives the bound port; OSError if it can't be bound."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        """Stops to listen."""
        await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _count(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self._counters()))


@web.middleware
async def _explain(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every refusal is JSON with the reason in `error`."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        paths = sorted({route.resource.canonical for route in request.app.router.routes() if route.resource})
        body: dict[str, object] = {"error": error.text or error.reason}
        if error.status == 404 and error.reason == "Not Found":
            body = {"error": f"{request.path} is unknown", "paths": paths}
        return web.json_response(body, status=error.status, headers=_kept(error))


def _kept(error: web.HTTPException) -> dict[str, str]:
    return {name: value for name, value in error.headers.items() if name == "Allow"}
