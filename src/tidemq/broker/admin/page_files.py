"""The dashboard: one page and its files, which anybody may read. All that it shows comes from the API, which
asks for a token.
"""

from __future__ import annotations

from importlib import resources

from aiohttp import web

from tidemq.broker.admin.guard import Handler

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    # nothing but this listener's own files, and no script or style within the page
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # the next release has other files of these names
}


def page_routes() -> dict[str, web.RouteDef]:
    """By path: the page at `/`, its files below `/page`. They are read once."""
    routes = {}
    for file in resources.files("tidemq.broker.admin").joinpath("page").iterdir():
        kind = KINDS.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            routes[path] = web.get(path, _answering(file.read_text("utf-8"), kind))
    return routes


def _answering(text: str, kind: str) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind, charset="utf-8", headers=HEADERS)

    return handler
