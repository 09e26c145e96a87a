"""A broker as a node of a cluster: its `nats-server`, its links, its keeper and its neighbours."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemq.broker.clustering import ClusterFigures, DrainFigures, VerifyFigures
from tidemq.broker.plugins.forks import OnForks
from tidemq.cluster.connections import copies_of, unreached
from tidemq.cluster.counters import CLUSTER_COUNTERS
from tidemq.cluster.exchange import BEAT
from tidemq.cluster.heartbeats import Heartbeats
from tidemq.cluster.identity import Identity
from tidemq.cluster.keeping import ClusterKeeper
from tidemq.cluster.membership import Patience
from tidemq.cluster.neighbours import KINDS, Neighbours
from tidemq.cluster.reunions import MEET_S
from tidemq.cluster.transport.server import STORE_BYTES_MAX, NatsServer, ServerSettings
from tidemq.cluster.transport.settings import Security
from tidemq.cluster.transport.transport import Transport
from tidemq.cluster.troubles import Troubles
from tidemq.config import Config, refused
from tidemq.engine.door.node_access import NodeAccess
from tidemq.errors import ClusterError

if TYPE_CHECKING:
    from tidemq.engine import Engine, StoreAccess
    from tidemq.engine.door.events import SessionRequest
    from tidemq.store import Store

ALONE_S = 5.0  # after which a node that reaches nobody begins alone
LOOK_S = 0.05
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT_BYTES = 16 << 20  # of memory that is free, in each arena, before it is given back
DRAIN_LOOK_S = 0.2
USE_ANOTHER_SERVER = 0x9C
LOGS_AT_ONCE = 4  # of other nodes, as large as they may be, that there is room for copies of

_log = logging.getLogger("tidemq.cluster")


class ClusterHost:
    """As `Clustering` in `broker`, of the options `cluster_…`; the transport's `Events`, and `Links`."""

    def __init__(self, config: Config) -> None:
        """ConfigError for what a node cannot be with."""
        if not config.cluster_password_file:
            text = "a node of a cluster needs it"
            raise refused("configuration", "cluster_password_file", text, ["a file with the password"])
        if config.durability != "sync":
            text = "a node of a cluster must not lose what it has told others"
            raise refused("configuration", "durability", text, ["sync"])
        self._config = config
        self._server: NatsServer | None = None
        self._transport: Transport | None = None
        self.keeper: ClusterKeeper | None = None
        self._access: StoreAccess | None = None
        self._neighbours: Neighbours | None = None
        self._addresses: dict[int, str] = {}
        self._meets = threading.Lock()  # for the keeper and the transport
        self._others: list[str] = []  # where other nodes may be reached
        self._heartbeats: Heartbeats | None = None
        self._draining: asyncio.Task[None] | None = None  # None: the node stays
        self._troubles = Troubles()  # of what is reached at an address

    # --- as the broker calls it --------------------------------------------------------------------

    def make_keeper(self, store: Store, access: StoreAccess, **options: Any) -> ClusterKeeper:
        """Starts the `nats-server`, for others must know where it is."""
        config = self._config
        security = security_of(config)
        address = config.cluster_address
        if config.nats_url:
            address = config.nats_url
        else:
            settings = ServerSettings(
                folder=config.data.resolve() / "nats",
                listen=config.cluster_listen,
                security=security,
                store_bytes_max=max(STORE_BYTES_MAX, LOGS_AT_ONCE * config.cluster_log_bytes_max),
            )
            self._server = NatsServer(settings, lambda text: _log.error("%s", text))
            self._server.start()
            address = address or self._server.address
        identity = Identity(
            config.cluster_name,
            config.node_name,
            address,
            acks=config.cluster_ack,
            degraded=config.cluster_degraded,
            skew_s_max=config.cluster_skew_s_max,
            suspect_s=config.cluster_suspect_s,
            split=config.cluster_split,
            patience=Patience(config.cluster_absent_s, config.cluster_log_bytes_max),
        )
        self._access = access
        self.keeper = ClusterKeeper(store, access, identity=identity, links=self, **options)
        return self.keeper

    def report_forks(self, report: OnForks) -> None:
        """As in `Clustering`."""
        assert self.keeper is not None
        self.keeper.on_forks = report

    async def begin(self, engine: Engine) -> None:
        """Meets the others, and catches up with them."""
        keeper, config = self.keeper, self._config
        assert keeper is not None
        keep_memory()
        own = keeper.node.own
        self._transport = Transport(
            cluster=config.cluster_name,
            incarnation=own.incarnation,
            address=own.address,
            security=security_of(config),
            events=self,
        )
        self._neighbours = Neighbours(
            NodeAccess(
                engine,
                prefers_own=self._config.cluster_shared == "here",
                offers=True,
                formats=(own.formats.lowest, own.formats.highest),
            ),
            self.send,
        )
        beat = partial(self._transport.broadcast, BEAT)
        self._heartbeats = Heartbeats(beat, lambda: -math.inf if keeper.died else keeper.went_on_s)
        self._heartbeats.start()
        self._others = [each for each in (*config.cluster_join, *keeper.rejoins) if each != own.address]
        self._transport.join(self._others)
        self._transport.start()
        await self._catch_up(keeper)
        await asyncio.wrap_future(keeper.ask(keeper.load_engine))

    async def _catch_up(self, keeper: ClusterKeeper) -> None:
        """Until all is here that others have, or nobody could be reached for a while."""
        reached_at = time.monotonic()
        alone = not self._others and not keeper.has_members
        while not alone:
            if verdict := await asyncio.wrap_future(keeper.ask(lambda: keeper.membership.verdict)):
                raise ClusterError(verdict)
            if await asyncio.wrap_future(keeper.ask(lambda: keeper.is_up_to_date)):
                return
            if self._transport_of_now().connected() or keeper.takes_snapshot:
                reached_at = time.monotonic()
            if time.monotonic() - reached_at > ALONE_S:
                if keeper.rejoins:
                    where = ", ".join(self._others)
                    raise ClusterError(
                        f"this node has left the cluster, and begins as a new one: start another one first;"
                        f" none of these can be reached: {where}"
                    )
                _log.warning("no other node can be reached: this one begins alone")
                return
            await asyncio.sleep(LOOK_S)

    async def serve(self) -> None:
        """Messages and sessions may come and go."""
        assert self.keeper is not None
        assert self._neighbours is not None
        self._neighbours.start()
        begun = time.monotonic()
        reunions = self.keeper.moves.reunions
        while not await asyncio.wrap_future(self.keeper.ask(lambda: reunions.may_serve(time.monotonic()))):
            if time.monotonic() - begun > MEET_S:
                _log.warning("not all nodes have said what they want: what is published here may miss them")
                break
            await asyncio.sleep(LOOK_S)
        await asyncio.wrap_future(self.keeper.ask(self.keeper.serve))

    async def find_session(self, request: SessionRequest) -> int:
        """As in `Clustering`."""
        assert self.keeper is not None
        if self._draining is not None:
            return USE_ANOTHER_SERVER
        return await asyncio.wrap_future(self.keeper.connect(request.client_id, request.clean_start))

    def session_ready(self, connection: int, reason: int) -> None:
        """As in `Clustering`."""
        assert self._access is not None
        self._access.session_ready(connection, reason)

    def close(self) -> None:
        """As in `Clustering`."""
        if self._heartbeats is not None:
            self._heartbeats.close()
        if self._neighbours is not None:
            self._neighbours.close()
        if self._transport is not None:
            self._transport.close()
        if self._server is not None:
            self._server.stop()

    def figures(self) -> ClusterFigures | None:
        """As in `Clustering`."""
        keeper, now = self.keeper, time.monotonic()
        found = keeper.survey.figures(now) if keeper is not None else None
        if keeper is None or found is None or self._transport is None:
            return None
        status = self._transport.status()
        copies = copies_of(status["peers"])
        members = [replace(each, copies=copies.get(each.incarnation)) for each in found.members]
        degraded = [*found.degraded, *unreached(status, members)]
        troubles = sorted(
            [*keeper.exchange.troubles.all(), *self._troubles.all()], key=lambda trouble: trouble.at
        )
        phase = keeper.draining.phase
        drain = DrainFigures(phase, keeper.draining.sessions_left) if phase else None
        return replace(found, members=members, degraded=degraded, troubles=troubles, drain=drain)

    async def drain(self, disconnect_all: Callable[[], Awaitable[int]]) -> None:
        """As in `Clustering`."""
        keeper = self.keeper
        assert keeper is not None
        await asyncio.wrap_future(keeper.ask(lambda: keeper.draining.begin(time.monotonic())))
        if self._draining is None:
            self._draining = asyncio.create_task(self._leave(keeper, disconnect_all))

    async def _leave(self, keeper: ClusterKeeper, disconnect_all: Callable[[], Awaitable[int]]) -> None:
        _log.warning("this node leaves the cluster: its sessions go to the others")
        try:
            while True:
                if await disconnect_all() == 0 and await self._owes_nothing(keeper):
                    break
                await asyncio.sleep(DRAIN_LOOK_S)
            await asyncio.wrap_future(keeper.ask(keeper.draining.leave))
            while True:
                if keeper.draining.phase == "left":
                    break
                await asyncio.sleep(LOOK_S)
        except Exception as error:  # noqa: BLE001 - the broker ends, or something is to be mended
            _log.error("this node has not left the cluster: %s", error)
            return
        if self._heartbeats is not None:
            await asyncio.to_thread(self._heartbeats.close)
        _log.warning("this node has left the cluster, and can be stopped")

    async def _owes_nothing(self, keeper: ClusterKeeper) -> bool:
        assert self._neighbours is not None
        settled = await asyncio.wrap_future(keeper.ask(lambda: keeper.is_settled))
        return settled and self._neighbours.is_idle()

    async def forget(self, who: str) -> str:
        """As in `Clustering`."""
        assert self.keeper is not None
        return await asyncio.wrap_future(self.keeper.forget(who))

    async def verify(self, wait_s: float) -> VerifyFigures:
        """As in `Clustering`."""
        assert self.keeper is not None
        return await asyncio.wrap_future(self.keeper.verifying.begin(wait_s))

    def verification(self) -> VerifyFigures | None:
        """As in `Clustering`."""
        return self.keeper.verifying.figures() if self.keeper is not None else None

    def problems(self) -> Sequence[str]:
        """As in `Clustering`."""
        keeper = self.keeper
        if keeper is None or not keeper.survey.has_looked:
            return []
        if self._draining is not None:
            return ["this node leaves the cluster: clients are to use another one"]
        problems = [
            self._neighbours.problem if self._neighbours is not None else "",
            keeper.minority.problem,
            keeper.promises.problem if keeper.promises.refuses else "",
        ]
        return [each for each in problems if each]

    def counts(self) -> dict[str, int]:
        """As in `Clustering`."""
        counts = dict.fromkeys(CLUSTER_COUNTERS, 0)
        keeper = self.keeper
        parts = [
            *((self._server.counts,) if self._server is not None else ()),
            *((self._transport.counts,) if self._transport is not None else ()),
            *((self._neighbours.counts,) if self._neighbours is not None else ()),
            *(keeper.all_counts() if keeper is not None else ()),
        ]
        for part in parts:
            counts.update(part)
        return counts

    # --- as the keeper calls it: links -------------------------------------------------------------

    def _transport_of_now(self) -> Transport:
        assert self._transport is not None
        return self._transport

    def meet(self, incarnation: int, address: str) -> None:
        """As in `Links`."""
        if self.keeper is None or incarnation == self.keeper.node.incarnation:
            return
        if self.keeper.membership.has_left(incarnation):
            return  # it may be there for a while yet, and then it is not
        with self._meets:
            if self._addresses.get(incarnation) != address:
                known = {**self._addresses, incarnation: address}
                self._transport_of_now().set_peers(known)
                self._addresses = known

    def greet(self, incarnation: int) -> None:
        """As in `Links`."""
        if self._neighbours is not None:
            self._neighbours.meet(incarnation)

    def has_met(self, incarnation: int) -> bool:
        """As in `Links`."""
        return self._neighbours is not None and self._neighbours.has_met(incarnation)

    def part(self, incarnation: int) -> None:
        """As in `Links`."""
        if self._neighbours is not None:
            self._neighbours.part(incarnation)

    def open(self, incarnation: int) -> None:
        """As in `Links`."""
        if self._neighbours is not None:
            self._neighbours.open(incarnation)

    def apart(self) -> Collection[int]:
        """As in `Links`."""
        return self._neighbours.apart() if self._neighbours is not None else ()

    def send(self, to: int, kind: str, body: bytes) -> None:
        """As in `Links`."""
        if self._transport is not None:
            self._transport.send(to, kind, body)

    def broadcast(self, kind: str, body: bytes) -> None:
        """As in `Links`."""
        if self._transport is None:
            return
        if kind == BEAT and self._heartbeats is not None:
            self._heartbeats.say(body)
        else:
            self._transport.broadcast(kind, body)

    def copy(self, to: int, records: Sequence[tuple[int, bytes]]) -> None:
        """As in `Links`."""
        if self._transport is not None:
            self._transport.copy(to, records)

    def trim(self, number: int) -> None:
        """As in `Links`."""
        if self._transport is not None:
            self._transport.trim(number)

    def forget_copies(self, incarnation: int, number: int) -> None:
        """As in `Links`."""
        if self._transport is not None:
            self._transport.forget_copies(incarnation, number)

    def fetch(self, holder: int, incarnation: int, first: int, last: int) -> None:
        """As in `Links`."""
        if self._transport is not None:
            self._transport.fetch(holder, incarnation, first, last)

    def ask_for_last(self, incarnation: int) -> None:
        """As in `Links`. Without an answer it is asked again."""
        if self._transport is not None:
            self._transport.copied_of(incarnation).add_done_callback(partial(self._take_last, incarnation))

    def _take_last(self, incarnation: int, found: Future[tuple[int, int]]) -> None:
        if self.keeper is not None and found.exception() is None:
            self.keeper.inbox.take_last(incarnation, found.result()[1])

    def use_format(self, number: int) -> None:
        """As in `Links`."""
        if self._neighbours is not None:
            self._neighbours.use_format(number)

    def announce(self, *, flush: bool = False) -> int:
        """As in `Links`."""
        assert self._neighbours is not None
        return self._neighbours.announce(flush=flush)

    def announced(self, number: int) -> Collection[int] | None:
        """As in `Links`."""
        assert self._neighbours is not None
        assert self.keeper is not None
        members, now = self.keeper.node.members, time.monotonic()
        return self._neighbours.announced(number, lambda node: members.is_live(node, now))

    def given_so_far(self) -> list[int]:
        """As in `Links`."""
        assert self._neighbours is not None
        return self._neighbours.given_so_far()

    def has_acted_on(self, given: Sequence[int]) -> bool:
        """As in `Links`."""
        assert self._neighbours is not None
        return self._neighbours.has_acted_on(given)

    def taken_so_far(self) -> list[tuple[int, int, int]] | None:
        """As in `Links`."""
        assert self._neighbours is not None
        return self._neighbours.taken_so_far()

    def drop(self, incarnation: int) -> None:
        """As in `Links`."""
        with self._meets:
            self._addresses.pop(incarnation, None)
            if self._transport is not None:
                self._transport.set_peers(dict(self._addresses))
                self._transport.end_copies(incarnation)
        if self._neighbours is not None:
            self._neighbours.forget(incarnation)

    def refuse(self, incarnation: int) -> None:
        """As in `Links`."""
        if self._neighbours is not None:
            self._neighbours.refuse(incarnation)

    def expect(self, incarnation: int, filters: list[str]) -> None:
        """As in `Links`."""
        if self._neighbours is not None:
            self._neighbours.expect(incarnation, filters)

    def hold(self, client: str, incarnation: int, filters: list[str]) -> bool:
        """As in `Links`."""
        return self._neighbours is None or self._neighbours.holding.hold(client, incarnation, filters)

    def let_go(self, client: str) -> None:
        """As in `Links`."""
        if self._neighbours is not None:
            self._neighbours.holding.let_go(client)

    def taken_over(self, incarnation: int) -> None:
        """As in `Links`."""
        if self._neighbours is not None:
            self._neighbours.settle(incarnation)

    # --- as the transport calls it -----------------------------------------------------------------

    def on_message(self, kind: str, sender: int, body: bytes) -> None:
        """As in `Events`."""
        if kind in KINDS:
            if self._neighbours is not None:
                self._neighbours.take(kind, sender, body)
        elif self.keeper is not None:
            self.keeper.inbox.take_in(kind, sender, body)

    def on_connected(self, peer: int, address: str) -> None:
        """As in `Events`."""
        _log.info("node %016x is reached at %s", peer, address)
        if self.keeper is not None:
            self.keeper.inbox.take_reached(peer, is_reached=True)

    def on_disconnected(self, peer: int) -> None:
        """As in `Events`."""
        _log.warning("node %016x is not reached any more", peer)
        if self.keeper is not None:
            self.keeper.inbox.take_reached(peer, is_reached=False)

    def on_met(self, peer: int, address: str) -> None:
        """As in `Events`."""
        try:
            self.meet(peer, address)
        except ClusterError as error:
            self._troubles.note(address, str(error), is_logged=True)

    def on_problem(self, address: str, text: str) -> None:
        """As in `Events`."""
        self._troubles.note(address, text, is_logged=True)

    def on_copied(self, to: int, number: int) -> None:
        """As in `Events`."""
        if self.keeper is not None:
            self.keeper.inbox.take_copied(to, number)

    def on_copies_lost(self, to: int, first_needed: int) -> None:
        """As in `Events`."""
        if self.keeper is not None:
            self.keeper.inbox.take_lost(to, first_needed)

    def on_records(self, holder: int, incarnation: int, records: Sequence[bytes], problem: str) -> None:
        """As in `Events`."""
        if self.keeper is not None and records:
            self.keeper.inbox.take_fetched(holder, records)


def security_of(config: Config) -> Security:
    """What nodes show each other; ClusterError where files are missing."""

    def path(text: str) -> Path | None:
        return Path(text) if text else None

    return Security(
        password_file=Path(config.cluster_password_file),
        ca=path(config.cluster_ca),
        certificate=path(config.cluster_certificate),
        key=path(config.cluster_key),
    )


def keep_memory() -> None:
    """Batches of half a megabyte come and go all the time. By its defaults malloc gives the memory of each
    back and asks for it again, a page fault for each 4 KiB: a sixth of the CPU of messages between nodes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other systems' malloc has none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
