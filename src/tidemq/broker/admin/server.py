"""The admin listener, over HTTP: `GET /health`, `GET /ready`, `GET /alarms`, `GET /metrics`, `GET /counters`,
`POST /reload`, `/api/v1` (`api`), the streams (`stream_routes`), and the dashboard (`page_files`).
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterable, Sequence

from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST

from tidemq.broker.admin.api import BODY_BYTES_MAX, PREFIX, PROBLEM, Problem, Role, document_route
from tidemq.broker.admin.audit import Audit
from tidemq.broker.admin.backup_api import BackupApi
from tidemq.broker.admin.ban_api import BanApi
from tidemq.broker.admin.bridge_api import BridgeApi
from tidemq.broker.admin.client_api import ClientApi
from tidemq.broker.admin.cluster_api import ClusterApi
from tidemq.broker.admin.controls import Controls
from tidemq.broker.admin.door import Door
from tidemq.broker.admin.drop_api import DropApi
from tidemq.broker.admin.guard import OPEN_PATHS, Guard, Handler, is_loopback
from tidemq.broker.admin.live_api import LiveApi
from tidemq.broker.admin.log_api import LogApi
from tidemq.broker.admin.page_files import page_routes
from tidemq.broker.admin.queue_api import QueueApi
from tidemq.broker.admin.retained_api import RetainedApi
from tidemq.broker.admin.settings_api import SettingsApi
from tidemq.broker.admin.subscription_api import SubscriptionApi
from tidemq.broker.admin.trace_api import TraceApi
from tidemq.broker.admin.watch_api import WatchApi
from tidemq.broker.monitoring.alarms import Alarm
from tidemq.broker.monitoring.metrics import Exposition
from tidemq.config import Config, refused
from tidemq.engine.door.listeners import listening_at

_log = logging.getLogger("tidemq.admin")

# of what is not below /api/v1, beside what `Roles` says of all
OTHER_ROLES = {("PUT", "/streams/{name}"): Role.OPERATE}
LOADING = "the broker loads what is stored"
LINE_BYTES_MAX = 256 << 10  # of a request's first line: a cursor may hold a topic of 65,535 bytes
SHUTDOWN_S = 1.0  # for answers under way when it closes


def _is_ours(record: logging.LogRecord) -> bool:
    """Not a request that is no HTTP: aiohttp would log it with its headers, and so with a token."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log.addFilter(_is_ours)


def _make_tls(config: Config) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, config)
    return context


def _load_certificate(context: ssl.SSLContext, config: Config) -> None:
    cert, key = config.admin_cert, config.admin_key
    try:
        context.load_cert_chain(cert, key or None, password=lambda: "")  # it would ask on the terminal
    except OSError as error:  # SSLError is one, and says nothing of the files
        problem = f"{cert} {key}: {error.strerror or error}"
        accepted = ["readable PEM files, the key without a password"]
        raise refused("configuration", "admin_cert", problem, accepted) from error


def _refuse_strangers(guard: Guard, host: str, address: str) -> None:
    """ConfigError where other machines could come in without a token."""
    if not guard.has_token and not is_loopback(address):
        problem = f"{host!r} can be reached from other machines, and there is no admin_token_file"
        raise refused("configuration", "admin_host", problem, ["127.0.0.1", "admin_token_file as well"])


def check_admin(config: Config) -> None:
    """Reads tokens and certificate as a start does, and binds nothing. ConfigError, or OSError for a host
    that has no address.
    """
    guard = Guard(config)
    if config.admin_cert:
        _make_tls(config)
    with listening_at(f"{config.admin_host}:{config.admin_port}"):
        for *_, address in socket.getaddrinfo(config.admin_host, config.admin_port, type=socket.SOCK_STREAM):
            _refuse_strangers(guard, config.admin_host, str(address[0]))


