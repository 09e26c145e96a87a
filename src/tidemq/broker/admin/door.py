"""The admin listener's connections: so many at a time, and none that asks nothing for long.

Otherwise strangers who open connections and say nothing would take the broker's descriptors, and no client of
MQTT's could connect any more. aiohttp bounds neither.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

from aiohttp import web

CONNECTIONS_MAX = 100
IDLE_S = 30.0  # without a request that is whole
CHECK_S = 1.0  # between two looks at who is idle
_PAUSE_S = 0.05  # before the next is accepted, where there is no room

_log = logging.getLogger("tidemq.admin")


class Door:
    """Accepts for an aiohttp server, until closed. More connections than `CONNECTIONS_MAX` wait."""

    def __init__(self, server: web.Server, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        self._server = server
        self._tls = tls
        self._entering: set[asyncio.Task[None]] = set()  # their handshakes
        self._idle_since: dict[object, float] = {}
        self._busy: set[object] = set()
        for bound in sockets:
            bound.setblocking(False)
        self._tasks = [asyncio.create_task(self._accept(bound)) for bound in sockets]
        self._tasks.append(asyncio.create_task(self._end_idle()))

    def close(self) -> None:
        """Lets nobody in any more."""
        for task in (*self._tasks, *self._entering):
            task.cancel()

    def begin(self, request: web.BaseRequest) -> None:
        """A request is whole, but for its body."""
        self._busy.add(request.protocol)

    def end(self, request: web.BaseRequest) -> None:
        """It is answered."""
        self._busy.discard(request.protocol)

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # no event tells that a connection has gone
            while len(self._server.connections) + len(self._entering) >= CONNECTIONS_MAX:  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_S)
            try:
                connection, _ = await loop.sock_accept(bound)
            except OSError as error:
                _log.error("the admin listener cannot accept: %s", error.strerror)
                await asyncio.sleep(1.0)
                continue
            task = asyncio.create_task(self._enter(connection))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, connection: socket.socket) -> None:
        loop, timeout_s = asyncio.get_running_loop(), IDLE_S if self._tls else None
        try:
            await loop.connect_accepted_socket(
                self._server, connection, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except (OSError, TimeoutError):  # no TLS, or gone
            connection.close()

    async def _end_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_S)
            now_s, connections = loop.time(), self._server.connections
            self._busy.intersection_update(connections)
            self._idle_since = {
                each: self._idle_since.get(each, now_s) for each in connections if each not in self._busy
            }
            for each in connections:
                transport = each.transport
                if transport is not None and now_s - self._idle_since.get(each, now_s) >= IDLE_S:
                    each.force_close()
                    transport.abort()  # whatever it has not read
