"""A way to the server through a proxy: HTTP CONNECT (RFC 9110 section 9.3.6) or SOCKS 5 (RFC 1928, 1929)."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

from tidemq.client.address import check_host
from tidemq.client.errors import ConnectError
from tidemq.errors import UsageError

_ANSWER_BYTES_MAX = 16_384
_SOCKS_BYTES_MAX = 255  # of a user name or password (RFC 1929)
_PORTS = {"http": 3128, "socks5": 1080}
_SOCKS_ERRORS = (
    "it succeeded",
    "a general failure",
    "it is not allowed",
    "the network is unreachable",
    "the host is unreachable",
    "the connection was refused",
    "it took too long",
    "a command that it does not know",
    "a kind of address that it does not know",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """Where it is, and who we are to it."""

    scheme: Literal["http", "socks5"]
    host: str
    port: int
    username: str | None = None
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Without the password."""
        return f"{self.scheme}://{self.host}:{self.port}"


def parse_proxy(url: str) -> Proxy:
    """The proxy that `url` names; `UsageError` where it names none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError("the proxy's URL has no valid port") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise UsageError("the proxy's URL names none; accepted: http://host:port and socks5://host:port")
    check_host(parts.hostname)
    proxy = Proxy(
        scheme="http" if parts.scheme == "http" else "socks5",
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        username=None if parts.username is None else unquote(parts.username),
        password=unquote(parts.password or ""),
    )
    if proxy.scheme == "socks5":
        for text in (proxy.username or "", proxy.password):
            if len(text.encode()) > _SOCKS_BYTES_MAX:
                raise UsageError("a user name or password for a SOCKS proxy has 255 bytes at most")
    return proxy


async def connect_through(proxy: Proxy, host: str, port: int) -> socket.socket:
    """A connection to `host`, which the proxy finds, by way of it. OSError, or ConnectError with what the
    proxy said."""
    channel = _Channel()
    try:
        await asyncio.get_running_loop().create_connection(lambda: channel, proxy.host, proxy.port)
        if proxy.scheme == "http":
            await _ask_http(channel, proxy, host, port)
        else:
            await _ask_socks(channel, proxy, host, port)
        return channel.detach()
    except (OSError, ConnectError) as error:
        raise ConnectError(f"the proxy {proxy} gives no connection to {host}:{port}: {error}") from error
    finally:
        channel.close()


class _Channel(asyncio.Protocol):
    """A connection until the proxy has answered. Servers of MQTT and TLS do not speak first: nothing comes
    behind that."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._changed.set()

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    async def read(self, length_of: Callable[[bytearray], int]) -> bytes:
        """The next answer; `length_of` what is there says how long that is, 0: not yet known."""
        while True:
            size = length_of(self._received)
            if 0 < size <= len(self._received):
                answer = bytes(self._received[:size])
                del self._received[:size]
                return answer
            if self._ended or len(self._received) > _ANSWER_BYTES_MAX:
                raise ConnectError("it ended the connection, or gave no answer of its protocol")
            self._changed.clear()
            await self._changed.wait()

    def detach(self) -> socket.socket:
        """The socket, for another transport."""
        if self._received:
            raise ConnectError("something came before the server was asked")
        assert self._transport is not None
        found = self._transport.get_extra_info("socket")
        return socket.socket(fileno=socket.dup(found.fileno()))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _ask_http(channel: _Channel, proxy: Proxy, host: str, port: int) -> None:
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {name} HTTP/1.1", f"Host: {name}"]
    if proxy.username is not None:
        secret = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {secret}")
    channel.send("\r\n".join([*lines, "", ""]).encode())
    head = await channel.read(lambda data: data.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in data else 0)
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    words = status.split(" ", 2)
    if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].startswith("2"):
        raise ConnectError(f"it answered {status[:100]!r}")


async def _ask_socks(channel: _Channel, proxy: Proxy, host: str, port: int) -> None:
    channel.send(b"\x05\x01\x00" if proxy.username is None else b"\x05\x02\x00\x02")
    version, method = await channel.read(lambda _: 2)
    if version != 5 or method == 0xFF:
        raise ConnectError("it wants another way to log in" if version == 5 else "it does not speak SOCKS 5")
    if method == 2:
        name, secret = (proxy.username or "").encode(), proxy.password.encode()
        channel.send(bytes([1, len(name)]) + name + bytes([len(secret)]) + secret)
        if (await channel.read(lambda _: 2))[1] != 0:
            raise ConnectError("it does not accept the user name or the password")
    channel.send(b"\x05\x01\x00" + _socks_address(host) + port.to_bytes(2, "big"))
    answer = await channel.read(_socks_answer_size)
    if answer[1] != 0:
        code = answer[1]
        raise ConnectError(_SOCKS_ERRORS[code] if code < len(_SOCKS_ERRORS) else f"error {code:#04x}")


def _socks_address(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.encode("idna")
        return bytes([3, len(name)]) + name
    return bytes([1 if address.version == 4 else 4]) + address.packed


def _socks_answer_size(data: bytearray) -> int:
    """Version, status, a zero, an address of three kinds, a port."""
    if len(data) < 5:
        return 0
    return 4 + {1: 4, 3: 1 + data[4], 4: 16}.get(data[3], 4) + 2