class AdminServer:
    """Answers on one address from `start` until closed."""

    def __init__(self, controls: Controls, config: Config, *, any_port: bool) -> None:
        """`any_port`: another will do where somebody has `admin_port`."""
        self._controls = controls
        self._config = config
        self._any_port = any_port
        self._exposition: Exposition | None = None
        self._guard = Guard(config)
        self._audit = Audit(config)
        self._live = LiveApi(controls)
        self._page = page_routes()  # now: later the process may be somebody who cannot read them
        self._guard.open_paths = (*OPEN_PATHS, *self._page)
        self._tls = _make_tls(config) if config.admin_cert else None
        self._sockets: list[socket.socket] = []
        self._runner: web.AppRunner | None = None
        self._door: Door | None = None

    def bind(self) -> int:
        """Binds the port, on each address that the host's name has, and gives its number; OSError if that
        cannot be, ConfigError where others could come in without a token. Clients wait until `start`.
        """
        host, port = self._config.admin_host, self._config.admin_port
        with listening_at(f"{host}:{port}"):
            try:
                self._bind(host, port)
            except OSError:
                if not self._any_port:
                    raise
                while self._sockets:  # of its other addresses
                    self._sockets.pop().close()
                self._bind(host, 0)
        bound_port: int = self._sockets[0].getsockname()[1]
        return bound_port

    @property
    def url(self) -> str:
        """Of the dashboard, once the port is bound."""
        host, port = self._config.admin_host, self._sockets[0].getsockname()[1]
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"

    def _bind(self, host: str, port: int) -> None:
        kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
        for family, _, protocol, _, address in socket.getaddrinfo(host, port, type=kind, flags=flags):
            _refuse_strangers(self._guard, host, str(address[0]))
            bound = socket.socket(family, kind, protocol)
            self._sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((address[0], port, *address[2:]))
            port = int(bound.getsockname()[1])
            bound.listen()

    async def start(self, routes: Iterable[web.RouteDef] = ()) -> None:
        """Listens and answers."""
        app = web.Application(
            middlewares=[
                self._attend,
                _explain,
                self._audit.middleware,
                self._guard.middleware,
                self._refuse_while_loading,
            ],
            client_max_size=BODY_BYTES_MAX,
        )
        own = [
            web.get("/health", self._health),
            web.get("/ready", self._ready),
            web.get("/alarms", self._alarms),
            web.get("/metrics", self._metrics),
            web.get("/counters", self._count),
            web.post("/reload", self._reload_all),
        ]
        groups = (
            ClientApi,
            SubscriptionApi,
            RetainedApi,
            QueueApi,
            DropApi,
            LogApi,
            BackupApi,
            BanApi,
            SettingsApi,
            TraceApi,
            WatchApi,
            BridgeApi,
            ClusterApi,
        )
        apis = [*(group(self._controls) for group in groups), self._live]
        endpoints = [endpoint for api in apis for endpoint in api.endpoints()]
        api = [*(each.route() for each in endpoints), document_route(endpoints)]
        self._guard.roles = {(each.method, each.canonical): each.role for each in endpoints} | OTHER_ROLES
        app.add_routes([*own, *api, *routes, *self._page.values()])
        self._runner = web.AppRunner(
            app,
            logger=_log,
            access_log=None,
            shutdown_timeout=SHUTDOWN_S,
            handle_signals=False,
            max_line_size=LINE_BYTES_MAX,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._door = Door(self._runner.server, self._sockets, self._tls)

    def reload(self) -> None:
        """Reads token and certificate again. ConfigError for a wrong one; then the old one stays in force."""
        self._guard.reload()
        if self._tls is not None:
            _make_tls(self._config)  # a trial: a pair that does not fit must not reach the context in use
            _load_certificate(self._tls, self._config)

    async def close(self) -> None:
        """Stops to listen."""
        self._live.close()
        if self._door is not None:
            self._door.close()
        if self._runner is not None:
            await self._runner.cleanup()
        for bound in self._sockets:
            bound.close()
        self._audit.close()

    @property
    def counts(self) -> dict[str, int]:
        """Of requests that were refused, and of what the audit log lacks."""
        return self._guard.counts | self._audit.counts

    @web.middleware
    async def _attend(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        assert self._door is not None
        self._door.begin(request)
        try:
            return await handler(request)
        finally:
            self._door.end(request)

    async def _health(self, _: web.Request) -> web.Response:
        """503 where something stands still that only a restart moves."""
        monitor = self._controls.monitor()
        return _judged(monitor.pulse.look() if monitor is not None else [])

    async def _ready(self, _: web.Request) -> web.Response:
        """503 while the broker loads, or does less than it should; with what alarms there are."""
        monitor = self._controls.monitor()
        if monitor is None:
            return _judged([LOADING])
        problems = dict.fromkeys([*monitor.pulse.look(), *self._controls.problems()])
        return _judged(list(problems), monitor.alarms.active)

    async def _alarms(self, _: web.Request) -> web.Response:
        alarms = self._controls.running_monitor().alarms
        body = {
            "active": [each.describe() for each in alarms.active],
            "ended": [each.describe() for each in alarms.ended],
        }
        return web.json_response(body)

    async def _metrics(self, _: web.Request) -> web.Response:
        monitor = self._controls.running_monitor()
        if self._exposition is None:
            self._exposition = Exposition(monitor, self._controls.counters)
        return web.Response(body=self._exposition.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @web.middleware
    async def _refuse_while_loading(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in self._guard.open_paths and self._controls.monitor() is None:
            raise web.HTTPServiceUnavailable(text=LOADING)
        return await handler(request)

    async def _count(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self._controls.counters()))

    async def _reload_all(self, _: web.Request) -> web.Response:
        """500 where a part could not be read again; the others were."""
        done = await self._controls.reload()
        wrong = {name: text for name, text in done.items() if text}
        body: dict[str, object] = {"reloaded": [name for name in done if name not in wrong]}
        if wrong:
            body["error"] = "; ".join(f"{name}: {text}" for name, text in wrong.items())
        return web.json_response(body, status=500 if wrong else 200)


def _judged(problems: Sequence[str], alarms: Sequence[Alarm] = ()) -> web.Response:
    """200, or 503 with the problems."""
    body: dict[str, object] = {"status": "failing" if problems else "ok"}
    if problems:
        body["problems"] = list(problems)
    if alarms:
        body["alarms"] = [each.name for each in alarms]  # no more: anybody may ask
    return web.json_response(body, status=503 if problems else 200)


@web.middleware
async def _explain(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal is JSON with the reason in `error`."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400 or error.content_type == PROBLEM:
            raise
        known = {route.resource.canonical for route in request.app.router.routes() if route.resource}
        paths = sorted(path for path in known if not path.startswith("/page/"))
        body: dict[str, object] = {"error": error.text or error.reason}
        if error.status == 404 and error.reason == "Not Found":
            body = {"error": f"{request.path} is unknown", "paths": paths}
        if not request.path.startswith(f"{PREFIX}/"):
            return web.json_response(body, status=error.status, headers=_kept(error))
        problem = Problem(title=error.reason, status=error.status, detail=str(body["error"]))
        return web.Response(
            text=problem.model_dump_json(),
            status=error.status,
            headers=_kept(error),
            content_type=PROBLEM,
        )


def _kept(error: web.HTTPException) -> dict[str, str]:
    return {name: value for name, value in error.headers.items() if name in ("Allow", "WWW-Authenticate")}
