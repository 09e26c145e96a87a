"""The broker's listeners: their sockets, what wraps their connections, and certificates read again.

A certificate file that changes is read again within a second or two, or at once by `reload`; what is wrong by
then is reported, and the old content stays in force. Nobody is disconnected by it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemq.broker.host.watched_files import WatchedFiles
from tidemq.config import LISTENER_RANGES, Config, Listener, TlsConfig, refused, unknown_name
from tidemq.engine.door.listeners import ListenerRates, ListenerSettings, tcp_sockets, unix_socket
from tidemq.errors import ConfigError, UsageError
from tidemq.net.server_tls import ServerTls
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.transport import ServerScheme

if TYPE_CHECKING:
    from tidemq.engine import Engine

_log = logging.getLogger("tidemq")

RESERVED = "$"  # names of the broker's own listeners begin so
DEFAULT = "default"  # name of the listener of `host` and `port`
_TERMS = ("qos_max", "retain_available", "client_id_required")  # that a listener may have for itself
_VERSIONS = {"3.1": 3, "3.1.1": 4, "5.0": 5}


def configured_listeners(config: Config) -> dict[str, Listener]:
    """All listeners by name, the one of `host` and `port` first. ConfigError where two have one name,
    or none is left.
    """
    plain = (Listener(name=DEFAULT, host=config.host, port=config.port),) if config.plain else ()
    found: dict[str, Listener] = {}
    for number, listener in enumerate((*plain, *config.listeners)):
        name = listener.name or str(listener.path or f"{listener.host}:{listener.port or f'#{number}'}")
        if name.startswith(RESERVED):
            raise refused("configuration", "listeners", f"{name!r} is the broker's own", ["another name"])
        if name in found:
            raise refused("configuration", "listeners", f"two are called {name!r}", ["a name for each"])
        found[name] = listener
    if not found:
        raise refused("configuration", "plain", "there is no listener", ["true", "a table in listeners"])
    return found


def make_scheme(listener: Listener) -> ServerScheme | None:
    """What wraps the listener's connections; None: nothing. UsageError for files that are no certificates."""
    if listener.tls is None and listener.websocket is None and not listener.proxy_protocol:
        return None
    web = listener.websocket
    return ServerScheme(
        tls=_make_tls(listener.tls) if listener.tls else None,
        websocket=WebSocketTerms(web.path, web.origins) if web else None,
        proxy_protocol=listener.proxy_protocol,
    )


def make_scheme_of(name: str, listener: Listener) -> ServerScheme | None:
    """The same; of a listener with TLS ConfigError, which names it."""
    if listener.tls is None:
        return make_scheme(listener)
    try:
        return make_scheme(listener)
    except UsageError as error:
        accepted = ["readable PEM files"]
        raise refused("configuration", f"listener {name}", str(error), accepted) from error


def _read_scheme(name: str, listener: Listener) -> ServerScheme:
    """That of a listener with TLS; ConfigError, which names it."""
    scheme = make_scheme_of(name, listener)
    assert scheme is not None
    return scheme


def _make_tls(tls: TlsConfig) -> ServerTls:
    return ServerTls(
        str(tls.cert),
        str(tls.key or tls.cert),
        client_ca=str(tls.client_ca or ""),
        client_cert=tls.client_cert,
        crl=str(tls.crl or ""),
        version_min=tls.version_min,
        others=[(each.names, str(each.cert), str(each.key or each.cert)) for each in tls.certificates],
    )


def _files(tls: TlsConfig) -> list[Path]:
    files = [tls.cert, tls.key, tls.client_ca, tls.crl]
    for each in tls.certificates:
        files += [each.cert, each.key]
    return [file for file in files if file is not None]


