"""Where a server is: URLs `mqtt://`, `mqtts://`, `ws://`, `wss://` and `unix://`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

from tidemq.errors import UsageError

Scheme = Literal["mqtt", "mqtts", "ws", "wss", "unix"]
_HOST_BYTES_MAX = 255  # RFC 1035 section 2.3.4; SOCKS has a byte for it
_PORTS: dict[Scheme, int] = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443, "unix": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server's address. `path` is a WebSocket's resource, or a Unix socket's file."""

    scheme: Scheme
    host: str
    port: int
    path: str
    query: str = field(default="", repr=False)  # of a WebSocket's resource; servers have keys there
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Without the password and the query."""
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def resource(self) -> str:
        """What a WebSocket is opened at, whole."""
        return f"{self}?{self.query}" if self.query else str(self)

    @property
    def secure(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def websocket(self) -> bool:
        return self.scheme in ("ws", "wss")


def parse_url(url: str) -> Address:
    """The address that `url` names; `UsageError` says what is wrong with it."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{url!r} is not a URL: {error}") from error
    scheme: Scheme | None = next((each for each in _PORTS if each == parts.scheme), None)
    if scheme is None:
        raise UsageError(f"the URL {url!r} has no known scheme; accepted: {', '.join(_PORTS)}")
    if parts.fragment or (parts.query and scheme not in ("ws", "wss")):
        raise UsageError(f"the URL {url!r} has a query or a fragment, which mean nothing here")
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    if scheme == "unix":
        if not parts.path or parts.hostname or "\0" in unquote(parts.path):
            raise UsageError(f"the URL {url!r} names no file; accepted: unix:///path/to/socket")
        return Address(
            scheme=scheme, host="", port=0, path=unquote(parts.path), username=user, password=password
        )
    try:
        port = parts.port or _PORTS[scheme]
    except ValueError as error:
        raise UsageError(f"the URL {url!r} has no valid port: {error}") from error
    if not parts.hostname:
        raise UsageError(f"the URL {url!r} names no host")
    check_host(parts.hostname)
    path = (parts.path or "/mqtt") if scheme in ("ws", "wss") else ""
    if scheme in ("mqtt", "mqtts") and parts.path not in ("", "/"):
        raise UsageError(f"the URL {url!r} has a path, which means nothing to {scheme}")
    return Address(
        scheme=scheme,
        host=parts.hostname,
        port=port,
        path=path,
        query=parts.query,
        username=user,
        password=password,
    )


def check_host(host: str) -> None:
    """UsageError where it can be neither looked up nor asked for: what Python says to it is no OSError."""
    try:
        name = host.encode("idna")
    except UnicodeError as error:
        raise UsageError(f"{host!r} is not the name of a host: {error.__cause__ or error}") from error
    if len(name) > _HOST_BYTES_MAX or not host.isprintable():
        raise UsageError(f"{host!r} is not the name of a host: too long, or with characters that none has")
