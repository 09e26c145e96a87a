"""Streams over HTTP, or, where the packages that they need are missing, that they cannot be had."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from tidemq.broker.durability.keeper import Keeper
from tidemq.errors import UsageError
from tidemq.stream import Streams
from tidemq.stream.stored import require_packages


def stream_routes(
    find: Callable[[], tuple[Streams | None, Keeper | None]], node: str = ""
) -> list[web.RouteDef]:
    """`find` and `node` as in `StreamRoutes`. Without the packages every request for a stream is answered
    501, with what would be right.
    """
    try:
        require_packages()
    except UsageError as error:
        return _refusing_routes(str(error))
    from tidemq.broker.admin.stream_routes import StreamRoutes

    return StreamRoutes(find, node).routes()


def _refusing_routes(reason: str) -> list[web.RouteDef]:
    async def refuse(_: web.Request) -> web.Response:
        raise web.HTTPNotImplemented(text=reason)

    return [web.route("*", "/streams", refuse), web.route("*", "/streams/{rest:.*}", refuse)]
