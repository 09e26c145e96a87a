"""Who may ask the admin listener: whoever has a token; without any, programs on this machine.

A browser on this machine is no such program: what a page of somebody else's makes it ask is refused. Such a
request says so by its Origin, or, where the page's name was made to mean this machine (DNS rebinding), by a
Host that is not this machine's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NoReturn
from urllib.parse import urlsplit

from aiohttp import web

from tidemq.broker.access.failed_logins import FailedLogins
from tidemq.broker.admin.api import Role
from tidemq.broker.admin.tokens import Holder, Tokens
from tidemq.config import Config

OPEN_PATHS = ("/health", "/ready")
READING = ("GET", "HEAD", "OPTIONS")
HOLDER = web.RequestKey("holder", Holder)
LOCAL = Holder("local", Role.ADMIN)  # a program on this machine, where there are no tokens

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Roles = Mapping[tuple[str, str], Role]
"""By method and path. What is not in it wants READ where it only reads, else ADMIN."""


def is_loopback(name: str) -> bool:
    """Whether an address or a name can only be this machine's."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


class Guard:
    """Refuses what nobody has a right to: 401, 403, 415 or 429. Reads the tokens from their files at once."""

    def __init__(self, config: Config) -> None:
        self._host = config.admin_host.lower()
        self._tokens = Tokens(config.admin_token_file, config.admin_tokens_file)
        self._failed = FailedLogins(config)
        self.roles: Roles = {}
        self.open_paths: Collection[str] = OPEN_PATHS
        self.counts = {"admin_tokens_wrong": 0, "admin_roles_refused": 0}

    @property
    def has_token(self) -> bool:
        """Whether a token is asked for."""
        return bool(self._tokens)

    def reload(self) -> None:
        """Reads the tokens again. ConfigError for a wrong file; then the old ones stay in force."""
        self._tokens.reload()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """For an aiohttp application."""
        if request.path not in self.open_paths:
            self._check(request)
        return await handler(request)

    def _check(self, request: web.Request) -> None:
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            raise web.HTTPForbidden(text="pages of other origins may not ask")
        if self._tokens:
            self._check_token(request)
        elif host and not self._is_own(host):
            raise web.HTTPForbidden(text="the Host is not this machine's: ask 127.0.0.1, or set a token")
        elif request.method == "POST" and request.content_type != "application/json":
            # a page can send a form's types to anywhere; for this one a browser asks first (CORS)
            raise web.HTTPUnsupportedMediaType(text="the Content-Type has to be application/json")
        else:
            request[HOLDER] = LOCAL

    def _check_token(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        holder = self._tokens.holder(token.strip()) if scheme.lower() == "bearer" else None
        if holder is None:
            self._refuse_token(request)
        request[HOLDER] = holder
        needed = self._needed(request)
        if holder.role < needed:
            self.counts["admin_roles_refused"] += 1
            has, wants = holder.role.name.lower(), needed.name.lower()
            raise web.HTTPForbidden(text=f"{holder.name} has the role {has}; this needs {wants}")

    def _refuse_token(self, request: web.Request) -> NoReturn:
        """429 where too many that were wrong came from there; a right one is answered all the same."""
        self.counts["admin_tokens_wrong"] += 1
        peer = request.remote or ""
        if self._failed.refuses(peer, None):
            raise web.HTTPTooManyRequests(text="too many wrong tokens from this address: try again later")
        if request.headers.get("Authorization"):
            self._failed.failed(peer, None)
        raise web.HTTPUnauthorized(
            text="the admin token is missing or wrong: Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": 'Bearer realm="tidemq"'},
        )

    def _needed(self, request: web.Request) -> Role:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else ""
        usual = Role.READ if request.method in READING or not path else Role.ADMIN
        return self.roles.get((request.method, path), usual)

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name == self._host
