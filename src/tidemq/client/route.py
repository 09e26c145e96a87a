"""The way to a server, whatever the scheme: a link is opened (`link`), through a proxy where there is one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemq.client.address import Address, check_host
from tidemq.client.errors import ConnectError
from tidemq.client.link import Link, Owner
from tidemq.client.tunnel import connect_through, parse_proxy
from tidemq.errors import UsageError

FRAME_BYTES_MAX = 268_435_460  # the largest packet of MQTT


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where the server is, and the way to it."""

    address: Address
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    proxy: str | None = field(default=None, repr=False)
    frame_bytes_max: int = FRAME_BYTES_MAX  # of WebSocket: a frame is kept until it is whole

    def __post_init__(self) -> None:
        address = self.address
        if not address.secure and (self.tls is not None or self.tls_server_name is not None):
            raise UsageError(
                f"tls and tls_server_name mean nothing to {address.scheme}; accepted: mqtts and wss"
            )
        if self.tls_server_name is not None:
            check_host(self.tls_server_name)
        if self.headers and not address.websocket:
            raise UsageError(f"headers mean nothing to {address.scheme}; accepted: ws and wss")
        if self.proxy is not None:
            parse_proxy(self.proxy)
            if address.scheme == "unix":
                raise UsageError("a proxy cannot be used with a Unix socket")


async def open_link(route: Route, owner: Owner) -> Link:
    """Connects; `ConnectError` names the address and the reason."""
    try:
        return await _open(route, owner)
    except (OSError, ssl.SSLError) as error:
        raise ConnectError(f"cannot connect to {route.address}: {error_text(error)}") from error


async def _open(route: Route, owner: Owner) -> Link:
    loop, address = asyncio.get_running_loop(), route.address
    if address.scheme == "unix":
        _, link = await loop.create_unix_connection(lambda: Link(owner), address.path)
        return link
    where: dict[str, Any] = {"host": address.host, "port": address.port}
    if address.secure:
        where["ssl"] = route.tls or ssl.create_default_context()
        where["server_hostname"] = route.tls_server_name or address.host
    if route.proxy is not None:
        where["sock"] = await connect_through(parse_proxy(route.proxy), where.pop("host"), where.pop("port"))
    if address.websocket:
        from tidemq.client.websocket_link import WebSocketLink

        _, socket_link = await loop.create_connection(
            lambda: WebSocketLink(owner, address, route.headers, route.frame_bytes_max), **where
        )
        try:
            await socket_link.open()
        except BaseException:  # nobody else has it
            socket_link.abort()
            raise
        return socket_link
    _, link = await loop.create_connection(lambda: Link(owner), **where)
    return link


def error_text(error: Exception) -> str:
    """An error of the network in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
