"""A node's connection to one nats-server, its own or a peer's: made, and made again after every end."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, Protocol

import nats.errors
from nats.aio.client import Client

from tidemq.cluster.transport.connecting import RefusedError, connect, cut, end, give_up, until_silent
from tidemq.cluster.transport.copying import Copying
from tidemq.cluster.transport.hello import SUBJECT, Hello, parse_hello
from tidemq.cluster.transport.jetstream import GoneError, ask
from tidemq.cluster.transport.outbox import Outbox
from tidemq.cluster.transport.reading import Reader
from tidemq.cluster.transport.settings import Bounds, Patience, Security
from tidemq.errors import ClusterError

QUICK_S = 30.0  # after the end of a connection to a node, in which a server that starts anew is there again
STEADY_S = 1.0  # connected for so long, the pause before the next attempt is the first again
TASKS_MAX = 64  # answers of one server that are waited for

_log = logging.getLogger("tidemq.cluster")

State = Literal["connecting", "connected", "waiting", "itself", "twice"]


class Home(Protocol):
    """What a link knows of the node that it is of. All on the transport's thread."""

    hello: Hello
    security: Security
    patience: Patience
    bounds: Bounds

    def count(self, name: str, more: int = 1) -> None: ...
    def problem(self, address: str, text: str) -> None: ...
    def post(self, function: Callable[[], object]) -> object: ...


