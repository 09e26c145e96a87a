"""The broker as an object: starts an engine, decides what it asks, and lets a program take part.

All state lives in the object; several run in one process, each with an engine of its own. Everything here
runs on the event loop that started the broker, and nothing of it is on a message's way unless a program
subscribes or a plugin wants to see messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from tidemq import wire
from tidemq.broker.access import bans
from tidemq.broker.access.decisions import Decisions
from tidemq.broker.authenticators.builtin import LocalOnly
from tidemq.broker.bridging.bridges import Bridges, check_bridge
from tidemq.broker.bridging.door import BridgeDoor
from tidemq.broker.clustering import Clustering
from tidemq.broker.completion import complete
from tidemq.broker.durability.keeper import Keeper
from tidemq.broker.durability.storage import Storage
from tidemq.broker.event_handlers import EventHandlers
from tidemq.broker.fault_log import ClientLog
from tidemq.broker.host.clock_watch import ClockWatch
from tidemq.broker.host.privileges import become, find_identity, make_directory
from tidemq.broker.host.secret_files import secret_files, warn_of
from tidemq.broker.listeners import Listeners
from tidemq.broker.logs import lines_left_out
from tidemq.broker.own_files import OwnFiles
from tidemq.broker.own_plugins import OwnPlugins, publish_route
from tidemq.broker.own_providers import OwnProviders
from tidemq.broker.plugins.messages import Route
from tidemq.broker.program_subscription import Subscription, Subscriptions
from tidemq.broker.providers import (
    ADMINISTRATIVE_ACTION,
    Authenticator,
    Authoriser,
    find_provider,
)
from tidemq.broker.reload import Act, Reloads
from tidemq.broker.replays import Replays
from tidemq.broker.settings import Settings
from tidemq.broker.sys_topics import publish_sys_topics
from tidemq.config import REACTORS_MAX, Config, refused
from tidemq.errors import UsageError
from tidemq.store import MemoryStore, Store
from tidemq.wire import NO_PROPERTIES, Properties, Subscribe, encode

if TYPE_CHECKING:
    from aiohttp.web import RouteDef

    from tidemq.broker.admin.server import AdminServer
    from tidemq.broker.monitoring.monitor import Monitor
    from tidemq.engine import Engine
    from tidemq.engine.door.plugin_access import PluginAccess
    from tidemq.engine.door.view import EngineView
    from tidemq.stream import Streams

_log = logging.getLogger("tidemq")

_LATE_MODULES = (  # which a broker needs later on, whoever it has become
    "concurrent.futures.thread",
    "tidemq.broker.admin.stream_routes",
    "tidemq.broker.monitoring.certificates",
    "tidemq.broker.monitoring.monitor",
    "tidemq.stream.merging",
    "tidemq.stream.schema",
)
STOP_GRACE_S = 5.0  # beyond `limits.shutdown_s`, for the engine to say that it has stopped


class Broker:
    """An MQTT broker: `async with Broker(config) as broker`. Runs once; make another to run again.

    `store`, `authenticator` and `authoriser` take the place of those that the configuration names. Raises
    OSError when a port can't be bound, ConfigError for an unknown provider, StoreError for an unreadable
    store.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        plugins: Iterable[object] = (),
        store: Store | None = None,
        authenticator: Authenticator | None = None,
        authoriser: Authoriser | None = None,
        sockets: Mapping[str, list[socket.socket]] | None = None,
        reread: Callable[[], Config] | None = None,
        any_admin_port: bool = False,
        cluster: Clustering | None = None,
    ) -> None:
        """`sockets`: that listen already, by listener; `reread`: reads the configuration, for `reload`;
        `any_admin_port`: another one will do where somebody has `admin_port`; `cluster`: makes it a
        node of one.
        """
        self.config = config or Config()
        self._sockets = sockets or {}
        self._plugins = OwnPlugins(self.config, plugins)
        self._given_store = store
        self._authenticator = authenticator
        self._authoriser = authoriser
        self._engine: Engine | None = None
        self._decisions: Decisions | None = None
        self._replays: Replays | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._client_log: ClientLog | None = None
        self._storage: Storage | None = None
        self._admin: AdminServer | None = None
        self._reloads = Reloads()
        self._providers = OwnProviders(self.config, self._reloads)
        self._reread = reread
        self._any_admin_port = any_admin_port
        self._cluster = cluster
        self._settings: Settings | None = None
        self._files: OwnFiles | None = None
        self._door: BridgeDoor | None = None  # of bridges; None: there will be none
        self._bridges: Bridges | None = None
        self.monitor: Monitor | None = None  # what it shows of itself; None before it has loaded
        self._tasks: list[asyncio.Task[None]] = []  # that go on until the end
        self._subscriptions = Subscriptions(self._engine_of_now)
        self._listeners: Listeners | None = None
        self._reactors = self.config.reactors or min(REACTORS_MAX, len(os.sched_getaffinity(0)))
        self._phase: Literal["new", "starting", "running", "stopping", "stopped"] = "new"
        self._changing = asyncio.Lock()  # the phase: a stop waits for a start
        self._stopping: asyncio.Task[None] | None = None
        self._clock = ClockWatch()
        self._stopped = asyncio.Event()  # the engine said so
        self._failure = ""  # why it cannot go on
        self._failed = asyncio.Event()
        self.ports: tuple[int, ...] = ()  # bound, the first is that of `config.port`
        self.admin_port = 0  # bound; 0: off

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def admin_url(self) -> str:
        """Where the dashboard is; empty: there is none."""
        return self._admin.url if self._admin is not None else ""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where each listener listens, by its name: "host:port", or the path of a Unix socket."""
        return {} if self._listeners is None else self._listeners.addresses

    @property
    def port(self) -> int:
        """The port it listens on, the real one where the configuration says 0."""
        return self.ports[0]

    async def start(self) -> None:
        """Binds its ports, becomes `user`, loads the store, lets clients in; undoes it when one step fails,
        or when it is cancelled.

        Clients that come meanwhile wait. There is no way back from `user`, which is the whole process's.
        """
        if self._phase != "new":
            raise UsageError("a broker runs once; make another")
        self._phase = "starting"
        async with self._changing:
            try:
                await self._start()
            except BaseException:
                self._phase = "stopped"
                await complete(self._abandon())
                raise
            self._phase = "running"
        if self._door is not None:
            try:
                await self._start_bridges(self._door)
            except BaseException:
                await complete(self.stop())
                raise

    async def _start(self) -> None:
        config = self.config
        identity = find_identity(config.user, config.group)
        authoriser, store = self._authoriser, self._given_store
        listeners = self._listeners = Listeners(config, self._sockets)
        self._plugins.load()
        if authoriser is None:
            authoriser = self._providers.make("authoriser", config.authoriser, config.authoriser_options)
        if store is None:
            store = find_provider("store", config.store, config.store_options, config)
        make_keeper = Keeper if self._cluster is None else self._cluster.make_keeper
        storage = self._storage = None if store is None else Storage(store, config, make_keeper)
        engine = self._engine = self._make_engine()
        for bridge in config.bridges:
            check_bridge(bridge, config.limits)
        door = BridgeDoor(engine)
        if config.bridges or self._reread is not None:  # they may come with a reload
            door.open()
            self._door = door
        authenticators = self._bind(engine, listeners)
        if identity is not None:
            if store is not None and not isinstance(store, MemoryStore):
                make_directory(config.data, identity)
            become(identity, _LATE_MODULES)
        warn_of(secret_files(config))
        if self._admin is not None:
            await self._admin.start(self._admin_routes(store))
        if storage is not None:
            await storage.load(engine, self._on_keeper_death())
        if config.streams and self._streams is None:
            raise refused("configuration", "streams", "they need a store on disk", ["store = rocksdb"])
        replays = self._replays = Replays(engine, self._streams, config)
        decisions = self._decisions = Decisions(
            engine, config, authenticators, authoriser, self._plugins.hooks, replays
        )
        if storage is not None:
            decisions.bans.load(map(bans.ban_of, storage.rows(bans.FAMILY, bans.PREFIX)))
            decisions.follow_bans()
        self._client_log = ClientLog(engine, config.fault_lines_max, is_needed=decisions.wants_reports)
        self.monitor = monitor = self._make_monitor(engine, storage)
        self._files = OwnFiles(config, engine, decisions, monitor, self._reloads)
        monitor.watches.begin(config.watched_topics)
        self._settings = Settings(config, monitor.view.change_limits, self._reread)
        if self._settings.can_reload:
            self._reloads.add("configuration", self._settings.reload)
        if self._settings.can_reload or config.plugins:
            self._reloads.add("plugins", lambda: self._plugins.reload(self._running_settings().read))
        self._handlers = EventHandlers(
            decisions=decisions,
            plugins=self._plugins,
            replays=replays,
            monitor=monitor,
            client_log=self._client_log,
            subscriptions=self._subscriptions,
            door=door,
            stopped=self._stopped.set,
        ).by_kind()
        self._plugins.start(engine, self._plugin_access(engine))
        if self._cluster is not None:
            await self._begin_cluster(self._cluster, engine, decisions)
        engine.start()
        if self._cluster is not None:
            await self._cluster.serve()
        elif self._keeper is not None:
            self._keeper.start()
        asyncio.get_running_loop().add_reader(engine.fileno(), self._take_events)
        self._begin_tasks(listeners)

    async def _begin_cluster(self, cluster: Clustering, engine: Engine, decisions: Decisions) -> None:
        if self._keeper is None:
            raise refused("configuration", "store", "a cluster needs a store on disk", ["rocksdb", "sqlite"])
        self._keeper.start()
        decisions.find_sessions(cluster.find_session, cluster.session_ready)
        cluster.report_forks(self._plugins.forks())
        await cluster.begin(engine)

    async def _start_bridges(self, door: BridgeDoor) -> None:
        """Their sessions are there when this returns; they connect when they can."""
        assert self.monitor is not None
        monitor, settings = self.monitor, self._running_settings()
        publish = partial(self._running_engine().publish, retain=True)
        bridges = Bridges(door, self.config.limits, monitor.clients, monitor.questions, publish)
        self._bridges = bridges
        await bridges.follow(self.config.bridges)
        if settings.can_reload:
            self._reloads.add("bridges", lambda: bridges.follow(settings.read.bridges))
        self._tasks.append(asyncio.create_task(bridges.watch()))

    def _begin_tasks(self, listeners: Listeners) -> None:
        listeners.watch()
        assert self.monitor is not None
        self._tasks.append(asyncio.create_task(self._clock.watch()))
        self._tasks.append(asyncio.create_task(self.monitor.watch()))
        if self.config.sys_interval_s:
            count = self.monitor.counters_and_sizes
            publishing = publish_sys_topics(count, self._publish_sys, self.config.sys_interval_s)
            self._tasks.append(asyncio.create_task(publishing))
        assert self._files is not None
        self._tasks += map(asyncio.create_task, self._files.watch())

    async def _abandon(self) -> None:
        """Gives back what a start that failed had taken."""
        engine, self._engine = self._engine, None
        if self._admin is not None:
            await self._admin.close()
        if self._listeners is not None:
            self._listeners.close()
        if self._bridges is not None:
            await self._bridges.close()
        if engine is not None:
            await asyncio.to_thread(self._close_parts, engine)
        await self._plugins.close()
        await self._providers.close()

    async def stop(self) -> None:
        """Says goodbye to the clients, finishes the last writes, to them and to the store.

        Takes at most `limits.shutdown_s` and a few seconds. May be called again and at once by several: each
        returns when the broker has stopped. A call that is cancelled leaves the stopping going on.
        """
        if self._phase in ("new", "stopped"):
            return
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        """Each step may have been taken before, by one that was ended from outside."""
        async with self._changing:
            engine = self._engine
            if engine is None:
                return  # its start has failed
            self._phase = "stopping"
            _log.info("the broker stops: clients are told, and the last messages written")
            for task in self._tasks:
                task.cancel()
            if self._admin is not None:
                await self._admin.close()
            assert self._listeners is not None
            self._listeners.close()
            if self._bridges is not None:
                await self._bridges.close()
            engine.stop()
            try:
                async with asyncio.timeout(self.config.limits.shutdown_s + STOP_GRACE_S):
                    await self._stopped.wait()
            except TimeoutError:
                _log.error("the engine did not stop in time")
            assert self._decisions is not None
            await self._decisions.close()
            await self._plugins.close()
            await self._providers.close()
            assert self._replays is not None
            await self._replays.close()
            self._subscriptions.close()
            asyncio.get_running_loop().remove_reader(engine.fileno())
            if self._client_log is not None:
                self._client_log.flush()
            self._engine = None
            try:
                await complete(asyncio.to_thread(self._finish, engine))
            finally:
                self._phase = "stopped"
            _log.info("the broker has stopped")

    def _finish(self, engine: Engine) -> None:
        """Waits for the engine's and the keeper's threads; the last of what is to be stored is."""
        engine.join()
        self._close_cluster()
        if self._storage is not None:
            self._storage.finish()
        self._close_parts(engine)
        if left := {name: value for name, value in engine.live_objects().items() if value}:
            _log.error("the engine left objects behind: %s", left)  # a defect of ours: tests look for it

    def _close_cluster(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def _close_parts(self, engine: Engine) -> None:
        """What may take its time, and is for another thread than the event loop's."""
        self._close_cluster()
        engine.close()
        if self.monitor is not None:
            self.monitor.spans.close()
        if self._storage is not None:
            self._storage.close()

    async def wait_failed(self) -> str:
        """Waits until the broker cannot go on by itself, and gives the reason; then it is to be stopped.

        So it is when the thread has died that stores what is acknowledged: nothing more would be.
        """
        await self._failed.wait()
        return self._failure

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._failed.set()

    def _problems(self) -> list[str]:
        """What the broker does not do as it should; of interest to whoever looks after it."""
        problem = self._storage.problem if self._storage is not None else ""
        return [*([problem] if problem else []), *(self._cluster.problems() if self._cluster else ())]

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Publishes a message to whoever subscribes; returns when the engine has taken it over.

        A str is sent as UTF-8. Raises UsageError for what a PUBLISH may not hold.
        """
        payload = payload.encode() if isinstance(payload, str) else payload
        publish_route(self._running_engine(), Route(topic, payload, qos, retain, properties))

    def subscribe(self, topic_filter: str, qos: int = 2, *, queue_messages_max: int = 1000) -> Subscription:
        """Messages on the filter, to iterate: see Subscription. It does not outlive the broker.

        Raises UsageError for a malformed filter.
        """
        encode(Subscribe(packet_id=1, subscriptions=(wire.Subscription(filter=topic_filter, qos=qos),)), 5)
        return self._subscriptions.make(topic_filter, qos, queue_messages_max)

    async def disconnect(self, client_id: str, reason: int = ADMINISTRATIVE_ACTION) -> bool:
        """Ends the client's connection with a 5.0 reason code; False where it has none. Its session stays."""
        return self._running_engine().disconnect(client_id, reason)

    async def reload(self) -> dict[str, str]:
        """Reads again what can change while it runs: passwords, rules, certificates, tokens. What is wrong by
        then is logged, and the old content stays in force. Gives for each part what was wrong; empty:
        nothing.
        """
        return await self._reloads.run()

    def on_reload(self, name: str, act: Act) -> None:
        """Has `reload` call this, too, for a part of this name."""
        self._reloads.add(name, act)

    def counters(self) -> dict[str, int]:
        """Totals since the start, and gauges, by name."""
        counters = dict(self._running_engine().counters())
        counters.update(self._subscriptions.counts)
        counters["log_lines_left_out"] = lines_left_out()
        if self._client_log is not None:
            counters["log_lines_left_out"] += self._client_log.left_out
        if self._storage is not None:
            counters.update(self._storage.counts())
        if self._cluster is not None:
            counters.update(self._cluster.counts())
        spans = None if self.monitor is None else self.monitor.spans
        for part in (self._decisions, self._plugins, self._replays, self._admin, spans, self._bridges):
            if part is not None:
                counters.update(part.counts)
        files = [] if self._files is None else self._files.counts()
        for counts in (*self._providers.counts(), *files, self._clock.counts):
            for name, count in counts.items():
                counters[name] = counters.get(name, 0) + count
        return counters

    def _make_engine(self) -> Engine:
        from tidemq.engine import Engine  # late: not needed to read a configuration

        return Engine(self.config.limits, reactors=self._reactors, queue_full=self.config.queue_full)

    def _on_keeper_death(self) -> Callable[[str], None]:
        """To be called on any thread."""
        loop = asyncio.get_running_loop()

        def died(reason: str) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._fail, reason)

        return died

    def _bind(self, engine: Engine, listeners: Listeners) -> dict[str, Authenticator | None]:
        """Everything that root may have to do, before the process becomes somebody else. Gives the
        authenticators by listener.
        """
        config = self.config
        found = self._providers.authenticators(listeners.by_name, self._authenticator)
        # the engine itself sees to it, and asks nobody
        local_only = {name for name, each in found.items() if isinstance(each, LocalOnly)}
        authenticators = {name: None if name in local_only else each for name, each in found.items()}
        listeners.open(
            engine,
            self._reactors,
            asks=lambda name: authenticators[name] is not None,
            local_only=lambda name: name in local_only,
        )
        self.ports = listeners.ports
        if listeners.secure:
            self._reloads.add("certificates", listeners.reload)
        if config.admin_port:
            self._admin = self._make_admin()
            self.admin_port = self._admin.bind()
            self._reloads.add("admin", self._admin.reload)
        return authenticators

    def _make_admin(self) -> AdminServer:
        """The HTTP listener. ConfigError where its library is not installed."""
        try:
            from tidemq.broker.admin.controls import Controls
            from tidemq.broker.admin.server import AdminServer
        except ImportError as error:
            text = f"it needs the package {error.name}"
            raise refused(
                "configuration", "admin_port", text, ["0", "pip install 'tidemq[admin]'"]
            ) from error
        controls = Controls(
            counters=self.counters,
            monitor=self._serving,
            problems=self._problems,
            reload=self.reload,
            disconnect=self.disconnect,
            log_changed=self._log_changed,
            decisions=self._running_decisions,
            settings=self._running_settings,
            publish=self.publish,
            subscribe=self.subscribe,
            storage=lambda: self._storage,
            cluster=self._cluster,
        )
        return AdminServer(controls, self.config, any_port=self._any_admin_port)

    def _serving(self) -> Monitor | None:
        """None as long as the broker loads what is stored."""
        return self.monitor if self._engine_of_now() is not None else None

    def _admin_routes(self, store: Store | None) -> list[RouteDef]:
        if store is None or isinstance(store, MemoryStore):
            return []
        from tidemq.broker.admin.stream_access import stream_routes

        return stream_routes(lambda: (self._streams, self._keeper), self.config.node_name)

    @property
    def _keeper(self) -> Keeper | None:
        return self._storage.keeper if self._storage is not None else None

    @property
    def _streams(self) -> Streams | None:
        return self._storage.streams if self._storage is not None else None

    def _engine_of_now(self) -> Engine | None:
        return self._engine if self._phase in ("running", "stopping") else None

    def _running_engine(self) -> Engine:
        if (engine := self._engine_of_now()) is None:
            raise UsageError("the broker is not running")
        return engine

    def _make_view(self, engine: Engine) -> EngineView:
        from tidemq.engine.door.view import EngineView

        return EngineView(engine)

    def _plugin_access(self, engine: Engine) -> PluginAccess:
        from tidemq.engine.door.plugin_access import PluginAccess

        return PluginAccess(engine)

    def _make_monitor(self, engine: Engine, storage: Storage | None) -> Monitor:
        from tidemq.broker.monitoring.monitor import Monitor, Watched

        assert self._listeners is not None
        watched = Watched(
            config=self.config,
            view=self._make_view(engine),
            reactors=self._reactors,
            keeper=self._keeper,
            store_bytes=(lambda: 0) if storage is None else storage.store.size_bytes,
            counters=self.counters,
            certificates=self._listeners.certificates,
            publish=self._publish_sys,
            bridges=lambda: self._bridges,
            cluster=self._cluster.figures if self._cluster is not None else lambda: None,
        )
        return Monitor(watched)

    def _take_events(self) -> None:
        """Handles every waiting event; one that fails is logged and does not hold up the others."""
        for event in self._running_engine().events():
            try:
                self._handlers[type(event)](event)
            except Exception:  # noqa: BLE001 - one event that fails must not end the others
                _log.exception("event %s failed", type(event).__name__)

    def _running_decisions(self) -> Decisions:
        assert self._decisions is not None
        return self._decisions

    def _running_settings(self) -> Settings:
        assert self._settings is not None
        return self._settings

    def _log_changed(self) -> None:
        """The level of what is logged."""
        assert self._client_log is not None
        self._client_log.follow_level()

    def _publish_sys(self, topic: str, payload: bytes) -> None:
        if self.config.sys_interval_s:
            self._running_engine().publish(topic, payload, retain=True)
