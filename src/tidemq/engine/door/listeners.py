"""Listeners as the control plane describes them to the engine, and the sockets they listen on."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from tidemq.limits import Limits
from tidemq.net.transport import ServerScheme

LISTEN_BACKLOG = 4096
_RECEIVE_LEAST, _RECEIVE_MOST = 65_536, 4 << 20  # bytes that the kernel keeps of a client
PROTOCOL_VERSIONS = (3, 4, 5)  # MQTT 3.1, 3.1.1, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerRates:
    """The limits of `limits.Limits` that each listener has for itself. 0: none."""

    client_messages_per_s: int = 0
    client_bytes_per_s: int = 0
    listener_messages_per_s: int = 0
    listener_bytes_per_s: int = 0
    connects_per_s: int = 0
    connections_per_address_max: int = 0


def default_rates(limits: Limits) -> ListenerRates:
    """The broker's."""
    return ListenerRates(**{field.name: getattr(limits, field.name) for field in fields(ListenerRates)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """What the clients that come in at one listener are held to."""

    name: str = ""
    scheme: ServerScheme | None = None  # what their bytes are wrapped in; None: nothing
    versions: tuple[int, ...] = PROTOCOL_VERSIONS
    asks: bool = False  # the control plane decides on each CONNECT
    local_only: bool = False  # clients of this machine only
    qos_max: int = 2  # of what its clients publish, and are granted
    retain_available: bool = True
    client_id_required: bool = False
    connections_max: int = 0  # 0: as many as the broker takes
    rates: ListenerRates | None = None  # None: the broker's


@contextmanager
def listening_at(place: str) -> Iterator[None]:
    """Has an OSError name the place that was to be listened at."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot listen at {place}: {error.strerror or error}") from error


def tcp_sockets(host: str, port: int, count: int) -> list[socket.socket]:
    """Sockets that listen on one address, ``count`` of them, between which the system shares out the clients
    (SO_REUSEPORT). Port 0 picks one.

    Raises OSError when the address cannot be bound, also when another broker shares it already.
    """
    with listening_at(f"{host}:{port}"):
        return _bound_sockets(host, port, count)


def _bound_sockets(host: str, port: int, count: int) -> list[socket.socket]:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        # SO_REUSEPORT would let two brokers share a port unnoticed; a plain bind does not
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        address = (host, probe.getsockname()[1], *address[2:])
    sockets: list[socket.socket] = []
    with ExitStack() as undo:
        for _ in range(count):
            listening = undo.enter_context(socket.socket(family, kind, protocol))
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening.bind(address)
            listening.listen(LISTEN_BACKLOG)
            listening.setblocking(False)
        undo.pop_all()
    return sockets


def prepare_socket(listening: socket.socket, limits: Limits, rates: ListenerRates) -> None:
    """Lets TCP find out which clients are gone without a word, and keep little of what those have sent who
    are read later because of a limit a second. What it accepts inherits all of it.
    """
    if rates.client_messages_per_s or rates.client_bytes_per_s:
        # a second's worth; without it the kernel would hold megabytes of each client
        worth = rates.client_bytes_per_s or _RECEIVE_LEAST
        listening.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, min(max(worth, _RECEIVE_LEAST), _RECEIVE_MOST)
        )
    if listening.family == socket.AF_UNIX:
        return
    if limits.tcp_keepalive_s:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.tcp_keepalive_s)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.tcp_keepalive_interval_s)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, limits.tcp_keepalive_probes)
    if limits.tcp_user_timeout_s:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.tcp_user_timeout_s * 1000)


def unix_socket(path: Path, mode: int) -> socket.socket:
    """A socket that listens at a path, with this file mode. A socket that an earlier broker has left there
    is removed, one that somebody listens on is not.

    Raises OSError when it cannot be bound.
    """
    with listening_at(str(path)), ExitStack() as undo:
        listening = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        _remove_dead(path)
        before = os.umask(0o777 & ~mode)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(LISTEN_BACKLOG)
        listening.setblocking(False)
        undo.pop_all()
    return listening


def _remove_dead(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return  # no socket: the bind says so
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