class IdleError(ClusterError):
    """There is nothing to connect to at this address, and nothing wrong with that."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.state = state


class Link:
    """`run`, until it is cancelled. What it does when it is connected, `_serve`, differs."""

    def __init__(self, address: str, home: Home) -> None:
        self.address, self.home = address, home
        self.state: State = "connecting"
        self.last_error = ""
        self._was_connected = False  # since the last pause
        self.client: Client | None = None  # while it is connected
        self._hurry = asyncio.Event()
        self._closed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()  # that end with the connection
        self._reads = asyncio.Lock()
        self._reader: Reader | None = None

    async def run(self) -> None:
        patience = self.home.patience
        pause_s, quick_until = patience.retry_s, 0.0
        while True:
            began = time.monotonic()
            longest_s = pause_s
            try:
                self.state = "connecting"
                await self._live()
            except IdleError as error:
                self.state, longest_s = error.state, patience.refused_s
            except RefusedError as error:
                self.home.count("cluster_links_refused")
                longest_s = patience.refused_s
                self._failed(error)
            except (ClusterError, nats.errors.Error, OSError) as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - a defect of ours must not end the link for good
                _log.exception("the connection to %s failed", self.address)
                self._failed(error)
            now = time.monotonic()
            pause_s = patience.retry_s if now - began > STEADY_S else pause_s
            if self._was_connected:
                self._was_connected, quick_until = False, now + QUICK_S
            if now < quick_until:  # longer, and the nodes take each other for dead
                longest_s = min(longest_s, patience.again_s)
            await self._pause(random.uniform(longest_s / 2, longest_s))
            pause_s = min(pause_s * 2, patience.retry_s_max)

    def part(self) -> None:
        """The connection, if there is one, is of no use any more."""
        self._closed.set()

    def hurry(self) -> None:
        """There is a reason to try again now."""
        self._hurry.set()

    async def _pause(self, pause_s: float) -> None:
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurry.wait()

    def _connected(self) -> None:
        self.state, self.last_error, self._was_connected = "connected", "", True

    def _failed(self, error: Exception) -> None:
        self.state = "waiting"
        self.last_error = str(error) or type(error).__name__
        self.home.count("cluster_links_failed")
        self.home.problem(self.address, self.last_error)

    async def _live(self) -> None:
        """From one connection to its end, which is an error."""
        self._closed.clear()
        home = self.home
        client = await connect(self.address, home.security, home.patience, self._heard, self._closed.set)
        try:
            await self._introduce(client)
            self.client = client
            self._reader = Reader(client, home.patience.answer_s, home.bounds.fetched_bytes_max)
            self.begin(self._closed_by_server())
            self.begin(until_silent(client, home.patience))
            await self._serve(client)
            await self._first_end()
        finally:
            self.client = self._reader = None
            cut(client)
            try:
                await end(self._tasks)
            finally:  # who ends this link does not wait for long, and cancels it once more
                self._tasks.clear()
                self._left()
            await give_up(client)

    def begin(self, work: Coroutine[Any, Any, None], is_vital: bool = True) -> None:
        """A task of this connection; the connection ends with a vital one."""
        task = asyncio.get_running_loop().create_task(work)
        if is_vital:
            task.set_name("vital")
        self._tasks.add(task)
        if not is_vital:
            task.add_done_callback(self._tasks.discard)

    @property
    def is_busy(self) -> bool:
        """Whether no more answers can be waited for."""
        return len(self._tasks) >= TASKS_MAX

    async def _first_end(self) -> None:
        vital = {task for task in self._tasks if task.get_name() == "vital"}
        done, _ = await asyncio.wait(vital, return_when=asyncio.FIRST_COMPLETED)
        self._tasks -= done
        # of each, or it is logged as one that nobody has asked for
        for error in [task.exception() for task in done if not task.cancelled()]:
            if error is not None:
                raise error
        raise ClusterError("the connection ended, or the server no longer answers")

    async def _closed_by_server(self) -> None:
        await self._closed.wait()

    def _heard(self, error: Exception) -> None:
        """nats-py tells of something."""
        if isinstance(error, nats.errors.SlowConsumerError):
            self.home.count("cluster_messages_overrun")
        else:
            self.last_error = str(error) or type(error).__name__

    async def read(self, incarnation: int, first: int, last: int) -> list[bytes]:
        """Copies that this server has; one request at a time."""
        async with self._reads:
            reader = self._connected_reader()
            try:
                return await reader.read(incarnation, first, last)
            finally:
                self._count_damaged(reader)

    async def read_numbers(self, incarnation: int) -> tuple[int, int]:
        async with self._reads:
            reader = self._connected_reader()
            try:
                return await reader.numbers(incarnation)
            except GoneError:
                return 0, 0
            finally:
                self._count_damaged(reader)

    def _connected_reader(self) -> Reader:
        if self._reader is None:
            raise ClusterError(f"{self.address} is not connected")
        return self._reader

    def _count_damaged(self, reader: Reader) -> None:
        self.home.count("cluster_copies_unreadable", reader.damaged)
        reader.damaged = 0

    async def _introduce(self, client: Client) -> None:
        raise NotImplementedError

    async def _serve(self, client: Client) -> None:
        """Begins the tasks of a connection, and tells of it."""
        raise NotImplementedError

    def _left(self) -> None:
        """The connection is no more."""


class PeerHome(Home, Protocol):
    """What a link to a peer asks of its node besides."""

    def is_expected(self, address: str, incarnation: int) -> bool: ...
    def joined(self, link: PeerLink, hello: Hello) -> bool:
        """Whether the node has no other link to this peer."""

    def served(self, link: PeerLink) -> None: ...
    def left(self, link: PeerLink) -> None: ...
    def copying_to(self, peer: int) -> Copying | None: ...


class PeerLink(Link):
    """To another node's server."""

    home: PeerHome

    def __init__(self, address: str, home: PeerHome) -> None:
        super().__init__(address, home)
        self.peer: int | None = None  # while it is connected
        self._copying: Copying | None = None  # that runs in this connection
        self.outbox = Outbox(home.bounds.waiting_bytes_max, home.post)

    async def _introduce(self, client: Client) -> None:
        own = self.home.hello
        try:
            msg = await ask(client, SUBJECT, own.encode(), self.home.patience.answer_s)
        except GoneError as error:
            raise ClusterError("a nats-server is there, and its node is not") from error
        other = parse_hello(msg.data)
        if other.process == own.process:
            raise IdleError("itself")
        refusal = own.refusal(other)
        if not refusal and other.incarnation == own.incarnation:
            refusal = f"it is a second node of this node's incarnation, {own.incarnation:016x}"
        if not refusal and not self.home.is_expected(self.address, other.incarnation):
            refusal = f"another incarnation is there than expected, {other.incarnation:016x}"
        if refusal:
            raise RefusedError(refusal)
        if not self.home.joined(self, other):
            raise IdleError("twice")
        self.peer = other.incarnation

    async def _serve(self, client: Client) -> None:
        own, peer = self.home.hello, self.peer
        assert peer is not None
        self._connected()
        self.outbox.open()
        subject = f"tidemq.{own.cluster}.{peer:016x}"
        self.begin(self.outbox.send_all(client, subject, f"{own.incarnation:016x}"))
        self.home.served(self)
        copying = self.home.copying_to(peer)
        if copying is not None:
            self.copy_by(copying)

    def copy_by(self, copying: Copying) -> None:
        """From now on, copies are made there; where it is connected."""
        if self.client is not None and self._copying is not copying:
            self._copying = copying
            self.begin(copying.run(self.client), is_vital=False)

    def _left(self) -> None:
        self._copying = None
        self.home.count("cluster_messages_dropped", self.outbox.close())
        if self.peer is not None:
            self.home.left(self)
            self.peer = None
