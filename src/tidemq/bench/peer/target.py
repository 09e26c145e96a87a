"""The broker that a load is aimed at: a URL, the socket address that it resolves to, TLS and WebSocket."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from tidemq.errors import UsageError
from tidemq.net.tls import TlsContext
from tidemq.net.transport import Scheme

PORTS = {"mqtt": 1883, "tcp": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
RESOURCE = "/mqtt"  # of a WebSocket, where the URL names none
UNIX_PATH_BYTES_MAX = 107
STRING_BYTES_MAX = 65_535
FORM = "mqtt://, mqtts://, ws:// or wss:// and [user:password@]host[:port], or unix:///path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How TLS is spoken; files are PEM."""

    cafile: str = ""  # who may sign the broker's certificate; empty: the system's authorities
    cert: str = ""  # what the client shows
    key: str = ""  # empty: it is in `cert`
    insecure: bool = False  # the broker's certificate is not checked


DEFAULT_SECURITY = Security()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to connect, and as whom."""

    url: str  # without password
    family: int
    address: bytes = field(repr=False)  # a struct sockaddr of that family
    port: int = 0  # 0: a Unix socket
    host: str = ""  # as an address; of a Unix socket its path
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    security: Security | None = None  # None: no TLS
    server_name: str = ""  # that the certificate must be for
    resource: str = ""  # of a WebSocket; empty: none
    http_host: str = ""

    def scheme(self) -> Scheme | None:
        """What connections are wrapped in; None: nothing. UsageError where the files of `security` are not
        what they should be.
        """
        if self.security is None and not self.resource:
            return None
        return Scheme(
            tls=TlsContext(**asdict(self.security)) if self.security else None,
            server_name=self.server_name,
            host=self.http_host,
            resource=self.resource,
        )

    @property
    def endpoint(self) -> str | tuple[str, int]:
        """As `socket.connect` wants it."""
        return self.host if self.family == socket.AF_UNIX else (self.host, self.port)

    @property
    def local(self) -> bool:
        """The broker is on this machine: a Unix socket, a loopback address, or one of this machine's own."""
        if self.family == socket.AF_UNIX:
            return True
        address = ipaddress.ip_address(self.host.partition("%")[0])
        if address.is_loopback:
            return True
        with socket.socket(self.family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((self.host, 0))  # only own addresses can be bound to
            except OSError:
                return False
            return True


def local_target(port: int) -> Target:
    """A broker on 127.0.0.1."""
    return parse_url(f"mqtt://127.0.0.1:{port}")


def parse_url(url: str, security: Security = DEFAULT_SECURITY) -> Target:
    """The target of a URL, its host resolved (the first address of several).

    Raises UsageError for a URL of another form, or where `security` is for one without TLS; ConnectionError
    for a host that cannot be resolved.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets that hold no IPv6 address
        raise UsageError(f"{url!r} is not the URL of a broker: it must be {FORM}") from error
    if parts.scheme not in PORTS and parts.scheme != "unix":
        given = shown(parts) if parts.netloc else url
        raise UsageError(f"{given!r} is not the URL of a broker: it must be {FORM}")
    secure, websocket = parts.scheme in ("mqtts", "wss"), parts.scheme in ("ws", "wss")
    if security != DEFAULT_SECURITY and not secure:
        raise UsageError(f"{shown(parts)}: certificates are for mqtts:// and wss://")
    username, password = credentials(parts)
    if parts.scheme == "unix":
        return unix_target(parts, username, password)
    try:
        port = parts.port or PORTS[parts.scheme]
    except ValueError as error:
        raise UsageError(f"{shown(parts)}: a port is a number from 1 to 65535") from error
    path_fits = is_resource(parts.path) if websocket else parts.path in ("", "/")
    if not parts.hostname or not path_fits or parts.query or parts.fragment:
        raise UsageError(f"{shown(parts)} is not the URL of a broker: it must be {FORM}")
    family, host, address = resolve(parts.hostname, port)
    return Target(
        url=shown(parts),
        family=family,
        address=address,
        port=port,
        host=host,
        username=username,
        password=password,
        security=security if secure else None,
        server_name=parts.hostname.partition("%")[0],
        resource=(parts.path or RESOURCE) if websocket else "",
        http_host=parts.netloc.rpartition("@")[2],
    )


def is_resource(path: str) -> bool:
    """It can stand in an HTTP request as it is: what is not ASCII, and blanks, are percent-encoded."""
    return all("!" <= character <= "~" for character in path)


def credentials(parts: SplitResult) -> tuple[str | None, str | None]:
    username, password = (
        None if text is None else unquote(text) for text in (parts.username, parts.password)
    )
    for text in (username, password):
        if text is not None and len(text.encode()) > STRING_BYTES_MAX:
            raise UsageError(f"a user name or password has {STRING_BYTES_MAX} bytes at most")
    return username or (None if password is None else ""), password


def unix_target(parts: SplitResult, username: str | None, password: str | None) -> Target:
    path = unquote(parts.path)
    size = len(os.fsencode(path))
    if not 1 < size <= UNIX_PATH_BYTES_MAX:
        raise UsageError(f"{shown(parts)}: the path of a Unix socket has 2 to {UNIX_PATH_BYTES_MAX} bytes")
    address = struct.pack("=H108s", socket.AF_UNIX, os.fsencode(Path(path)))
    return Target(
        url=shown(parts),
        family=socket.AF_UNIX,
        address=address,
        host=path,
        username=username,
        password=password,
    )


def resolve(host: str, port: int) -> tuple[int, str, bytes]:
    """Family, numeric address and struct sockaddr of a host."""
    try:
        family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConnectionError(f"the host {host} cannot be resolved: {error.strerror}") from error
    except UnicodeError as error:  # of a name that cannot be one: a label is empty or too long
        raise UsageError(f"{host!r} is not the name of a host") from error
    numeric = str(found[0])
    if family == socket.AF_INET6:
        _, _, flow, scope = found  # type: ignore[misc]  # of an IPv6 address there are four
        packed = socket.inet_pton(family, numeric.partition("%")[0])
        head = struct.pack("=H", family) + struct.pack("!HI", port, flow)
        return family, numeric, head + packed + struct.pack("=I", scope)
    packed = socket.inet_pton(family, numeric)
    return family, numeric, struct.pack("=H", family) + struct.pack("!H", port) + packed + bytes(8)


def shown(parts: SplitResult) -> str:
    """The URL without its password."""
    place = parts.netloc.rpartition("@")[2]
    name = parts.netloc.rpartition("@")[0].partition(":")[0]
    return f"{parts.scheme}://{name + '@' if name else ''}{place}{parts.path if parts.path != '/' else ''}"
