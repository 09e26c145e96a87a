"""Who may ask the admin listener: whoever has the token; without one, programs on this machine.

A browser on this machine is no such program: what a page of somebody else's makes it ask is refused. Such a
request says so by its Origin, or, where the page's name was made to mean this machine (DNS rebinding), by a
Host that is not this machine's.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from tidemq.config import refused

TOKEN_CHARACTERS_MIN = 16
OPEN_PATHS = ("/health", "/ready")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_loopback(name: str) -> bool:
    """Whether an address or a name can only be this machine's."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


class Guard:
    """Refuses what nobody has a right to: 401, 403 or 415. Reads the token from its file at once."""

    def __init__(self, token_file: str, host: str) -> None:
        self._file = token_file
        self._host = host.lower()
        self._digest: bytes | None = None
        self.reload()

    @property
    def has_token(self) -> bool:
        """Whether a token is asked for."""
        return self._digest is not None

    def reload(self) -> None:
        """Reads the token again. ConfigError where there is none; then the old one stays in force."""
        if self._file:
            self._digest = _digest(read_token(Path(self._file)))

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """For an aiohttp application."""
        if request.path not in OPEN_PATHS:
            self._check(request)
        return await handler(request)

    def _check(self, request: web.Request) -> None:
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            raise web.HTTPForbidden(text="pages of other origins may not ask")
        if self._digest is not None:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            same = hmac.compare_digest(self._digest, _digest(token.strip()))
            if not same or scheme.lower() != "bearer":
                raise web.HTTPUnauthorized(
                    text="the admin token is missing or wrong: Authorization: Bearer TOKEN",
                    headers={"WWW-Authenticate": 'Bearer realm="tidemq"'},
                )
        elif host and not self._is_own(host):
            raise web.HTTPForbidden(text="the Host is not this machine's: ask 127.0.0.1, or set a token")
        elif request.method == "POST" and request.content_type != "application/json":
            # a page can send a form's types to anywhere; for this one a browser asks first (CORS)
            raise web.HTTPUnsupportedMediaType(text="the Content-Type has to be application/json")

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name == self._host


def read_token(path: Path) -> str:
    """The token that a file holds, alone. ConfigError, which does not quote it, where there is none."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    except UnicodeDecodeError:
        token = ""
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable() or " " in token:
        accepted = [f"one line of {TOKEN_CHARACTERS_MIN} or more printable ASCII characters without a space"]
        raise refused(str(path), "the file", "it holds no token", accepted)
    return token


def _digest(token: str) -> bytes:
    # equal lengths, so that the comparison's time says nothing
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
