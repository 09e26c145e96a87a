"""What a node sends to others and hears of them: a thread with an event loop, on which nats-py runs.

    transport = Transport(cluster="x", incarnation=7, address="10.0.0.7:4222", security=..., events=...)
    transport.start()
    transport.join(["10.0.0.8:4222"])

A node is a client of its own `nats-server`, where it listens, and of every peer's, to which it sends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from tidemq.cluster.transport.connecting import end
from tidemq.cluster.transport.copying import Copying
from tidemq.cluster.transport.hello import Hello
from tidemq.cluster.transport.inbox import Inbox
from tidemq.cluster.transport.jetstream import delete_stream, stream_name
from tidemq.cluster.transport.link import Link, PeerLink
from tidemq.cluster.transport.settings import (
    TRANSPORT_COUNTERS,
    Bounds,
    Events,
    Patience,
    Security,
    parse_address,
)
from tidemq.errors import ClusterError, UsageError

PEERS_MAX = 16
ADDRESSES_MAX = 64  # to join
REPEATED_S = 60.0  # between two reports of one problem that lasts
CLOSE_S = 10.0
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_log = logging.getLogger("tidemq.cluster")


class Transport:
    """From `start` to `close`, once. Every method is for any thread and none waits, but for `close`."""

    def __init__(
        self,
        *,
        cluster: str,
        incarnation: int,
        address: str,
        security: Security,
        events: Events,
        patience: Patience | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """`address`: of this node's own server, as others reach it. ClusterError where it, or the name of the
        cluster, is none that can be.
        """
        if not NAME.fullmatch(cluster):
            raise ClusterError(f"{cluster!r} is no name of a cluster; accepted: 1 to 64 of A-Z a-z 0-9 _ -")
        if not 0 < incarnation < 1 << 64:
            raise UsageError(f"an incarnation is a number of 64 bits and not 0; this is {incarnation}")
        security.check_address(parse_address(address)[0])
        self.hello = Hello(cluster, incarnation, address, secrets.token_hex(8))
        self.security, self._events = security, events
        self.patience, self.bounds = patience or Patience(), bounds or Bounds()
        self.counts: Counter[str] = Counter(dict.fromkeys(TRANSPORT_COUNTERS, 0))
        self._lock = threading.Lock()  # over what follows, up to `_loop`
        self._peers: dict[int, str] = {}
        self._joins: set[str] = set()
        self._connected: dict[int, PeerLink] = {}
        self._copyings: dict[int, Copying] = {}
        self._trimmed = 0
        self._closes = self._ended = False
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._inbox = Inbox(address, self)
        self._links: dict[str, PeerLink] = {}
        self._runs: dict[Link, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._problems: dict[str, tuple[str, float]] = {}
        self._thread = threading.Thread(target=self._run, name="tidemq-cluster", daemon=True)

    # from other threads

    def start(self) -> None:
        """Begins to connect, and goes on for as long as it takes."""
        self._thread.start()

    def close(self) -> None:
        """Ends all connections; nothing is called any more when it returns. Waits for up to 10 s, but not
        where it is called by one of the transport's own calls.
        """
        with self._lock:
            first, self._closes = not self._closes, True
        if self._thread.ident is None:
            if first:
                self._ended = True
                self._loop.close()
            return
        self.post(self._stop.set)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def set_peers(self, peers: Mapping[int, str]) -> None:
        """The nodes to be connected with, by incarnation, instead of those of before; itself may be among
        them. ClusterError for more than 16, or an address that is none.
        """
        others = {peer: address for peer, address in peers.items() if peer != self.hello.incarnation}
        if len(others) > PEERS_MAX:
            raise ClusterError(f"{len(others)} peers; a cluster has at most {PEERS_MAX}")
        for address in others.values():
            parse_address(address)
        with self._lock:
            self._peers = others
        self.post(self._follow)

    def join(self, addresses: Iterable[str]) -> None:
        """Nodes whose incarnations are to be learnt, besides those of before."""
        more = set(addresses)
        for address in more:
            parse_address(address)
        with self._lock:
            if len(self._joins | more) > ADDRESSES_MAX:
                raise ClusterError(f"more than {ADDRESSES_MAX} addresses to join")
            self._joins |= more
        self.post(self._follow)

    def connected(self) -> dict[int, str]:
        """The addresses of peers that are connected now, by incarnation."""
        with self._lock:
            return {peer: link.address for peer, link in self._connected.items()}

    def send(self, to: int, kind: str, body: bytes) -> bool:
        """A message, without an answer. False where it is dropped, and counted: the peer is not connected, or
        too much waits for it. A message that was sent may still be lost with the connection. UsageError for
        one that is larger than any may be.
        """
        self._check(kind, body)
        with self._lock:
            link = self._connected.get(to)
        if link is not None and link.outbox.put(kind, body):
            return True
        self.count("cluster_messages_dropped")
        return False

    def broadcast(self, kind: str, body: bytes) -> None:
        """The same message to every peer that is connected."""
        self._check(kind, body)
        with self._lock:
            links = list(self._connected.values())
        for link in links:
            if not link.outbox.put(kind, body):
                self.count("cluster_messages_dropped")

    def _check(self, kind: str, body: bytes) -> None:
        if not NAME.fullmatch(kind):
            raise UsageError(f"{kind!r} is no kind of a message; accepted: 1 to 64 of A-Z a-z 0-9 _ -")
        if len(body) > self.bounds.message_bytes_max:
            most = self.bounds.message_bytes_max
            raise UsageError(f"a message of {len(body)} bytes; accepted: up to {most}")

    def copy(self, to: int, records: Iterable[tuple[int, bytes]]) -> None:
        """Records of this node's log for the server of `to`, connected or not; numbers rise by one. The first
        call, also without records, begins: `on_copied` says what is there, `on_copies_lost` what is missing.
        What does not fit, or is not the next one, is dropped, counted, and asked for later. A number that is
        there already is taken for the same record: no two may have one. UsageError for a record that is
        larger than any may be.
        """
        with self._lock:
            copying = self._copyings.get(to)
            is_new = copying is None
            if copying is None:
                if len(self._copyings) >= PEERS_MAX:
                    raise UsageError(f"copies for more than {PEERS_MAX} peers")
                name = stream_name(self.hello.incarnation)
                copying = self._copyings[to] = Copying(to, name, self.bounds, self.patience, self)
                copying.trim(self._trimmed)
        copying.give(records)
        if is_new:
            self.post(lambda: self._begin_copying(to))

    def end_copies(self, to: int) -> None:
        """No more copies for `to`; those that are there are deleted, if it is connected."""
        with self._lock:
            copying = self._copyings.pop(to, None)
        if copying is not None:
            self.post(lambda: self._end_copying(to, copying))

    def trim(self, to_number: int) -> None:
        """Records up to this one are needed by nobody any more: copies of them are removed, soon."""
        with self._lock:
            self._trimmed = max(self._trimmed, to_number)
            copyings = list(self._copyings.values())
        for copying in copyings:
            copying.trim(to_number)

    def forget_copies(self, incarnation: int, to_number: int) -> None:
        """What this node's own server has of another node's log is deleted, where that goes no further than
        this record.
        """
        self.post(partial(self._inbox.forget_copies, incarnation, to_number))

    def fetch(self, holder: int, incarnation: int, first: int, last: int) -> None:
        """Asks for records of a log that the server of `holder`, maybe this node, has copies of. `on_records`
        gets those that are there, in order, up to some megabytes: whoever wants more asks again.
        """

        def begin() -> None:
            link = self._link_to(holder)
            if link is None or link.client is None or link.is_busy:
                self.count("cluster_fetches_refused")
                reason = "busy" if link is not None and link.is_busy else "not connected"
                self._tell(self._events.on_records, holder, incarnation, [], f"{holder:016x} is {reason}")
            else:
                link.begin(self._fetch(link, holder, incarnation, first, last), is_vital=False)

        self.post(begin)

    def copied_of(self, incarnation: int) -> concurrent.futures.Future[tuple[int, int]]:
        """The first and the last record of another node's log that this node's own server has; 0 and 0: none.
        There may be gaps between. The future fails with ClusterError where the server is not connected.
        """
        answer: concurrent.futures.Future[tuple[int, int]] = concurrent.futures.Future()

        def begin() -> None:
            task = self._loop.create_task(self._inbox.read_numbers(incarnation))
            task.add_done_callback(lambda done: _hand_over(done, answer))

        if not self.post(begin):
            answer.set_exception(ClusterError("the transport is closed"))
        return answer

    def status(self) -> dict[str, Any]:
        """How the connections are, for who looks at them: plain values."""
        with self._lock:
            copyings, links = dict(self._copyings), list(self._links.values())
        own = self._inbox
        return {
            "address": own.address,
            "state": own.state,
            "last_error": own.last_error,
            "peers": [_status_of(link, copyings.get(link.peer or 0)) for link in links],
            "counts": dict(self.counts),
        }

    # what links and copies ask of their node

    def count(self, name: str, more: int = 1) -> None:
        if more:
            with self._lock:
                self.counts[name] += more

    def post(self, function: Callable[[], object]) -> bool:
        """Calls it on the transport's thread, soon; not if that has ended."""
        with self._lock:
            if self._ended:
                return False
            self._loop.call_soon_threadsafe(function)
            return True

    def problem(self, address: str, text: str) -> None:
        now = time.monotonic()
        before, at = self._problems.get(address, ("", 0.0))
        if text != before or now - at > REPEATED_S:
            if len(self._problems) > 2 * ADDRESSES_MAX:
                self._problems.clear()
            self._problems[address] = text, now
            _log.warning("%s: %s", address, text)
            self._tell(self._events.on_problem, address, text)

    def message(self, kind: str, sender: int, body: bytes) -> None:
        self._tell(self._events.on_message, kind, sender, body)

    def met(self, hello: Hello) -> None:
        link = self._links.get(hello.address)
        if link is not None:
            if link.peer not in (None, hello.incarnation):
                link.part()  # a server that outlives its node, which has begun anew
            link.hurry()
        self._tell(self._events.on_met, hello.incarnation, hello.address)

    def is_expected(self, address: str, incarnation: int) -> bool:
        with self._lock:
            return address in self._joins or self._peers.get(incarnation) == address

    def joined(self, link: PeerLink, hello: Hello) -> bool:
        with self._lock:
            if hello.incarnation in self._connected:
                return False
            self._connected[hello.incarnation] = link
        self.count("cluster_links_connected")
        self._problems.pop(link.address, None)
        self._tell(self._events.on_met, hello.incarnation, hello.address)
        return True

    def served(self, link: PeerLink) -> None:
        self._tell(self._events.on_connected, link.peer, link.address)

    def left(self, link: PeerLink) -> None:
        with self._lock:
            if link.peer is None or self._connected.get(link.peer) is not link:
                return
            del self._connected[link.peer]
            others = [each for each in self._links.values() if each.state == "twice"]
        for each in others:
            each.hurry()
        self.count("cluster_links_lost")
        self._tell(self._events.on_disconnected, link.peer)

    def copying_to(self, peer: int) -> Copying | None:
        with self._lock:
            return self._copyings.get(peer)

    def copied(self, to: int, number: int) -> None:
        self._tell(self._events.on_copied, to, number)

    def copies_lost(self, to: int, first_needed: int) -> None:
        self._tell(self._events.on_copies_lost, to, first_needed)

    def copies_stuck(self, to: int, text: str) -> None:
        link = self._link_to(to)
        self.problem(link.address if link is not None else f"{to:016x}", text)

    # on the transport's thread

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:  # noqa: BLE001 - whoever is told may be wrong, and others are still to be told
            self.count("cluster_calls_failed")
            _log.exception("what the cluster's transport was to tell failed")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            with self._lock:
                self._ended = True
            self._loop.run_until_complete(_end_all())
            self._loop.close()

    async def _main(self) -> None:
        self._runs[self._inbox] = self._loop.create_task(self._inbox.run())
        self._follow()
        await self._stop.wait()
        self._events = _Silence()
        await self._end(list(self._runs))

    def _follow(self) -> None:
        """A link for each address, and none for others."""
        if self._stop.is_set():
            return
        with self._lock:
            wanted = {*self._peers.values(), *self._joins} - {self.hello.address}
            gone = [link for address, link in self._links.items() if address not in wanted]
            for link in gone:
                del self._links[link.address]
            new = [PeerLink(address, self) for address in wanted if address not in self._links]
            self._links |= {link.address: link for link in new}
        for link in new:
            self._runs[link] = self._loop.create_task(link.run())
        for link in set(self._links.values()) - set(new):
            if link.state != "connected":
                link.hurry()
        if gone:
            ending = self._loop.create_task(self._end(gone))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _end(self, links: Iterable[Link]) -> None:
        await end([self._runs.pop(link) for link in links])

    def _link_to(self, peer: int) -> Link | None:
        if peer == self.hello.incarnation:
            return self._inbox
        with self._lock:
            return self._connected.get(peer)

    def _begin_copying(self, to: int) -> None:
        link, copying = self._link_to(to), self.copying_to(to)
        if isinstance(link, PeerLink) and copying is not None:
            link.copy_by(copying)

    def _end_copying(self, to: int, copying: Copying) -> None:
        copying.end()
        link = self._link_to(to)
        if link is not None and link.client is not None:
            name, answer_s = stream_name(self.hello.incarnation), self.patience.answer_s
            link.begin(_quietly(delete_stream(link.client, name, answer_s)), is_vital=False)

    async def _fetch(self, link: Link, holder: int, incarnation: int, first: int, last: int) -> None:
        records: list[bytes] = []
        problem = "the connection ended"
        try:
            records, problem = await link.read(incarnation, first, last), ""
        except ClusterError as error:
            problem = str(error)
        finally:  # also where it is cancelled: who asked waits for an answer
            if problem:
                self.count("cluster_fetches_failed")
            self._tell(self._events.on_records, holder, incarnation, records, problem)


class _Silence:
    """Nothing is told any more."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


def _hand_over(
    done: asyncio.Task[tuple[int, int]], answer: concurrent.futures.Future[tuple[int, int]]
) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    error = ClusterError("the transport is closed") if done.cancelled() else done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)


def _status_of(link: PeerLink, copying: Copying | None) -> dict[str, Any]:
    peer = link.peer
    return {
        "address": link.address,
        "incarnation": f"{peer:016x}" if peer is not None else None,
        "state": link.state,
        "waiting_bytes": link.outbox.waiting_bytes,
        "last_error": link.last_error,
        "copied": copying.copied if copying is not None else None,
        "copies_waiting_bytes": copying.waiting_bytes if copying is not None else 0,
    }


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    with suppress(ClusterError):
        await work


async def _end_all() -> None:
    """Of nats-py's own tasks there may be some left."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1)
