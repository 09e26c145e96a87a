"""A proxy on loopback between clients and a server: passes bytes on as they are, until it cuts or stalls."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tidemq.testing.ports import reserve_port

_BLOCK_BYTES = 1 << 16


class Link:
    """A client's connection to the proxy, and the proxy's to the server."""

    def __init__(
        self,
        front: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        back: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._front, self._back = front, back
        self._running = asyncio.Event()  # not stalled
        self._running.set()
        self._passed_bytes = 0  # both ways together
        # what the server takes for the client's port
        self.port: int = back[1].get_extra_info("sockname")[1]

    @property
    def stalled(self) -> bool:
        return not self._running.is_set()

    def cut(self) -> None:
        """Resets both connections; what is under way is lost."""
        for _, writer in (self._front, self._back):
            writer.transport.abort()
        self._running.set()

    def stall(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def run(self, proxy: Proxy) -> None:
        """Until both ends are closed."""
        (front_reader, front_writer), (back_reader, back_writer) = self._front, self._back
        try:
            await asyncio.gather(
                self._pass(front_reader, back_writer, proxy), self._pass(back_reader, front_writer, proxy)
            )
        except OSError:  # one end was reset: so is the other
            pass
        finally:
            self.cut()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy) -> None:
        while True:
            data = await reader.read(_BLOCK_BYTES)
            await self._running.wait()  # also with an end of file: a dead wire does not tell of one
            if not data:
                break
            limit = proxy.cut_after_bytes
            if limit is not None and self._passed_bytes + len(data) > limit:
                writer.write(data[: max(0, limit - self._passed_bytes)])
                await _close(writer)
                raise ConnectionAbortedError
            self._passed_bytes += len(data)
            writer.write(data)
            await writer.drain()
        await _close(writer)


class Proxy:
    """`async with Proxy(server_port) as proxy:` listens on `proxy.port` of 127.0.0.1, or on the Unix socket
    `path`, and connects each client to the server's port on 127.0.0.1.

    With `tls` its clients speak TLS, the server does not. Belongs to one event loop.
    """

    def __init__(
        self, server_port: int, *, tls: ssl.SSLContext | None = None, path: Path | None = None
    ) -> None:
        self.server_port = server_port
        self._tls, self._path = tls, path
        self._server: asyncio.Server | None = None
        self._held: socket.socket | None = None  # keeps the port while nothing listens on it
        self._stalled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.links: dict[int, Link] = {}  # by `Link.port`
        self.connections = 0  # so far
        self.accept_delay_s = 0.0  # from a client's connection to the proxy's own
        self.cut_after_bytes: int | None = None  # of a connection, both ways together

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        if self._held is not None:
            self._held.close()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Listens; the second time on the same port."""
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._serve, self._path, ssl=self._tls)
            return
        if self._held is None:
            self._held = reserve_port()
            self.port = self._held.getsockname()[1]
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)

    def refuse(self) -> None:
        """Listens no more; connections that exist stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self, grace_s: float = 0) -> None:
        """Listens no more, gives connections so long to end by themselves, and cuts those that have not."""
        self.refuse()
        self.cut([link for link in self.links.values() if link.stalled])
        if self._tasks and grace_s:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self, links: Iterable[Link] | None = None) -> None:
        """Ends connections at once, all unless some are named."""
        for link in list(self.links.values()) if links is None else links:
            link.cut()

    def stall(self, links: Iterable[Link] | None = None) -> None:
        """Passes nothing on any more, but leaves connections open; without `links` those to come as well."""
        if links is None:
            self._stalled = True
        for link in self.links.values() if links is None else links:
            link.stall()

    def resume(self, links: Iterable[Link] | None = None) -> None:
        """Passes on again, first of all what has come meanwhile."""
        if links is None:
            self._stalled = False
        for link in self.links.values() if links is None else links:
            link.resume()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            await asyncio.sleep(self.accept_delay_s)
            back = await asyncio.open_connection("127.0.0.1", self.server_port)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        link = Link((reader, writer), back)
        if self._stalled:
            link.stall()
        self.links[link.port] = link
        try:
            await link.run(self)
        except asyncio.CancelledError:  # by `close`
            pass
        finally:
            del self.links[link.port]


async def _close(writer: asyncio.StreamWriter) -> None:
    """Sends what is left, then the end of file."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