class Listeners:
    """The listeners of one broker. All methods belong to the broker's event loop."""

    def __init__(self, config: Config, given: Mapping[str, list[socket.socket]]) -> None:
        """`given`: sockets that listen already, by the listener's name. ConfigError for other names."""
        self._config = config
        self.by_name = configured_listeners(config)
        self._engine: Engine | None = None
        for name in given.keys() - self.by_name.keys():
            raise unknown_name("configuration", "a socket for the listener", name, self.by_name)
        self._given = given
        self._numbers: dict[str, list[int]] = {}  # the engine's
        self._secured: dict[str, WatchedFiles[ServerScheme]] = {}  # those with certificates, by name
        self._tasks: list[asyncio.Task[None]] = []
        self._sockets_made: list[Path] = []
        self.addresses: dict[str, str] = {}  # bound, by name
        self.ports: tuple[int, ...] = ()  # of those with one

    def open(
        self,
        engine: Engine,
        reactors: int,
        asks: Callable[[str], bool],
        local_only: Callable[[str], bool],
    ) -> None:
        """Listens. Before the engine starts.

        Raises OSError for what cannot be bound, ConfigError for TLS files that are wrong.
        """
        self._engine = engine
        ports = []
        for name, listener in self.by_name.items():
            scheme: ServerScheme | None
            if listener.tls is None:
                scheme = make_scheme(listener)
            else:
                read, use = partial(_read_scheme, name, listener), partial(self._replace, name)
                watched = self._secured[name] = WatchedFiles(_files(listener.tls), read, use)
                scheme = watched.value
            sockets = self._given.get(name) or self._make_sockets(listener, reactors)
            settings = ListenerSettings(
                name=name,
                scheme=scheme,
                versions=tuple(_VERSIONS[version] for version in listener.protocol_versions),
                asks=asks(name),
                local_only=local_only(name),
                **self._terms(listener),
                connections_max=listener.connections_max,
                rates=self._rates(listener),
            )
            parts = [[each] for each in sockets] if name in self._given else [sockets]
            self._numbers[name] = [engine.listen(part, settings) for part in parts]
            bound = sockets[0].getsockname()
            if isinstance(bound, tuple):
                ports.append(bound[1])
                host = f"[{listener.host}]" if ":" in listener.host else listener.host
                self.addresses[name] = f"{host}:{bound[1]}"
            else:
                self.addresses[name] = str(bound)
        self.ports = tuple(ports)

    def _terms(self, listener: Listener) -> dict[str, Any]:
        """What the listener says for itself, and the broker where it says nothing."""
        chosen = {name: getattr(listener, name) for name in _TERMS}
        return {
            name: getattr(self._config, name) if value is None else value for name, value in chosen.items()
        }

    def _rates(self, listener: Listener) -> ListenerRates:
        """The listener's own limits, and the broker's where it has none."""
        chosen = {name: getattr(listener, name) for name in LISTENER_RANGES}
        return ListenerRates(
            **{
                name: getattr(self._config.limits, name) if value is None else value
                for name, value in chosen.items()
            }
        )

    @property
    def certificates(self) -> dict[str, str]:
        """Files with the certificates of those that have one, by name."""
        return {name: str(each.tls.cert) for name, each in self.by_name.items() if each.tls is not None}

    @property
    def secure(self) -> bool:
        """Whether any of them has certificates."""
        return bool(self._secured)

    def watch(self) -> None:
        """Begins to look after the files of certificates."""
        self._tasks += [asyncio.create_task(each.watch()) for each in self._secured.values()]

    def close(self) -> None:
        """Looks no more, and takes its Unix sockets away; one that stays is replaced by the next broker."""
        for task in self._tasks:
            task.cancel()
        for path in self._sockets_made:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # root has made it, and we are somebody else by now
                _log.warning("%s cannot be removed: %s", path, error.strerror)

    async def reload(self) -> None:
        """Reads all certificates again; raises ConfigError for the first that is wrong, and keeps the old."""
        wrong = None
        for files in self._secured.values():
            try:
                await files.reload()
            except ConfigError as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong

    def _make_sockets(self, listener: Listener, reactors: int) -> list[socket.socket]:
        if listener.path is None:
            return tcp_sockets(listener.host, listener.port, reactors)
        made = unix_socket(listener.path, int(listener.mode, 8))
        self._sockets_made.append(listener.path)
        return [made]

    def _replace(self, name: str, scheme: ServerScheme) -> None:
        engine = self._engine
        assert engine is not None
        for number in self._numbers[name]:
            engine.replace_scheme(number, scheme)
        _log.info("listener %s: certificates were read again", name)
